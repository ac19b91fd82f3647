"""Say how many runs of a campaign are usable, and why the others are not.

Causes are distinguished by the reason in a run's record, which `runs.supervise` writes.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from common.notes import Note
from common.text import number_of


class Cause(NamedTuple):
    """Why runs are not usable: in two or three words, and as a clause whose subject is their number."""

    name: str
    text: str


FAILED = Cause("failed", "failed")
OUT_OF_MEMORY = Cause("out of memory", "ran out of memory")
TIMED_OUT = Cause("timed out", "reached the time limit")
NOT_RUN = Cause("not run yet", "have not run yet")
OTHERWISE_INVALID = Cause("invalid", "were excluded as invalid")
_BY_STATUS = {"oom": OUT_OF_MEMORY, "failed": FAILED, "timeout": TIMED_OUT, "missing": NOT_RUN}
_BY_REASON = (
    (
        r"disturbed: .* other processes \(more than (?P<limit>[\d.]+)%\)",
        Cause(
            "background load", "were excluded because other processes used more than {limit} % of CPU time"
        ),
    ),
    (
        r"disturbed: .*\(steal\) \(more than (?P<limit>[\d.]+)%\)",
        Cause("CPU steal", "were excluded because a hypervisor took more than {limit} % of CPU time"),
    ),
    (r"misplaced: ", Cause("misplaced ranks", "were excluded because ranks were not on the planned nodes")),
    (r"log: ", Cause("log not as planned", "were excluded because their log does not fit what was planned")),
    (r"network: ", Cause("wrong network", "were excluded because gradients took another network")),
    (r"a rank was stopped", Cause("stopped ranks", "were excluded because a rank was stopped for some time")),
    (
        r"the loss is not finite|weights are not finite",
        Cause("loss not finite", "were excluded because the loss or the weights are not finite"),
    ),
)


def find_cause(status: str, reason: str | None) -> Cause:
    """Return why a run with this status (not ok) and reason is not usable."""
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    for pattern, cause in _BY_REASON:
        if matched := re.match(pattern, reason or ""):
            return Cause(cause.name, cause.text.format(**matched.groupdict()))
    return OTHERWISE_INVALID


def usable_runs_note(outcomes: Iterable[tuple[str, str | None]]) -> Note:
    """Return how many runs are usable, and the causes why the others are not, the most frequent first.

    Args:
        outcomes: Status and reason of each run of the design.

    Returns:
        A sentence without a full stop. Facts: usable, runs, and causes (number of runs by name of a cause).
    """
    pairs = list(outcomes)
    causes = Counter(find_cause(status, reason) for status, reason in pairs if status != "ok")
    usable = len(pairs) - causes.total()
    parts = [f"{count:,} {cause.text}" for cause, count in causes.most_common() if count > 1]
    parts += [
        f"1 {cause.text.replace('were ', 'was ', 1).replace('have ', 'has ', 1)}"
        for cause, count in causes.items()
        if count == 1
    ]
    names: Counter[str] = Counter()
    for cause, count in causes.items():
        names[cause.name] += count
    text = f"{usable:,} of {number_of(len(pairs), 'run')} {'is' if usable == 1 else 'are'} usable"
    if not causes and pairs:
        text = f"All {number_of(usable, 'run')} are usable" if usable > 1 else "The only run is usable"
    return Note(
        "usable-runs",
        f"{text}; {', '.join(parts)}" if parts else text,
        usable=usable,
        runs=len(pairs),
        causes=dict(names.most_common()),
    )
