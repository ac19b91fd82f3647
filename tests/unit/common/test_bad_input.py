"""Mutated input works, or ends in one clear line before anything is done.

Hypothesis mutates the values of shipped files and recorded data in hundreds of ways: never a traceback, a
hang, or half a file. `make fuzz` mutates their bytes.
"""

import contextlib
import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis import study as analysis
from common.errors import InputError
from common.files import CHECKOUT
from common.keys import load
from common.shell import capture
from common.tables import read_table
from declared import frameworks as described
from declared.datasets import read_datasets
from declared.environments import EnvironmentKeys
from declared.frameworks import FRAMEWORKS, load_framework
from declared.site import load_site
from declared.study import load_study
from declared.topologies import TopologyKeys
from plan.design import plan_design
from provenance import manifest
from records.record_checks import load_record
from support.recorded import content as record_content
from support.synthetic import campaign, write_frames

HANG_S = 20
LONGEST = 2000  # characters of a complaint
LOG = Path(__file__).parents[1] / "ranks" / "lbann_output" / "validation.log"


MUTATION_SHARE = float(
    os.environ.get("RINGSIDE_MUTATIONS", "0.25")
)  # of the counts below; from 1 on with a random seed
MIN_MUTATIONS = 3


def mutated(examples: int) -> Any:
    """Return settings for MUTATION_SHARE of `examples`; a share below 1 gives the same ones in every run."""
    return settings(
        max_examples=max(MIN_MUTATIONS, round(MUTATION_SHARE * examples)),
        deadline=None,
        derandomize=MUTATION_SHARE < 1,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class Hang(BaseException):
    """Nothing came of it in HANG_S."""


pytestmark = pytest.mark.slow


@contextlib.contextmanager
def works_or_complains(*accepted: type[Exception]) -> Iterator[None]:
    """What is done here ends in time: well, or by an InputError (or `accepted`) in one line."""

    def ring(signum: int, frame: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(HANG_S)
    try:
        yield
    except (InputError, *accepted) as error:
        message = str(error)
        assert message and "\n" not in message, message
        assert len(message) < LONGEST, message
        assert not isinstance(error, InputError) or re.fullmatch("[a-z]+(-[a-z]+)*", error.code), error.code
        assert getattr(error, "code", "") != "broken-rule", (
            f"pydantic refuses what the JSON schema takes: {error}"
        )
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# What stands where something else is expected.
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**6, 2**31, 2**63, 10**30, -(10**30)]),
    st.floats(),
    st.sampled_from(
        [
            "",
            " ",
            "~",
            "../../etc",
            "a/b",
            "{x}",
            "'",
            "\x00",
            "\n",
            "é" * 300,
            "yes",
            "1e-3",
            "2020-01-01",
            "*",
        ]
    ),
    st.text(max_size=8),
    st.lists(st.integers(-2, 9), max_size=4),
    st.dictionaries(st.text(max_size=5), st.integers(0, 3), max_size=3),
)


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in nested lists and mappings."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [path for key, entry in entries for path in ((*above, key), *places(entry, (*above, key)))]


@st.composite
def nested(draw: Any, original: Any) -> Any:
    """Lists and mappings of which one or two entries are replaced, taken out, renamed, doubled or moved."""
    value = deepcopy(original)
    for _ in range(draw(st.integers(1, 2))):
        if not (locations := places(value)):
            break
        *path, last = draw(st.sampled_from(locations))
        holder = value
        for key in path:
            holder = holder[key]
        match draw(st.sampled_from(["replace", "replace", "remove", "rename", "wrap", "swap"])):
            case "replace":
                holder[last] = draw(ODD)
            case "remove":
                del holder[last]
            case "rename" if isinstance(holder, dict):
                holder[draw(st.one_of(st.text(max_size=6), st.just(f"{last}s")))] = holder.pop(last)
            case "wrap":
                holder[last] = draw(
                    st.sampled_from([[holder[last]], [holder[last]] * 2, {"x": holder[last]}])
                )
            case _:
                place = draw(st.sampled_from(locations))
                with contextlib.suppress(KeyError, IndexError, TypeError):
                    copied = value
                    for key in place:
                        copied = copied[key]
                    holder[last] = deepcopy(copied)
    return value


def yaml_of(name: str) -> Any:
    """Return the content of a YAML file of the checkout."""
    return yaml.safe_load((CHECKOUT / name).read_bytes())


