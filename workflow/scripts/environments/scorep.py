"""Score-P, where a site has it: programs of MPI that the site has installed start under it, as they are, by a preloaded library.

Score-P makes that library of a few lines of C, with its own compiler (`scorep-preload-init`). What it then writes of a run is an archive of
OTF2, Score-P's Open Trace Format 2.
"""

import functools
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from common.errors import InputError
from common.files import write_text
from common.shell import shell_command

FOLDER = "score-p"  # of an attempt: what Score-P writes
ANCHOR = Path(FOLDER) / "traces.otf2"
CLOCK = (
    Path(FOLDER) / "clock.json"
)  # rank_0_began: when the first phase of rank 0 began, in s since 1970, as Score-P's clock counts
PACKAGE = "scorep"  # its name among the packages of a record
STARTER = "start-score-p"  # of an attempt, as long as it runs
PATIENCE_S = 120
MEMORY = "256M"  # for a rank's events, unless the site's variables say otherwise: what does not fit is written in the midst of a run
PARADIGMS = ("--mpp=mpi", "--thread=pthread")
_START = """#!/bin/sh
export SCOREP_ENABLE_TRACING=true SCOREP_ENABLE_PROFILING=false SCOREP_TOTAL_MEMORY="${{SCOREP_TOTAL_MEMORY:-{memory}}}"
export SCOREP_TIMER=gettimeofday SCOREP_EXPERIMENT_DIRECTORY={folder}
export LD_PRELOAD={libraries}
exec {program} "$@"
"""


@functools.cache
def version(prefix: Path) -> str | None:
    """The version of the Score-P that is installed in a folder; None where there is none, or none that can be asked."""
    try:
        said = _ask([str(prefix / "bin" / "scorep-config"), "--version"])
    except (OSError, subprocess.SubprocessError):
        return None
    return said.split()[-1] if said.split() else None


def starter(prefix: Path, program: str, attempt: Path, setup: Sequence[str] = ()) -> Path:
    """Write what starts `program` under Score-P into a folder of an attempt (absolute), and return it: to be called in place of the program.

    `setup`: lines that ranks run first. InputError where Score-P cannot make what it preloads.
    """
    folder = attempt / STARTER
    folder.mkdir()
    tool = str(prefix / "bin" / "scorep-preload-init")
    try:
        libraries = _ask(shell_command(setup, "", {}, [tool, "--value-only", *PARADIGMS, program, str(folder)]))
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout or "").strip().splitlines()
        reason = said[-1] if said else f"status {error.returncode}"
        raise InputError("command-failed", f"failed: {reason}", file=tool, got=reason) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError("command-failed", str(error), file=tool) from None
    made = folder / Path(program).name
    told = {"folder": attempt / FOLDER, "libraries": libraries.splitlines()[-1], "program": program}
    write_text(made, _START.format(memory=MEMORY, **{name: shlex.quote(str(text)) for name, text in told.items()}))
    made.chmod(0o755)
    return made


def _ask(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True, timeout=PATIENCE_S)
    return done.stdout.strip()
