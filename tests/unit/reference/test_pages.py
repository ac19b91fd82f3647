"""The reference pages are complete and up to date, and their examples work."""

import itertools
import re
import subprocess
from dataclasses import replace

import pytest
import yaml

from common.files import CHECKOUT
from common.schemas import SCHEMAS
from declared.datasets import DATASETS, read_datasets
from declared.factors import factor_table
from declared.frameworks import framework_names
from declared.site import load_site
from plan.site_limits import unsupported_reason
from reference import commands, pages, products, settings


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_is_made_of_the_code(name: str) -> None:
    assert (pages.FOLDER / f"{name}.md").read_text(encoding="utf-8") == pages.text(name), "say make reference"


def test_help_lists_every_target_under_its_group() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    listed: list[tuple[str, str, str]] = []
    group = ""
    for line in filter(None, done.stdout.splitlines()):
        if line.startswith("  make "):
            name, _, help_text = line.removeprefix("  make ").partition(" ")
            listed.append((group, name, help_text.strip()))
        else:
            group = line
    assert listed == [(target.group, target.name, target.help) for target in commands.targets()]
    assert len({group for group, *_ in listed}) > 5


def test_no_page_is_left_over() -> None:
    written_by_hand = {"glossary"}
    assert {path.stem for path in pages.FOLDER.iterdir()} == set(pages.PAGES) | written_by_hand


@pytest.mark.parametrize("name", ["config", "study", "site", "dataset", "factors"])
def test_every_key_says_what_it_means(name: str) -> None:
    assert [key for key, *_, meaning in settings.rows(name) if not meaning] == []


@pytest.mark.parametrize("name", ["design", "runs", "epochs", "network", "record", "collective_benchmark"])
def test_every_column_of_records_says_what_it_means(name: str) -> None:
    written = yaml.safe_load((SCHEMAS / f"{name}.schema.yaml").read_text())["properties"]
    assert [
        field for field, _, meaning in products.fields(written) if not meaning and field != "`factors`"
    ] == []


def test_page_of_factors_lists_levels_that_sites_lack() -> None:
    defaults = {name: rules["default"] for name, rules in factor_table().items() if "default" in rules}
    cell = {**defaults, "model": "small-cnn", "dataset": "digits", "nodes": 1, "batch_size": 16}
    local, missing = load_site("local"), set()
    for site in (local, replace(local, deployment="apptainer")):
        for framework, parallelism in itertools.product(framework_names(), ("data", "tensor2")):
            plain = {**cell, "framework": framework, "parallelism": parallelism}
            missing |= {
                f"{factor}: {level}"
                for factor, rules in factor_table().items()
                for level in rules.get("enum", ())
                if unsupported_reason(site, {**plain, factor: level}) and not unsupported_reason(site, plain)
            }
    section = pages.text("factors").partition("## What depends on the site")[2]
    levels = {
        level for row in section.splitlines() for level in re.findall("`(.*?)`", row.partition(" | ")[0])
    }
    assert missing and missing == {level for level in levels if ":" in level}


def test_limits_defaults_and_levels_are_told() -> None:
    rows = {row[0]: row for name in ("factors", "site", "study") for row in settings.rows(name)}
    assert rows["`augmentation`"][1:3] == ["`none`, `flip`, `flip-crop`", "`none`"]
    assert rows["`nodes`"][1] == "whole number, at least 1"  # the site's
    assert rows["`momentum`"][1] == "number, at least 0, less than 1"
    assert rows["`installed.NAME.setup`"][1] == "list", "below a name of the user's choice"
    assert rows["`cores`"][1] == "whole number, at least 1; or `auto`"


@pytest.mark.parametrize(
    ("factor", "level", "able"),
    [("tensor_sharding", "sequence", {"pytorch-mesh"}), ("sharding", "optimizer", {"deepspeed", "jax"})],
)
def test_factors_of_an_axis_need_the_axis(factor: str, level: str, able: set[str]) -> None:
    rows = {tuple(row[:2]): row[2] for row in settings.factors()["restricted_levels"]}
    assert set(re.findall(r"`([\w-]+)`", rows[f"`{factor}`", f"`{level}`"])) == able
    assert (f"`{factor}`", "`parameters`") not in rows and (f"`{factor}`", "`layers`") not in rows


def test_the_example_of_a_data_set_is_one(tmp_path) -> None:
    _, _, example = pages.text("configuration").partition("```yaml\nmy-images:")
    own = tmp_path / "datasets.yaml"
    own.write_text(f"my-images:{example.partition('```')[0]}")
    assert "my-images" in read_datasets(DATASETS, own)


def test_a_target_is_told_with_the_variables_that_it_reads() -> None:
    by_name = {target.name: target for target in commands.targets()}
    assert by_name["figures"].variables == ("SITE", "STUDY")
    assert by_name["frameworks-test"].variables == ("ARGS", "SITE")
    assert by_name["lint"].variables == ()
    assert [name for name, target in by_name.items() if not target.group] == ["help"]


def test_every_option_of_every_verb_is_on_the_page() -> None:
    page = pages.text("commands")
    assert len(commands.verbs()) > 25
    for name, verb in commands.verbs().items():
        part = page.partition(f"#### ringside {name}\n")[2].partition("\n#")[0]
        options = [
            spelling for parameter in verb.params for spelling in parameter.opts if spelling.startswith("-")
        ]
        assert (
            part and [option for option in options if f"`{option}" not in part and option != "--help"] == []
        )


def test_the_catalogue_of_workflows_finds_what_it_looks_for() -> None:
    for name in ("workflow/Snakefile", "config/README.md", "README.md", "LICENSE"):
        assert (CHECKOUT / name).is_file(), name
    usage = yaml.safe_load((CHECKOUT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert set(usage) == {"mandatory-flags", "software-stack-deployment", "report"}
    assert set(usage["mandatory-flags"]) == {"desc", "flags"}
