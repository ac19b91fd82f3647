"""What a log of a training says: times of optimizer steps, and facts about the run.

A log of one run can have restarts, lines of several ranks, and a last line that was cut off. Readers put the
steps that they meet into a `StepCollector`, which separates restarts from copies of other ranks' lines.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, pairwise

MIN_POSITIVE, MAX_POSITIVE = 1e-12, 1e18
Facts = Mapping[str, str | int | float]
# What torchrun, srun --label, mpirun and Ray write before each line of a rank, and colours of terminals.
_PREFIX = re.compile(
    r"\s*(?:\[(?:default|rank)?(\d{1,9})\]:|(\d{1,9}): |\[\d+,(\d{1,9})\]<std(?:out|err)>:"
    r"|\([^()]{0,200}\brank=(\d{1,9})[^()]{0,200}\))\s?"
)
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class LogError(Exception):
    """Say why a log cannot be read.

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
    """Optimizer steps as a log reports them: one, or the mean of the last `n_steps`.

    Attributes:
        index: Number of the (last) optimizer step, as the log counts.
        seconds: Time of one optimizer step, s.
        samples: Samples of one optimizer step, over all devices.
        tokens: Tokens of one optimizer step, over all devices.
        loss: Training loss.
        started_at: Begin, Unix time; a time without a zone is read as UTC.
        n_steps: How many optimizer steps `seconds` is the mean of.
        segment: How often the training was restarted before.
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
    """Steps of one training in the order of the log, and its other facts, by names that formats share."""

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
    """Collect the steps of one rank: copies are skipped, and a lower index begins another segment."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._segment = 0
        self._restarted = False
        self._first: dict[int, int] = {}  # segment -> index before its first step
        self._seen: set[int] = set()
        self._previous = 0  # index before the last one of the segment

    def __len__(self) -> int:
        return len(self._steps)

    def restart(self, index: int | None = None) -> None:
        """Note that a training begins after the optimizer step `index`, None if the log does not say it."""
        if self._steps:
            self._restarted = True
        if index is not None:
            self._first[self._segment + self._restarted] = index

    def add(self, step: Step) -> bool:
        """Add the next step of the log, and return False for a copy of an earlier one."""
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
        """Return the steps, each with the number of optimizer steps since the one before it."""
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
        """How often the training was restarted."""
        return self._segment


def plain_lines(lines: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """Yield number, rank ("" if unknown) and text of each line, without colours and the launcher's prefix."""
    for number, line in enumerate(lines, 1):
        text, rank = _COLOUR.sub("", line), ""
        while match := _PREFIX.match(text):
            rank = next(filter(None, match.groups()), rank)
            text = text[match.end() :]
        yield number, rank, text


def unix_time(text: str) -> float | None:
    """Return a date and time of ISO 8601 as Unix time, None if it is none; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text.strip().replace(",", "."))
    except ValueError:
        return None
    try:
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        return None


def positive(value: object) -> float | None:
    """Return a number above 0 that can be a count, a time or a rate, None for anything else."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if MIN_POSITIVE < number < MAX_POSITIVE else None


def natural_number(value: object) -> int | None:
    """Return a whole number above 0, None for anything else."""
    number = positive(value)
    return int(number) if number is not None and number == int(number) else None


def without_unknown(facts: Mapping[str, str | int | float | None]) -> dict[str, str | int | float]:
    """Return the facts that have a value."""
    return {name: value for name, value in facts.items() if value not in (None, "")}


def is_thousands(text: str) -> bool:
    """Return whether a comma of a number may separate thousands, as in 1,234."""
    return bool(_THOUSANDS.fullmatch(text.strip()))


def decimal(value: object) -> float | None:
    """Return the number of a cell, with a decimal point or comma, None if there is none.

    A comma before three digits, as in 1,234, may separate thousands: it is no number.
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
