"""Ask schedulers about jobs through their client programs."""

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from common.notes import Note
from common.shell import Unanswered, capture, query_with_retries
from launchers.protocol import AttemptLost

T = TypeVar("T")
CLIENT_TIMEOUT_S = 30  # time limit for a scheduler's client to answer


def query_job_field(
    command: Sequence[str], pattern: re.Pattern[str], environment: Mapping[str, str]
) -> str | None:
    """Return a field that a scheduler's client prints for a job, None on a node without the client.

    Args:
        command: The client's command line; its last word is the job's number.
        pattern: Pattern with the field as its first group.
        environment: Environment of the client.

    Raises:
        AttemptLost: If there is no answer with the field after three tries, 2 s apart.
    """

    def ask() -> str | None:
        try:
            result = capture_client(command, environment)
        except FileNotFoundError:
            return None
        if match := pattern.search(result.stdout):
            return match[1]
        raise Unanswered(client_message(result))

    program, number = command[0], command[-1]
    return query_scheduler(ask, program, f"{program} does not describe job {number}")


def query_scheduler(ask: Callable[[], T], program: str, failure: str, tries: int = 3) -> T:
    """Return the answer of a scheduler's client; ask up to `tries` times, 2 s apart.

    Raises:
        AttemptLost: If `ask` raises Unanswered each time. Its reason begins with `failure`.
    """
    try:
        return query_with_retries(ask, tries)
    except Unanswered as unanswered:
        answer = str(unanswered).removeprefix(f"{program}: ")
        note = Note("scheduler-silent", f"{failure}: {answer}", program=program, answer=answer)
        raise AttemptLost(note) from None


def capture_client(
    command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a scheduler's client.

    Raises:
        Unanswered: If it does not end within CLIENT_TIMEOUT_S.
        FileNotFoundError: If this node does not have it.
    """
    try:
        return capture(command, timeout=CLIENT_TIMEOUT_S, env=environment)
    except subprocess.TimeoutExpired:
        raise Unanswered("no answer") from None


def client_message(result: subprocess.CompletedProcess[str]) -> str:
    """Return the message of a failed client in one line of at most 300 characters."""
    return " ".join((result.stderr or result.stdout).split())[:300]
