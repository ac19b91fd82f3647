"""Say how many runs of a campaign are usable, and why the others are not.

A run is usable if its status is ok. The cause of any other run is its status or, if it is invalid, its
reason.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from common.notes import Note
from common.run_status import RunStatus
from common.text import number_of
from runs.reasons import DISTURBED_PREFIX, LOG_PREFIX, MISPLACED_PREFIX, NETWORK_PREFIX, PAUSED_PREFIX


class Cause(NamedTuple):
    """Why runs are not usable.

    Attributes:
        name: Two or three words.
        text: The predicate of a sentence about a number of runs, such as "ran out of memory".
    """

    name: str
    text: str


# Invalid runs have the causes of _BY_REASON instead.
_BY_STATUS: dict[str, Cause] = {
    RunStatus.OOM: Cause("out of memory", "ran out of memory"),
    RunStatus.FAILED: Cause("failed", "failed"),
    RunStatus.TIMEOUT: Cause("timed out", "reached the time limit"),
    RunStatus.BROKEN: Cause("broken record", "have a broken record"),
    RunStatus.MISSING: Cause("no record", "have no record"),
}
_OTHERWISE_INVALID = Cause("invalid", "were excluded as invalid")
_LIMIT = (
    r"\((?:limit (?P<limit>[\d.]+) %|more than (?P<older>[\d.]+)%)\)"  # The second form is of older records.
)
# Pattern of the beginning of a reason -> cause.
_BY_REASON = (
    (
        rf"{DISTURBED_PREFIX}.* other processes {_LIMIT}",
        Cause(
            "background load", "were excluded because other processes used more than {limit} % of CPU time"
        ),
    ),
    (
        rf"{DISTURBED_PREFIX}.*\(steal\) {_LIMIT}",
        Cause("CPU steal", "were excluded because a hypervisor took more than {limit} % of CPU time"),
    ),
    (MISPLACED_PREFIX, Cause("misplaced ranks", "were excluded because ranks were not on the planned nodes")),
    (
        LOG_PREFIX,
        Cause("log not as planned", "were excluded because their log does not fit what was planned"),
    ),
    (NETWORK_PREFIX, Cause("wrong network", "were excluded because gradients took another network")),
    # Records of version 0.1 say "stopped".
    (
        rf"{PAUSED_PREFIX}|a rank was stopped",
        Cause("paused ranks", "were excluded because a rank was paused for some time"),
    ),
    (
        r"the loss is not finite|weights are not finite",
        Cause("loss not finite", "were excluded because the loss or the weights are not finite"),
    ),
)


def find_cause(status: str, reason: str | None) -> Cause:
    """Return why a run with this status (not ok) and reason is not usable."""
    if status != RunStatus.INVALID:
        return _BY_STATUS[status]
    for pattern, cause in _BY_REASON:
        if matched := re.match(pattern, reason or ""):
            limit = next(filter(None, matched.groups()), "")
            return Cause(cause.name, cause.text.format(limit=limit))
    return _OTHERWISE_INVALID


def usable_runs_note(statuses: Iterable[tuple[str, str | None]]) -> Note:
    """Return how many runs are usable, and the causes why the others are not, the most frequent first.

    Args:
        statuses: Status and reason of each run of the design.

    Returns:
        A sentence without a full stop. Facts: usable, runs, and causes (number of runs by name of a cause).
    """
    pairs = list(statuses)
    causes = Counter(find_cause(status, reason) for status, reason in pairs if status != RunStatus.OK)
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
