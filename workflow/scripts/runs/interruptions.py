"""Report why a measurement ended without a record, in one line and by the exit status."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import print_line
from common.shell import INACCESSIBLE, INACCESSIBLE_STATUS
from launchers.protocol import AttemptLost

WHO_REPEATS = "Snakemake repeats it if its profile has retries, else the next ./ringside run or submit does"


class AttemptStopped(Exception):
    """The attempt is stopped: SIGTERM, SIGINT or SIGHUP asked the supervisor to end. It gets no record."""


@contextmanager
def report_interruptions(title: str, path: Path) -> Iterator[None]:
    """Print one line and exit if the attempt inside ends without a record.

    The exit status is 130 if a signal stopped it, INACCESSIBLE_STATUS (79) if a node cannot access a path,
    and EX_TEMPFAIL (75) if it was lost for another reason or an OSError occurred, such as a full disk.

    The signals are SIGTERM, SIGINT and, unless the parent ignores it (nohup), SIGHUP from a closed terminal.

    Args:
        title: What is measured, for the line.
        path: What the line names if an OSError names no file.
    """

    def stop(signum: int, _frame: object) -> None:
        raise AttemptStopped(signal.Signals(signum).name)

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, stop)
    try:
        yield
    except AttemptStopped as stopped:
        print_line(f"{title}: stopped by {stopped}; {WHO_REPEATS}", to_stderr=True)
        sys.exit(130)
    except AttemptLost as lost:
        if lost.reason.code == INACCESSIBLE:
            print_line(f"ringside: {lost}", to_stderr=True)
            sys.exit(INACCESSIBLE_STATUS)
        print_line(f"ringside: {title}: lost: {lost}; {WHO_REPEATS}", to_stderr=True)
        sys.exit(os.EX_TEMPFAIL)
    except OSError as error:
        print_line(
            f"ringside: {error.filename or path}: {error.strerror or error}; correct it, then start again",
            to_stderr=True,
        )
        sys.exit(os.EX_TEMPFAIL)
