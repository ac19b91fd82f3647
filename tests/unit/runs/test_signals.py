"""A measurement ends with one line at SIGTERM, SIGINT and SIGHUP, even if nobody can read the line."""

import os
import signal
import subprocess
import sys

import pytest

from common.files import CHECKOUT
from common.shell import INACCESSIBLE_STATUS

PROGRAM = """
import signal, sys, time
from pathlib import Path
# Tests may themselves run under nohup, which every child inherits.
signal.signal(signal.SIGHUP, signal.SIG_IGN if "ignored" in sys.argv else signal.SIG_DFL)
from runs.interruptions import report_interruptions
with report_interruptions("a run", Path("results")):
    print("ready", flush=True)
    if "ignored" in sys.argv:
        sys.stdin.readline()
    else:
        time.sleep(60)
"""
RAISES = """
import errno, os
from pathlib import Path
from common.notes import Note
from common.shell import inaccessible_path_note
from launchers.protocol import AttemptLost
from runs.interruptions import report_interruptions
with report_interruptions("a run", Path("results")):
    raise {error}
"""
UNREAD = """
import sys
from common.errors import exit_status, print_line
sys.stdin.readline()
sys.exit(exit_status(lambda: [print_line(f"line {i}", to_stderr=bool(i % 2)) for i in range(10)]))
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={"PYTHONPATH": str(CHECKOUT / "workflow" / "scripts")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_a_measurement(signum: signal.Signals) -> None:
    program = start(PROGRAM)
    assert program.stdout and program.stdout.readline() == "ready\n"
    program.send_signal(signum)
    _, errors = program.communicate(timeout=30)
    assert program.returncode == 130 and signum.name in errors and len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("AttemptLost(Note('job-ended', 'job 17 ended'))", os.EX_TEMPFAIL),
        ("AttemptLost(inaccessible_path_note('node1', '/shared'))", INACCESSIBLE_STATUS),
        ("OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))", os.EX_TEMPFAIL),
    ],
    ids=["lost", "not seen", "full disk"],
)
def test_exit_status_says_why_there_is_no_record(error: str, status: int) -> None:
    program = start(RAISES.format(error=error))
    _, errors = program.communicate(timeout=30)
    assert program.returncode == status and len(errors.splitlines()) == 1


def test_nohup_is_left_alone() -> None:
    program = start(PROGRAM, "ignored")
    assert program.stdout and program.stdout.readline() == "ready\n"
    program.send_signal(signal.SIGHUP)
    assert program.communicate("\n", timeout=30) == ("", "") and program.returncode == 0


def test_program_continues_without_its_readers() -> None:
    program = start(UNREAD)
    assert program.stdin and program.stdout and program.stderr
    program.stdout.close()
    program.stderr.close()
    program.stdin.write("\n")
    program.stdin.close()
    assert program.wait(timeout=30) == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_failure(closed: str) -> None:
    command = [
        "sh",
        "-c",
        f'exec "$@" {closed}',
        "sh",
        sys.executable,
        "-c",
        UNREAD.replace("sys.stdin.readline()", ""),
    ]
    environment = {"PYTHONPATH": str(CHECKOUT / "workflow" / "scripts")}
    assert subprocess.run(command, env=environment, check=False).returncode == 0
