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
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis import study as analysis
from common.errors import InputError
from common.files import CHECKOUT
from common.shell import capture
from fuzz.targets import TARGETS
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


def mutated_yaml(content: bytes) -> Any:
    """Return a strategy of YAML files: mutations of what one says."""
    return nested(yaml.safe_load(content)).map(
        lambda changed: yaml.safe_dump(changed, allow_unicode=True).encode("utf-8", "replace")
    )


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


MUTATORS = {
    ".yaml": mutated_yaml,
    ".json": lambda content: nested(json.loads(content)).map(lambda changed: json.dumps(changed).encode()),
    ".csv": fields,
}
MUTATED_TARGETS = [name for name, target in TARGETS.items() if Path(target.name).suffix in MUTATORS]


@pytest.mark.parametrize("name", MUTATED_TARGETS)
def test_readers(tmp_path: Path, name: str) -> None:
    target = TARGETS[name]
    mutations = [MUTATORS[Path(target.name).suffix](content) for content in target.seeds()]

    @mutated(60)
    @given(content=st.one_of(*mutations))
    def read(content: bytes) -> None:
        (tmp_path / target.name).write_bytes(content)
        with works_or_complains(*target.errors):
            target.read(tmp_path / target.name)

    read()


def test_tables_are_analysed_or_refused_before_any_output(tmp_path: Path) -> None:
    runs, epochs = campaign(2)
    chosen = runs[runs["framework"].isin(["pytorch-single", "pytorch-ddp"]) & (runs["batch_size"] == 32)]
    runs_csv, epochs_csv = write_frames(tmp_path, chosen, epochs[epochs["run_id"].isin(chosen["run_id"])])
    valid = runs_csv.read_bytes()
    tables = tmp_path / "tables"

    def analyse(content: bytes) -> None:
        """Write all tables of these runs, and of epochs that are as they should be."""
        (tmp_path / "mutated.csv").write_bytes(content)
        shutil.rmtree(tables, ignore_errors=True)
        analysis.main(runs=tmp_path / "mutated.csv", epochs=epochs_csv, out=tables)

    @mutated(15)
    @given(content=fields(valid))
    def read(content: bytes) -> None:
        refused = True
        with works_or_complains():
            analyse(content)
            refused = False
        assert refused != tables.exists()
        assert not list(tmp_path.rglob("*.partial"))

    analyse(valid)
    read()


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
    @given(bad=mutated_yaml((CHECKOUT / name).read_bytes()))
    def mutates(bad: bytes) -> None:
        done = checkout(name, bad)
        assert done.returncode in (0, 2), done.stderr
        assert "Traceback" not in done.stderr
        if done.returncode:
            (line,) = done.stderr.strip().splitlines()
            assert line.startswith("ringside: ")

    mutates()
