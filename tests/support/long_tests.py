"""List the long tests: `make long-test` runs all of them, and CI runs one part of them per commit.

`tests/long.yaml` lists them with their seconds. After a measurement, write it again:

    make test ARGS=--junitxml=short.xml; make long-test ARGS=--junitxml=long.xml
    PYTHONPATH=tests .venv/bin/python -m support.long_tests short.xml long.xml
"""

import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

TESTS = Path(__file__).resolve().parents[1]
FILE = TESTS / "long.yaml"
MIN_SECONDS = 4.0
CLUSTER = "tests/cluster/"
N_PARTS = 10
N_WORKERS = 2
HEAD = """\
# Tests that take 4 s or more on two cores, with their seconds; a file with a number is long as a whole, since its tests need each other.
# `always` names tests that make test runs all the same. tests/support/long_tests.py writes this file.

"""


@cache
def load_long_tests() -> dict[str, Any]:
    """Return `always`: node ids, and `long`: file -> seconds, or file -> test -> seconds."""
    listed: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return listed


def is_long(node: str) -> bool:
    """Return whether a test, given by its node id, runs only in make long-test."""
    file, _, name = node.partition("::")
    listed = load_long_tests()["long"].get(file, {})
    return not isinstance(listed, dict) or name in listed


def file_seconds() -> dict[str, float]:
    """Return the seconds of the long tests of each file."""
    return {
        file: sum(tests.values()) if isinstance(tests, dict) else tests
        for file, tests in load_long_tests()["long"].items()
    }


def split() -> list[list[str]]:
    """Return the files of each part, filled with the longest file first, always into the shortest part.

    Files that are long as a whole, or need a virtual cluster, are in none; rotation.yaml has parts of them.
    """
    seconds = file_seconds()
    indivisible = [file for file, tests in load_long_tests()["long"].items() if not isinstance(tests, dict)]
    parts: list[list[str]] = [[] for _ in range(N_PARTS)]
    splittable = {file for file in seconds if file not in indivisible and not file.startswith(CLUSTER)}
    for file in sorted(splittable, key=lambda file: (-seconds[file], file)):
        min(parts, key=lambda part: sum(seconds[name] for name in part)).append(file)
    return parts


def minutes(part: list[str]) -> float:
    """Return the minutes of a part on N_WORKERS workers, at least those of its longest file."""
    seconds = [file_seconds()[file] for file in part]
    return round(max(sum(seconds) / N_WORKERS, *seconds, 0.0) / 60, 1)


def measured(reports: list[Path]) -> dict[str, dict[str, float]]:
    """Return file -> test -> seconds of junit reports."""
    seconds: dict[str, dict[str, float]] = defaultdict(dict)
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 (our own report)
            module = case.attrib["classname"].split(".")
            at = next(number for number, part in enumerate(module) if part.startswith("test_")) + 1
            name = "::".join([*module[at:], case.attrib["name"]])
            seconds["/".join(module[:at]) + ".py"][name] = float(case.attrib["time"])
    return seconds


def write(reports: list[Path]) -> None:
    """Replace the list by the long tests of junit reports."""
    listed = load_long_tests()
    long: dict[str, Any] = {}
    for file, tests in sorted(measured(reports).items()):
        if not isinstance(listed["long"].get(file, {}), dict):
            long[file] = round(sum(tests.values()))
        elif slow := {
            name: round(seconds, 1)
            for name, seconds in sorted(tests.items())
            if seconds >= MIN_SECONDS and f"{file}::{name}" not in listed["always"]
        }:
            long[file] = slow
    save(listed["always"], long)


def save(always: list[str], long: dict[str, Any]) -> None:
    """Write both lists."""
    text = yaml.safe_dump({"always": always, "long": long}, width=1000, allow_unicode=True, sort_keys=False)
    FILE.write_text(HEAD + text, encoding="utf-8")


if __name__ == "__main__":
    write([Path(name) for name in sys.argv[1:]])
