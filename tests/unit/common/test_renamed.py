"""Tables and written files with older names are read as those with the current ones."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import yaml

from common import renamed
from common.errors import InputError
from common.files import CHECKOUT, load_yaml
from common.keys import Keys, key, load
from common.tables import read_results, read_table
from declared.study import load_study

OLDER = {
    "columns": {"steps_of_optimizer": "steps", "place": "site"},
    "values": {"status": {"succeeded": "ok"}},
    "keys": {"many": "count", "pieces": "parts"},
    "figures": {"scalability": "scaling"},
    "tables": {"speed": "speedup"},
}
KEPT_RUNS = CHECKOUT / "docs" / "campaigns" / "prediction-virtual" / "runs.csv"


@dataclass(frozen=True)
class Part(Keys):
    count: int = key("how many", ge=1)


@dataclass(frozen=True)
class Inventory(Keys):
    count: int = key("how many", default=1)
    parts: tuple[Part, ...] = key("parts", default=())
    limits: dict[str, int] = key("limits", default_factory=dict)


@pytest.fixture(autouse=True)
def older_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    file = tmp_path / "renamed.yaml"
    file.write_text(yaml.safe_dump({**load_yaml(renamed.FILE), "9.0.0": OLDER}))
    with monkeypatch.context() as changed:
        changed.setattr(renamed, "FILE", file)
        renamed._entries.cache_clear()
        yield
    renamed._entries.cache_clear()


def table(folder: Path) -> Path:
    """Return a kept campaign's runs.csv with older names."""
    header, *lines = KEPT_RUNS.read_text().replace(",ok,", ",succeeded,").splitlines()
    header = re.sub(r"\bsteps\b", "steps_of_optimizer", re.sub(r"\bsite\b", "place", header))
    file = folder / "runs.csv"
    file.write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    return file


def test_older_columns_and_values_are_read(tmp_path: Path) -> None:
    file = table(tmp_path)
    assert "succeeded" in file.read_text() and "steps_of_optimizer" in file.read_text()
    pd.testing.assert_frame_equal(read_table(file, "runs"), read_table(KEPT_RUNS, "runs"))


def test_older_columns_of_results_are_read(tmp_path: Path) -> None:
    read = read_results(table(tmp_path))
    pd.testing.assert_frame_equal(read, read_results(KEPT_RUNS))


def test_table_with_both_names_is_refused(tmp_path: Path) -> None:
    file = table(tmp_path)
    header, *lines = file.read_text().splitlines()
    file.write_text("\n".join([f"{header},steps", *(f"{line},1" for line in lines), ""]))
    with pytest.raises(InputError) as refused:
        read_table(file, "runs")
    assert (refused.value.code, refused.value.key) == ("unknown-key", "steps_of_optimizer")


def test_older_keys_are_read_with_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "whole.yaml"
    file.write_text(yaml.safe_dump({"many": 2, "pieces": [{"many": 3}], "limits": {"many": 4}}))
    assert load(Inventory, file) == load(Inventory, file) == Inventory(2, (Part(3),), {"many": 4})
    lines = capsys.readouterr().err.splitlines()
    assert [re.findall(r"([\w.]+): '(\w+)' is now '(\w+)'", line) for line in lines] == [
        [("many", "many", "count")],
        [("pieces", "pieces", "parts")],
        [("parts.0.many", "many", "count")],
    ]
    assert all(str(file) in line and "9.0.0" in line for line in lines)


@pytest.mark.parametrize("content", [{"many": 1, "count": 2}, {"parts": [{"many": 0}]}])
def test_older_key_excuses_no_mistake(tmp_path: Path, content: object) -> None:
    file = tmp_path / "whole.yaml"
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(InputError) as refused:
        load(Inventory, file)
    assert refused.value.key in ("many", "parts.0.count")


def test_older_products_of_a_study_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = load_yaml(CHECKOUT / "config" / "studies" / "quickstart.yaml")
    figures, paper = [{"kind": "scalability"}], {"figures": ["scalability"], "tables": ["speed"]}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(study | {"figures": figures, "paper": paper}))
    read = load_study("s", tmp_path)
    assert [figure.kind for figure in read.figures] == ["scaling"]
    assert (read.paper.figures, read.paper.tables) == (("scaling",), ("speedup",))
    keys = [line.split(": ")[2] for line in capsys.readouterr().err.splitlines()]
    assert keys == ["figures.0.kind", "paper.figures.0", "paper.tables.0"]


def test_no_older_name_outstays_its_version() -> None:
    (current,) = re.findall(r"^## ([\d.]+)", (CHECKOUT / "CHANGELOG.md").read_text(), re.M)[:1]
    versions = set(load_yaml(Path(renamed.__file__).with_name("renamed.yaml"))) - {"always"}
    numbers = {name: tuple(map(int, name.split("."))) for name in [current, *versions]}
    assert versions and all(numbers[version] > numbers[current] for version in versions)
