"""The page of all settings is what the schemas say; what the catalogue of workflows reads is there."""

import re

import yaml

from common.files import CHECKOUT
from common.schemas import schema
from declared import settings


def test_the_page_is_made_of_the_schemas() -> None:
    assert settings.PAGE.read_text(encoding="utf-8") == settings.page(), "say make settings"


def test_every_key_has_a_row_with_what_it_means() -> None:
    page = settings.page()
    for name in settings.FILES:
        for key, rules in schema(name)["properties"].items():
            (row,) = [line for line in settings.rows(name) if line.startswith(f"| `{key}` |")]
            assert row in page
            assert rules.get("description", "") == "" or row.split(" | ")[-1].strip(" |")


def test_limits_defaults_and_levels_are_told() -> None:
    rows = {re.match(r"\| `([^`]*)`", line)[1]: line for name in ("factors", "site") for line in settings.rows(name)}
    assert "| `none`, `flip`, `flip-crop` | `none` |" in rows["augmentation"]
    assert "| whole number, 1 to 65536 | **required** |" in rows["nodes"] or "at least 1" in rows["nodes"]
    assert "installed.NAME.executable" in rows, "keys below a name of the user's choice"


def test_the_catalogue_finds_what_it_looks_for() -> None:
    for name in ("workflow/Snakefile", "config/README.md", "README.md", "LICENSE"):
        assert (CHECKOUT / name).is_file(), name
    usage = yaml.safe_load((CHECKOUT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert set(usage) == {"mandatory-flags", "software-stack-deployment", "report"}
    assert set(usage["mandatory-flags"]) == {"desc", "flags"}
