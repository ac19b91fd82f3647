"""Pages say what is there: every command is run by something, every file that they name exists, every example
is accepted.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from common.files import CHECKOUT, load_yaml
from common.keys import parse as parse_keys
from declared.commands import load_command
from declared.datasets import DatasetKeys
from declared.site import load_site
from declared.study import load_study
from declared.user_models import load_user_model
from plan.design import plan_design
from plan.site_limits import unsupported_reason
from ringside import arguments
from ringside.app import app
from ringside.commands import split_rest
from support.own_commands import commands_in
from support.pages import FORM, RINGSIDE, Page, lists, page, pages
from support.user_models import user_models_in

PAGES = list(pages())
LISTS = lists()
FOLDERS = ("benchmarks", "config", "containers", "docs", "profiles", "rules", "tests", "workflow")
FILE = re.compile(rf"^({'|'.join(FOLDERS)})/[\w./*-]*$")
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
OWN = re.compile(
    r"(^|/)(my-study|second-node|my-cluster|datasets|datasets\.lock|mine)\.|[/-](?!README)[A-Z_]{4,}\b"
)  # that a reader makes
FOLDER_OF_READER = "mine/"  # has no files here
README_BYTES = 6000


@pytest.mark.parametrize("text", PAGES, ids=lambda text: text.name)
def test_every_command_is_run_by_something(text: Page) -> None:
    assert [command for command in text.commands if not LISTS.cover(command)] == [], (
        "say in tests/support/commands.yaml what runs it"
    )


def test_the_lists_have_no_command_that_no_page_has() -> None:
    written_commands = {command for text in PAGES for command in text.commands}
    assert LISTS.commands - written_commands == set()
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    used = {command.split()[1] for command in written_commands if command.startswith("make ")}
    assert {target for target in used if "..." not in target} <= targets
    assert set(LISTS.targets) <= targets & used


def parse(command: Any, arguments: list[str], parent: Any = None) -> None:
    """Parse arguments as ringside does, without carrying anything out."""
    if arguments and arguments[0] in getattr(command, "commands", {}):
        name, *left = arguments
        parse(command.commands[name], left, command.make_context(command.name, arguments, parent=parent))
    else:
        command.make_context(command.name, arguments, parent=parent)


@pytest.mark.parametrize("text", PAGES, ids=lambda text: text.name)
def test_every_command_of_ringside_can_be_parsed(text: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ["my-study", "second-node", "my-cluster", "my-node"]  # studies and sites that a reader writes
    monkeypatch.setattr(
        arguments, "names_in", lambda folder: own + [file.stem for file in folder.glob("*.yaml")]
    )
    root = typer.main.get_command(app)
    for command in (line for line in text.commands if line.startswith(f"{RINGSIDE} ")):
        typed, _ = split_rest(shlex.split(command)[1:])
        if len(typed) == 1:  # a mention: what it needs is left out
            assert typed[0] in root.commands or typed[0].startswith("-"), command
        elif not FORM.search(command) and "--help" not in typed:
            parse(root, typed)


@pytest.mark.parametrize("by", sorted(set(LISTS.elsewhere.values())))
def test_what_is_said_to_run_a_command_is_there(by: str) -> None:
    file, _, name = by.partition("::")
    assert f"def {name}(" in (CHECKOUT / file).read_text()


@pytest.mark.parametrize("text", PAGES, ids=lambda text: text.name)
def test_every_file_that_a_page_names_is_there(text: Page) -> None:
    named = [span for span in text.spans if FILE.match(span) and not OWN.search(span)]
    assert [span for span in named if not list(CHECKOUT.glob(span.rstrip("/")))] == []
    folder = (CHECKOUT / text.name).parent
    assert [link for link in LINK.findall(text.prose) if not (folder / link).exists()] == []


def named_code() -> list[tuple[str, str]]:
    """Return the constants, functions and methods that pages for developers name, as in `check` (`plan/x.py`)."""
    pages = "\n".join(file.read_text() for file in (CHECKOUT / "docs" / "development").glob("adding-*.md"))
    pattern = r"((?:`[\w.]+`(?:,| or|) )+)\(`([\w/]+\.py)`\)"
    return [
        (name, file)
        for names, file in re.findall(pattern, pages)
        for name in re.findall(r"`([\w.]+)`", names)
        if not name.endswith(".py")
    ]


@pytest.mark.parametrize(("name", "file"), named_code())
def test_code_that_pages_name_exists(name: str, file: str) -> None:
    folder = CHECKOUT / "workflow" / "scripts" / ("" if "/" in file else "plan")
    *classes, last = name.split(".")
    text = (folder / file).read_text()
    assert re.search(rf"^ *(?:def )?{last}\b(?:\(|.* = )", text, re.MULTILINE)
    assert all(re.search(rf"^class {owner}\b", text, re.MULTILINE) for owner in classes)


def examples() -> list[tuple[str, str, str]]:
    """The examples of configuration: page, file, lines."""
    blocks = [(text.name, block.partition("\n")) for text in PAGES for block in text.blocks("yaml")]
    return [
        (name, head.removeprefix("# "), rest)
        for name, (head, _, rest) in blocks
        if head.startswith("# config/")
    ]


@pytest.mark.parametrize(("name", "file", "lines"), examples(), ids=lambda value: value.partition("\n")[0])
def test_every_example_of_configuration_is_accepted(name: str, file: str, lines: str, tmp_path: Path) -> None:
    keys = yaml.safe_load(lines)
    kind = Path(file).parent.name
    if kind == "config":
        for entry in keys.values() if file == "config/datasets.yaml" else []:
            parse_keys(DatasetKeys, entry, Path(name))
        return
    own = CHECKOUT / file
    study = yaml.safe_load(page("docs/tutorial/laptop.md").blocks("yaml")[0])
    is_part = kind == "studies" and "title" not in keys
    complete = load_yaml(own) if own.exists() else study if is_part else {}
    (tmp_path / own.name).write_text(yaml.safe_dump(complete | keys))
    if kind == "commands":
        keys["files"] = [file for file in keys.get("files", []) if not file.startswith(FOLDER_OF_READER)]
        (tmp_path / own.name).write_text(yaml.safe_dump(complete | keys))
        with commands_in(tmp_path):
            assert load_command(own.stem).name == own.stem
        return
    if kind == "models":
        with user_models_in(tmp_path):
            assert load_user_model(own.stem).name == own.stem
        return
    loaded = {"studies": load_study, "sites": load_site}[kind](own.stem, tmp_path)
    assert loaded.name == own.stem


def test_study_to_be_traced_is_complete_and_can_be_planned(tmp_path: Path) -> None:
    (text,) = (
        lines for name, file, lines in examples() if name == "docs/how-to/phases.md" and "studies" in file
    )
    (tmp_path / "my-study.yaml").write_text(text)
    runs = plan_design(load_study("my-study", tmp_path), load_site("local"))
    assert {run.levels["trace"] for run in runs} == {"none", "phases"} and len(runs) == 2 * 3 * (2 + 4)


def test_study_on_a_node_with_eight_gpus_can_be_planned(tmp_path: Path) -> None:
    for name, file, text in examples():
        if name == "docs/how-to/accelerators.md":
            (tmp_path / Path(file).name).write_text(text)
    site = load_site("my-node", tmp_path)
    runs = plan_design(load_study("my-study", tmp_path), site)
    assert (site.device, site.nodes, site.ranks_per_node, len(runs)) == ("cuda", 1, 8, 5 * 2 * 4)
    assert {run.levels["devices_per_node"] for run in runs} == {1, 2, 4, 8}
    assert {unsupported_reason(site, run.levels) for run in runs} == {None}


@pytest.mark.parametrize(
    ("language", "file"),
    [
        ("yaml", "workflow/scripts/declared/products/figures.yaml"),
        ("python", "workflow/scripts/figures/kinds/heat_map.py"),
    ],
)
def test_adding_a_figure_quotes_real_code(language: str, file: str) -> None:
    """Each part between the lines `...` of the first example in a language is in the file, in this order."""
    example = page("docs/development/adding-a-figure.md").blocks(language)[0]
    code = (CHECKOUT / file).read_text()
    for part in example.split("    ...\n"):
        assert part.strip() and part in code, f"not in {file}: {part}"
        code = code.partition(part)[2]


def test_the_readme_is_short() -> None:
    assert (CHECKOUT / "README.md").stat().st_size <= README_BYTES