def mutated_yaml(*names: str) -> Any:
    """Return a strategy of YAML files: mutations of what one of these files of the checkout says."""
    return st.one_of(*(nested(yaml_of(name)) for name in names)).map(
        lambda changed: yaml.safe_dump(changed, allow_unicode=True).encode("utf-8", "replace")
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad")


@mutated(200)
@given(content=mutated_yaml("config/studies/quickstart.yaml"))
def test_studies(folder: Path, content: bytes) -> None:
    (folder / "bad.yaml").write_bytes(content)
    with works_or_complains():
        study = load_study("bad", folder)
        if len(list(zip(range(2000), study.combinations(), strict=False))) < 2000:
            plan_design(study, load_site("local"))


@mutated(150)
@given(content=mutated_yaml("config/sites/local.yaml", "config/sites/slurm-example.yaml"))
def test_sites(folder: Path, content: bytes) -> None:
    (folder / "bad.yaml").write_bytes(content)
    with works_or_complains():
        plan_design(load_study("quickstart"), load_site("bad", folder))


@mutated(100)
@given(
    content=mutated_yaml(
        *(f"workflow/scripts/ranks/frameworks/{name}/framework.yaml" for name in ("pytorch-ddp", "lbann"))
    )
)
def test_frameworks(folder: Path, content: bytes) -> None:
    frameworks = folder / "frameworks"
    if not frameworks.exists():
        shutil.copytree(FRAMEWORKS, frameworks)
    (frameworks / "lbann" / "framework.yaml").write_bytes(content)
    with pytest.MonkeyPatch.context() as patch, works_or_complains():
        patch.setattr(described, "FRAMEWORKS", frameworks)
        load_framework.__wrapped__("lbann")


@mutated(100)
@given(
    chosen=st.sampled_from(
        [
            (EnvironmentKeys, "containers/horovod-tensorflow/environment.yaml"),
            (EnvironmentKeys, "containers/lbann/environment.yaml"),
            (TopologyKeys, "config/topologies/p100.yaml"),
        ]
    ).flatmap(lambda case: st.tuples(st.just(case[0]), mutated_yaml(case[1])))
)
def test_environments_and_topologies(folder: Path, chosen: tuple[type, bytes]) -> None:
    keys, content = chosen
    (folder / "bad.yaml").write_bytes(content)
    with works_or_complains():
        load(keys, folder / "bad.yaml")


@mutated(80)
@given(content=mutated_yaml("workflow/scripts/datasets/table.yaml"))
def test_tables_of_data_sets(folder: Path, content: bytes) -> None:
    (folder / "table.yaml").write_bytes(content)
    with works_or_complains():
        read_datasets(folder / "table.yaml", folder / "none.yaml")


def csv_files() -> dict[str, bytes]:
    """The tables of a small made-up campaign, and of a kept one's network."""
    runs, epochs = campaign(2)
    chosen = runs[runs["framework"].isin(["pytorch-single", "pytorch-ddp"]) & (runs["batch_size"] == 32)]
    with TemporaryDirectory() as folder:
        files = write_frames(Path(folder), chosen, epochs[epochs["run_id"].isin(chosen["run_id"])])
        tables = {file.stem: file.read_bytes() for file in files}
    network_lines = (
        (CHECKOUT / "docs" / "campaigns" / "prediction-virtual" / "network.csv").read_bytes().split(b"\n")
    )
    return tables | {"network": b"\n".join(network_lines[:40]) + b"\n"}


TABLES = csv_files()


@st.composite
def fields(draw: Any, content: bytes) -> bytes:
    """A CSV of which some fields are others."""
    rows = list(csv.reader(io.StringIO(content.decode())))
    for _ in range(draw(st.integers(1, 3))):
        line = draw(st.integers(0, len(rows) - 1))
        place = draw(st.integers(0, len(rows[line]) - 1))
        odd = [
            "",
            "nan",
            "inf",
            "-1",
            "0",
            "1e308",
            "1e-320",
            "x",
            "1,5",
            "true",
            "2.0",
            '"',
            "ok",
            "failed",
            " 3",
            "9" * 400,
        ]
        rows[line][place] = draw(
            st.one_of(st.sampled_from(odd), st.text(max_size=6).filter(lambda text: "\r" not in text))
        )
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode("utf-8", "replace")


def analysed(folder: Path, runs: str) -> None:
    """All tables of these runs, and of epochs that are as they should be."""
    (folder / "whole-epochs.csv").write_bytes(TABLES["epochs"])
    analysis.main(runs=folder / runs, epochs=folder / "whole-epochs.csv", out=folder / "tables")


def test_fuzzed_examples_are_valid_before_mutation(folder: Path) -> None:
    """Otherwise a refusal would not show that the mutation caused it."""
    for name, content in TABLES.items():
        (folder / f"{name}.csv").write_bytes(content)
        assert len(read_table(folder / f"{name}.csv", name)) > 3
    analysed(folder, "runs.csv")
    (folder / "record.json").write_text(json.dumps(RECORD))
    assert load_record(folder / "record.json")["status"] == "ok"
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    assert manifest.read_manifest(folder / "manifest.json") == MANIFEST


@mutated(200)
@given(data=st.data())
def test_tables(folder: Path, data: Any) -> None:
    name = data.draw(st.sampled_from(list(TABLES)))
    (folder / f"{name}.csv").write_bytes(data.draw(fields(TABLES[name])))
    with works_or_complains():
        read_table(folder / f"{name}.csv", name)


@mutated(15)
@given(content=fields(TABLES["runs"]))
def test_tables_are_analysed_or_refused_before_any_output(folder: Path, content: bytes) -> None:
    (folder / "whole.csv").write_bytes(content)
    shutil.rmtree(folder / "tables", ignore_errors=True)
    refused = True
    with works_or_complains():
        analysed(folder, "whole.csv")
        refused = False
    assert refused != (folder / "tables").exists()
    assert not list(folder.rglob("*.partial"))


RECORD = record_content()


@mutated(150)
@given(changed=nested(RECORD))
def test_records(folder: Path, changed: Any) -> None:
    (folder / "record.json").write_text(json.dumps(changed))
    with works_or_complains():
        record = load_record(folder / "record.json")
        assert record["status"] != "broken" or (record["reason"] and "\n" not in record["reason"])


MANIFEST = {
    "study": "x", "sites": ["local"], "records": "records", "commit": None, "changed": [], "python": "3.11",
    "libraries": {},
    "sources": {"study": {"a": "0" * 64}, "locks": {}, "code": {}, "tables": {}, "records": {}},
    "measured_with": {"environment": {}, "code": {}, "data": {}},
    "products": {"figures/a": {"files": {"results/x/figures/a.pdf": "0" * 64}, "made_of": ["b"]}},
}  # fmt: skip


@mutated(80)
@given(changed=nested(MANIFEST))
def test_manifests(folder: Path, changed: Any) -> None:
    (folder / "manifest.json").write_text(json.dumps(changed))
    with works_or_complains():
        manifest.read_manifest(folder / "manifest.json")


@pytest.fixture(scope="module")
def checkout(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, bytes], subprocess.CompletedProcess[str]]:
    """Says `./ringside plan` with a file in place of a shipped one."""
    copied = tmp_path_factory.mktemp("checkout")
    for name in ("config", "containers", "workflow"):
        shutil.copytree(CHECKOUT / name, copied / name, ignore=shutil.ignore_patterns("__pycache__"))

    def plan(name: str, content: bytes) -> subprocess.CompletedProcess[str]:
        before = (copied / name).read_bytes()
        (copied / name).write_bytes(content)
        try:
            return capture(
                [sys.executable, "-m", "plan.cost", "--config", "study=quickstart", "site=local"],
                cwd=copied,
                env={"PYTHONPATH": str(copied / "workflow" / "scripts"), "HOME": str(copied), "PATH": ""},
                timeout=HANG_S,
            )
        finally:
            (copied / name).write_bytes(before)

    return plan


@pytest.mark.parametrize(
    "name", ["config/config.yaml", "config/studies/quickstart.yaml", "config/sites/local.yaml"]
)
def test_programs_end_with_one_line_and_a_status(checkout: Any, name: str) -> None:
    @mutated(4)
    @given(bad=mutated_yaml(name))
    def mutates(bad: bytes) -> None:
        done = checkout(name, bad)
        assert done.returncode in (0, 2), done.stderr
        assert "Traceback" not in done.stderr
        if done.returncode:
            (line,) = done.stderr.strip().splitlines()
            assert line.startswith("ringside: ")

    mutates()
