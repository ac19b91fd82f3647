"""Start programs under Score-P, where a site has it and has installed programs of MPI.

Programs start unchanged, with a preloaded library, which Score-P makes of a few lines of C with its own
compiler (`scorep-preload-init`). Score-P then writes an archive in OTF2, Open Trace Format 2.
"""

import functools
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from common.errors import InputError
from common.files import write_text
from common.shell import capture, shell_command

FOLDER = "score-p"  # of an attempt: what Score-P writes
ANCHOR = Path(FOLDER) / "traces.otf2"
# Its rank_0_began is when the first phase of rank 0 began, in s since 1970, by Score-P's clock.
CLOCK = Path(FOLDER) / "clock.json"
PACKAGE = "scorep"  # its name among the packages of a record
START_FOLDER = "start-score-p"  # of an attempt, as long as it runs
TIMEOUT_S = 120
# For a rank's events, unless the site's variables set it. What does not fit is written during the run.
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
    """Return the version of the Score-P that is installed in a folder.

    None if there is none, or it does not answer.
    """
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
        setup: Lines that ranks run first.

    Raises:
        InputError: If Score-P cannot make the library that it preloads.
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
