"""The content of a training log: times of optimizer steps, and facts about the run.

A log can have restarts, lines of several ranks, and a last line that is cut off. Readers add steps in the
order of the log to a `StepCollector`, which distinguishes restarts from copies that other ranks printed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, pairwise

MIN_POSITIVE, MAX_POSITIVE = 1e-12, 1e18
Facts = Mapping[str, str | int | float]
# Prefixes with the rank's number, which torchrun, srun --label, mpirun and Ray add to each line.
_PREFIX = re.compile(
    r"\s*(?:\[(?:default|rank)?(\d{1,9})\]:|(\d{1,9}): |\[\d+,(\d{1,9})\]<std(?:out|err)>:"
    r"|\([^()]{0,200}\brank=(\d{1,9})[^()]{0,200}\))\s?"
)
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class LogError(Exception):
    """A log cannot be read.

    Args:
        line: The number of the line, from 1; 0 for the whole file.
        problem: What is wrong, as a clause.
        expected: What would have been right.
    """

    def __init__(self, line: int, problem: str, expected: str = "") -> None:
        super().__init__(line, problem, expected)
        self.line, self.problem, self.expected = line, problem, expected

    def __str__(self) -> str:
        """Return line, problem and what was expected in one line."""
        text = f"line {self.line}: {self.problem}" if self.line else self.problem
        text = f"{text}; expected {self.expected}" if self.expected else text
        return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


@dataclass(frozen=True)
class Step:
    """One entry of a log: an optimizer step, or the mean of the last `n_steps` steps.

    Attributes:
        index: Number of the (last) optimizer step in the log's own count.
        seconds: Time of one optimizer step, s.
        samples: Samples of one optimizer step, over all devices.
        tokens: Tokens of one optimizer step, over all devices.
        loss: Training loss.
        started_at: Start of the entry in Unix time; clocks without a time zone are read as UTC.
        n_steps: Number of optimizer steps in the entry.
        segment: Number of restarts before it.
    """

    index: int
    seconds: float
    samples: float | None = None
    tokens: float | None = None
    loss: float | None = None
    started_at: float | None = None
    n_steps: int = 1
    segment: int = 0


@dataclass(frozen=True)
class Log:
    """Steps of one training in the order of the log, and facts, which have the same names in all formats."""

    steps: tuple[Step, ...]
    facts: Facts

    def timed_steps(self, warmup_steps: int = 0) -> tuple[Step, ...]:
        """Return the steps after the first `warmup_steps` optimizer steps of each segment."""
        timed, passed, segment = [], 0, -1
        for step in self.steps:
            if step.segment != segment:
                passed, segment = 0, step.segment
            if passed >= warmup_steps:
                timed.append(step)
            passed += step.n_steps
        return tuple(timed)


class StepCollector:
    """Collect steps in the order of a log, skip copies, and begin a new segment at a restart."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._segment = 0
        self._restarted = False
        self._first: dict[int, int] = {}  # segment -> index before its first step
        self._seen: set[int] = set()  # indices in the current segment
        self._previous = 0  # index of the last but one step of the segment

    def __len__(self) -> int:
        return len(self._steps)

    def restart(self, index: int | None = None) -> None:
        """Note that the training starts again after the optimizer step `index`, or None if unknown."""
        if self._steps:
            self._restarted = True
        if index is not None:
            self._first[self._segment + self._restarted] = index

    def add(self, step: Step) -> bool:
        """Add the next step of the log; skip a copy of an earlier one and return False."""
        # An index that does not increase is a copy if it is at most one logging interval back; another rank
        # printed it late. Otherwise the training went back to a checkpoint.
        if self._steps and not self._restarted and step.index <= self._steps[-1].index:
            interval = max(self._steps[-1].n_steps, self._steps[-1].index - self._previous)
            if step.index in self._seen and self._steps[-1].index - step.index <= interval:
                return False
            self._restarted = True
        if self._restarted:
            self._segment += 1
            self._seen.clear()
            self._previous, self._restarted = 0, False
        elif self._steps:
            self._previous = self._steps[-1].index
        self._seen.add(step.index)
        self._steps.append(replace(step, segment=self._segment))
        return True

    def steps(self) -> tuple[Step, ...]:
        """Return the collected steps, with the number of optimizer steps since the entry before each.

        If the log does not say where a segment starts, its first entry has as many steps as its second.
        """
        counted = []
        for segment, group in groupby(self._steps, key=lambda step: step.segment):
            steps = list(group)
            gaps = [later.index - earlier.index for earlier, later in pairwise(steps)]
            start = self._first.get(segment)
            if start is None or not start < steps[0].index:
                start = max(0, steps[0].index - gaps[0]) if gaps else steps[0].index - steps[0].n_steps
            counted += [
                replace(step, n_steps=max(1, gap))
                for step, gap in zip(steps, [steps[0].index - start, *gaps], strict=True)
            ]
        return tuple(counted)

    @property
    def restarts(self) -> int:
        """Number of restarts."""
        return self._segment


def plain_lines(lines: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """Yield number, rank ("" if unknown) and text of each line, without colours and launchers' prefixes."""
    for number, line in enumerate(lines, 1):
        text, rank = _COLOUR.sub("", line), ""
        while match := _PREFIX.match(text):
            rank = next(filter(None, match.groups()), rank)
            text = text[match.end() :]
        yield number, rank, text


def unix_time(text: str) -> float | None:
    """Return a date of ISO 8601 (in UTC unless it has a time zone) as Unix time; None for other text."""
    try:
        moment = datetime.fromisoformat(text.strip().replace(",", "."))
    except ValueError:
        return None
    try:
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        return None


def positive(value: object) -> float | None:
    """Return a positive number of plausible size for a count, a time or a rate; None for anything else."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if MIN_POSITIVE < number < MAX_POSITIVE else None


def natural_number(value: object) -> int | None:
    """Return a whole number above 0; None for anything else."""
    number = positive(value)
    return int(number) if number is not None and number == int(number) else None


def drop_unknown(facts: Mapping[str, str | int | float | None]) -> dict[str, str | int | float]:
    """Return the facts without those that are None or empty."""
    return {name: value for name, value in facts.items() if value not in (None, "")}


def is_thousands(text: str) -> bool:
    """Return whether a comma in a number could separate thousands, such as in 1,234."""
    return bool(_THOUSANDS.fullmatch(text.strip()))


def decimal(value: object) -> float | None:
    """Return the number in a cell, with a decimal point or comma; None for anything else.

    1,234 is ambiguous, because its comma could separate thousands, so the result is None.
    """
    if isinstance(value, bool) or value is None:
        return None
    text = str(value).strip().replace("_", " ")
    if is_thousands(text):
        return None
    if text.count(",") == 1 and "." not in text:
        text = text.replace(",", ".")
    try:
        number = float(text)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None
