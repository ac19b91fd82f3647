"""Content decides which products Snakemake makes again, whatever the dates of files say."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from common import prefork_server
from common.content_digests import read_record
from support.oldest_snakemake import oldest_snakemake
from support.small_workflow import SmallWorkflow

pytestmark = pytest.mark.workflow

BOTH_JOBS = {"part": 1, "sum": 1}
PART = "results/s/a.txt"
RECORD = "results/s/made_of/a.txt.json"


@pytest.fixture(scope="module", params=["newest", pytest.param("oldest", marks=pytest.mark.versions)])
def command(request: pytest.FixtureRequest) -> list[str]:
    """Snakemake, forked from a process that has imported it, and the oldest one (make versions-test)."""
    if request.param == "oldest":
        return oldest_snakemake()
    os.environ.setdefault(prefork_server.SERVER_VARIABLE, prefork_server.start_server())
    return [sys.executable, "-IS", prefork_server.__file__, "snakemake"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, command: list[str]) -> Path:
    workflow = SmallWorkflow(tmp_path_factory.mktemp("small") / "workflow", command)
    assert workflow.run() == {"part": 2, "sum": 1}
    return workflow.folder


@pytest.fixture
def small(tmp_path: Path, finished: Path, command: list[str]) -> SmallWorkflow:
    workflow = SmallWorkflow(tmp_path / "workflow", command)
    shutil.rmtree(workflow.folder)
    shutil.copytree(finished, workflow.folder)
    return workflow


@pytest.mark.parametrize(
    ("file", "old", "new", "jobs"),
    [
        pytest.param("data/a.txt", "data/a.txt", "else", BOTH_JOBS, id="data"),
        pytest.param(PART, "one", "two", BOTH_JOBS, id="product"),
        pytest.param(RECORD, "{", "[", BOTH_JOBS, id="broken record"),
        pytest.param("program.py", "NAME", "OTHER", {"part": 2, "sum": 1}, id="program"),
        pytest.param("other.py", "NAME", "OTHER", {"sum": 1}, id="other program"),
        pytest.param("other.py", '"""other.py"""', "# words", {}, id="words of a program"),
        pytest.param(
            "Snakefile", 'word=lambda wildcards: "one"', 'word="two"', {"part": 2, "sum": 1}, id="parameter"
        ),
        pytest.param(
            "Snakefile", "cat {input.parts} >", "cat {input.parts}  {input.parts} >", {"sum": 1}, id="command"
        ),
        pytest.param(
            "Snakefile", "cat {input.parts} >", "cat   {input.parts} >", {}, id="space in a command"
        ),
    ],
)
def test_content_decides(small: SmallWorkflow, file: str, old: str, new: str, jobs: dict[str, int]) -> None:
    shutil.rmtree(small.folder / ".snakemake")  # whose memory is not asked
    small.write(file, small.read(file).replace(old, new))
    assert small.run() == jobs
    assert small.run() == {}


def test_snakemakes_memory_hides_no_change(small: SmallWorkflow) -> None:
    for number in range(2):  # the second time, its memory has a mark among the inputs
        small.write(PART, f"{number}\n")
        assert small.run() == BOTH_JOBS
        assert small.run() == {}


def test_dates_decide_nothing(small: SmallWorkflow) -> None:
    for file in ("data/a.txt", "program.py"):
        small.write(file, small.read(file), age_s=-60)
    small.write(PART, small.read(PART))
    assert small.run() == {}


def test_input_with_a_date_to_come_is_used(small: SmallWorkflow) -> None:
    small.write("data/a.txt", "else\n", age_s=-86400)
    assert small.run() == BOTH_JOBS
    assert small.run() == {} and "else" in small.read("results/s/sum.txt")


def test_missing_product_is_made_again(small: SmallWorkflow) -> None:
    (small.folder / PART).unlink()
    assert small.run() == BOTH_JOBS


@pytest.mark.parametrize("quiet", ["progress", "rules", "all"])
def test_quiet_caller_gets_records_too(small: SmallWorkflow, quiet: str) -> None:
    shutil.rmtree(small.folder / "results")
    small.run("--quiet", quiet)
    assert small.run() == {}


def test_record_names_what_a_product_is_made_of(small: SmallWorkflow) -> None:
    record = read_record(small.folder / RECORD)
    assert record is not None and record.params == {"word": "one"}
    assert set(record.inputs) == {"data/a.txt", "program.py"} and set(record.outputs) == {PART}
    assert "cat {input.data} > {output}" in record.command


def test_failed_job_leaves_no_record(small: SmallWorkflow) -> None:
    small.write("Snakefile", small.read("Snakefile").replace("echo {params.word} >> {output}", "exit 1"))
    small.run("--keep-going", status=1)  # whichever part is first
    assert not (small.folder / RECORD).exists()


def test_input_that_changes_meanwhile_leaves_no_record(small: SmallWorkflow) -> None:
    small.write(
        "Snakefile", small.read("Snakefile").replace("echo {params", "echo >> {input.data}; echo {params")
    )
    small.run()
    assert not (small.folder / RECORD).exists()


def test_dry_run_changes_no_file(small: SmallWorkflow) -> None:
    small.write("data/a.txt", "else\n", age_s=-86400)
    files = sorted(
        path for path in small.folder.rglob("*") if path.is_file() and ".snakemake" not in path.parts
    )
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in files]
    assert small.run("--dry-run") == BOTH_JOBS
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in files] == before


def test_touched_product_is_not_certified(small: SmallWorkflow) -> None:
    small.write("data/a.txt", "else\n")
    assert small.run("--touch") == BOTH_JOBS
    assert small.run() == BOTH_JOBS
