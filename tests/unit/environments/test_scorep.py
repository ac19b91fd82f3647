"""What starts a program under Score-P.

A script stands in for Score-P's own, which say their version and make a library.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import InputError
from common.shell import capture
from environments import scorep
from support.refusals import assert_refusal

PREFIX = Callable[..., Path]


@pytest.fixture
def prefix(tmp_path: Path) -> PREFIX:
    """A folder with these scripts as its programs."""

    def write_programs(**scripts: str) -> Path:
        programs = tmp_path / "prefix" / "bin"
        programs.mkdir(parents=True)
        for name, lines in scripts.items():
            (programs / name.replace("_", "-")).write_text(f"#!/bin/sh\n{lines}\n")
            (programs / name.replace("_", "-")).chmod(0o755)
        return tmp_path / "prefix"

    return write_programs


def test_its_version_is_what_it_says(prefix: PREFIX) -> None:
    assert scorep.version(prefix(scorep_config="echo Score-P 8.4")) == "8.4"
    assert scorep.version(Path("/nowhere")) is None


def test_a_program_is_started_with_what_it_preloads(prefix: PREFIX, tmp_path: Path) -> None:
    library = "libc.so.6"  # that every program has anyway
    score_p = prefix(
        scorep_preload_init=f'[ "$FROM_SETUP" ] || exit 1; echo "$@" >"{tmp_path}/asked"; echo {library}'
    )
    program, attempt = tmp_path / "a program", tmp_path / "attempt"
    program.write_text('#!/bin/sh\necho "$@" $LD_PRELOAD $SCOREP_EXPERIMENT_DIRECTORY $SCOREP_TOTAL_MEMORY\n')
    program.chmod(0o755)
    attempt.mkdir()
    script = scorep.write_start_script(score_p, str(program), attempt, ["export FROM_SETUP=1"])
    arguments = (tmp_path / "asked").read_text().strip()
    assert arguments == f"--value-only --mpp=mpi --thread=pthread {program} {attempt / scorep.START_FOLDER}"
    output = capture([script, "--x", "y z"], check=True).stdout
    assert output == f"--x y z {library} {attempt / scorep.FOLDER} {scorep.MEMORY}\n"
    variables = {**os.environ, "SCOREP_TOTAL_MEMORY": "1G"}
    assert " 1G\n" in capture([script], check=True, env=variables).stdout


def test_what_cannot_be_made_is_one_line(prefix: PREFIX, tmp_path: Path) -> None:
    score_p = prefix(scorep_preload_init="echo first >&2; echo no compiler >&2; exit 1")
    with pytest.raises(InputError) as refused:
        scorep.write_start_script(score_p, "/bin/true", tmp_path)
    tool = str(score_p / "bin" / "scorep-preload-init")
    assert_refusal(refused.value, "command-failed", "", ["no compiler"], file=tool)
