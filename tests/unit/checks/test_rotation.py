"""Together, the parts of the rotation run all of the named targets; each commit runs one of them."""

import re
from collections.abc import Iterator

import pytest

from checks import rotation
from common.files import CHECKOUT
from support import long_tests
from support.long_tests import load_long_tests

PARTS = rotation.load_parts()
RECIPES = dict(re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
CALLS = re.findall(r"^(?:make|retry) (.*)", (CHECKOUT / ".ci" / "run").read_text(), re.MULTILINE)
IN_CI = [word for call in CALLS for word in call.split() if word in RECIPES]
NAMED = [name for name in RECIPES if re.search(r"^bench-|-test$", name) and name not in IN_CI]
NODES = [(part.name, node) for part in PARTS for node in part.tests]
# What make test and make cluster-test leave out, apart from the long tests, which a list names.
DESELECTED = sorted(
    {*re.findall(r"not ([a-z_]+)", RECIPES["test"] + RECIPES["cluster-test"])} - {"fault", "long"}
)
# How a file marks its tests: by name, for parameters that framework_params() gives, and in test_faults.py for
# all.
MARKS = {
    "every_framework": r"mark\.every_framework|\bframework_params\(",
    "every_image": r"mark\.every_image",
}


def test_every_named_target_has_a_part() -> None:
    assert len(NAMED) > 15
    assert set(NAMED) == {part.target for part in PARTS}


def test_page_of_checks_has_every_named_target() -> None:
    page = (CHECKOUT / "docs" / "development" / "checks.md").read_text()
    assert set(re.findall(r"^\| `make ([a-z-]+)` \|", page, re.MULTILINE)) - set(IN_CI) == set(NAMED)


def test_names_of_parts_are_unique() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)


@pytest.mark.parametrize("commit", ["0" * 40, "f" * 40, "b391a24f6d1c"])
def test_every_commit_has_a_part(commit: str) -> None:
    assert rotation.choose_part(PARTS, commit) in PARTS


def test_commits_choose_every_part() -> None:
    chosen = {rotation.choose_part(PARTS, f"{number:040x}").name for number in range(len(PARTS))}
    assert chosen == {
        part.name for part in PARTS if part.minutes is not None and part.minutes <= rotation.MAX_MINUTES
    }
    assert chosen


@pytest.mark.parametrize(("part", "node"), NODES)
def test_node_of_a_part_exists(part: str, node: str) -> None:
    file, _, function = node.partition("::")
    assert not function or function.partition("[")[0] in functions(file)


@pytest.mark.parametrize("file", sorted({node.partition("::")[0] for _, node in NODES}))
def test_parts_have_all_functions_of_a_file(file: str) -> None:
    listed = {node.partition("::")[2].partition("[")[0] for _, node in NODES if node.startswith(file)}
    assert "" in listed or listed == functions(file)


def test_every_reduced_study_has_a_part() -> None:
    studies = {path.stem for path in (CHECKOUT / "config" / "studies").glob("*-small.yaml")}
    assert studies == {
        match[1] for _, node in NODES if (match := re.search(r"test_studies\.py::.*\[(.*)\]", node))
    }


@pytest.mark.parametrize("marker", DESELECTED)
def test_every_deselected_test_is_in_a_target(marker: str) -> None:
    """A file with tests that `make test` or `make cluster-test` leaves out is named by another target and by
    a part.
    """
    named = "".join(RECIPES[name] for name in NAMED)
    listed = " ".join(
        [node for _, node in NODES] + [RECIPES[part.target] for part in PARTS if not part.tests]
    )
    files = list(files_with(MARKS.get(marker, rf"mark\.{marker}\b")))
    folders = {"simulation": ["tests/unit"], "thorough": ["tests"]}.get(marker, [])
    assert (
        files and [file for file in files if file not in named and not file.startswith(tuple(folders))] == []
    )
    assert [file for file in files if file not in listed] == []


def functions(file: str) -> set[str]:
    """Return the names of a file's test functions."""
    return set(re.findall(r"^def (test_\w+)", (CHECKOUT / file).read_text(), re.MULTILINE))


def files_with(pattern: str) -> Iterator[str]:
    """Yield the test files that have a pattern."""
    for folder in ("unit", "gpu", "workflow", "cluster"):
        for path in sorted((CHECKOUT / "tests" / folder).rglob("test_*.py")):
            if "checks" not in path.parts[-2:] and re.search(pattern, path.read_text()):
                yield str(path.relative_to(CHECKOUT))


def test_long_tests_are_each_in_one_part() -> None:
    files = [file for part in long_tests.split() for file in part]
    unsplit = [
        file for file, tests in long_tests.load_long_tests()["long"].items() if not isinstance(tests, dict)
    ]
    assert sorted(files + unsplit) == sorted(long_tests.file_seconds())
    assert unsplit and set(unsplit) <= {node for _, node in NODES}
    assert all(long_tests.minutes(part) <= rotation.MAX_MINUTES for part in long_tests.split())


@pytest.mark.parametrize("file", sorted(long_tests.file_seconds()))
def test_long_tests_exist(file: str) -> None:
    listed = load_long_tests()["long"][file]
    names = listed if isinstance(listed, dict) else {}
    text = (CHECKOUT / file).read_text()
    assert [name for name in names if f"def {name.partition('[')[0].rpartition('::')[2]}(" not in text] == []


@pytest.mark.parametrize("node", load_long_tests()["always"])
def test_what_make_test_always_runs_exists(node: str) -> None:
    file, _, name = node.partition("::")
    assert name.partition("[")[0] in functions(file) and not long_tests.is_long(node)
