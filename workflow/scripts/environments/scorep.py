"""Start MPI programs under Score-P, on sites that have installed both.

Programs are not changed. Score-P preloads a library, which `scorep-preload-init` generates and compiles, and
writes an archive in OTF2, the Open Trace Format 2.
"""

import functools
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from common.errors import InputError
from common.files import write_text
from common.shell import capture, shell_command

FOLDER = "score-p"  # output of Score-P in an attempt's folder
ANCHOR = Path(FOLDER) / "traces.otf2"
# Key rank_0_began: the beginning of rank 0's first phase, in s since 1970, by Score-P's clock.
CLOCK = Path(FOLDER) / "clock.json"
PACKAGE = "scorep"  # the name of Score-P among the packages of a run's record
START_FOLDER = "start-score-p"  # folder of an attempt while it runs
TIMEOUT_S = 120
# Buffer for the events of a rank, unless the site's variables set it. A full buffer is written during the
# run.
MEMORY = "256M"
PARADIGMS = ("--mpp=mpi", "--thread=pthread")
_START = """#!/bin/sh
export SCOREP_ENABLE_TRACING=true SCOREP_ENABLE_PROFILING=false \
SCOREP_TOTAL_MEMORY="${{SCOREP_TOTAL_MEMORY:-{memory}}}"
export SCOREP_TIMER=gettimeofday SCOREP_EXPERIMENT_DIRECTORY={folder}
export LD_PRELOAD={libraries}
exec {program} "$@"
"""


@functools.cache
def version(prefix: Path) -> str | None:
    """Return the version of the Score-P installed in a folder; None if it is missing or fails."""
    try:
        output = _run([str(prefix / "bin" / "scorep-config"), "--version"])
    except (OSError, subprocess.SubprocessError):
        return None
    return output.split()[-1] if output.split() else None


def write_start_script(prefix: Path, program: str, attempt: Path, setup: Sequence[str] = ()) -> Path:
    """Write the script that starts `program` under Score-P into an attempt's folder, and return its path.

    Args:
        prefix: Where Score-P is installed.
        program: The program that the script replaces.
        attempt: The attempt's folder, absolute.
        setup: The site's setup lines.

    Raises:
        InputError: If Score-P cannot generate the library.
    """
    folder = attempt / START_FOLDER
    folder.mkdir()
    tool = str(prefix / "bin" / "scorep-preload-init")
    try:
        libraries = _run(shell_command(setup, {}, [tool, "--value-only", *PARADIGMS, program, str(folder)]))
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or "").strip().splitlines()
        reason = lines[-1] if lines else f"status {error.returncode}"
        raise InputError("command-failed", f"failed: {reason}", file=tool, got=reason) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError("command-failed", str(error), file=tool) from None
    script = folder / Path(program).name
    values = {"folder": attempt / FOLDER, "libraries": libraries.splitlines()[-1], "program": program}
    write_text(
        script,
        _START.format(memory=MEMORY, **{name: shlex.quote(str(text)) for name, text in values.items()}),
    )
    script.chmod(0o755)
    return script


def _run(command: Sequence[str]) -> str:
    done = capture(command, check=True, timeout=TIMEOUT_S)
    return done.stdout.strip()
