"""Parse LBANN's output into epochs.

The formats come from LBANN's sources and from logs of v0.104 and October 2024.

For each epoch LBANN prints its sizes (`Epoch : stats formated`, two lines), then the metrics of training and
of validation, each ending with `run time` and `mini-batch time statistics`. After the last epoch follows a
table of timers. Floats are printed by C++.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any

LOSS = "cross-entropy"  # metric of the loss without regularization
UNIT = " nats"  # unit of the loss, which ends its line: without it the number is truncated
PARTS = {"objective function", LOSS, "accuracy", "run time"}
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_INTEGER = r"[0-9]{1,15}"
_FLOAT = r"[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?(?:e[-+]?[0-9]{1,4})?|nan|inf)"
_SHAPE = re.compile(
    rf"\[(?P<epoch>{_INTEGER})\] Epoch : .*iter/epoch = \[(?P<train>{_INTEGER})/(?P<validation>{_INTEGER})/"
)
_SIZES = re.compile(rf"Global MB = \[\s*(?P<size>{_INTEGER})/.*Global last MB = \[\s*(?P<last>{_INTEGER})/")
_METRIC = re.compile(
    rf"\S+ \(instance {_INTEGER}\) (?:training epoch (?P<epoch>{_INTEGER})|validation) "
    rf"(?:objective function : (?P<objective>{_FLOAT})|{LOSS} : (?P<loss>{_FLOAT}){UNIT}|"
    rf"accuracy : (?P<percent>{_FLOAT})%|run time : (?P<seconds>{_FLOAT})s)"
)
_STEPS = re.compile(
    rf"\S+ \(instance {_INTEGER}\) training epoch (?P<epoch>{_INTEGER}) "
    r"mini-batch time statistics : (?P<all>.*)"
)
_STATISTIC = re.compile(rf"(?P<value>{_FLOAT}|N/A)s* (?P<name>mean|median|max|min|stdev)")
_VERSION = re.compile(r".*LLNL (?P<what>LBANN|Hydrogen|Aluminum) version: (?P<version>\S+)")
_TIMER = re.compile(
    rf"\s*(?P<label>train minibatch|forward prop\*|back prop\*)\s*\|\s*{_INTEGER} \|\s*(?P<total>{_FLOAT}) \|"
)
_CAUGHT = re.compile(r".*caught error message:")  # a frame of stars follows, in it the message
_FRAME = re.compile(r"[0-9]+: .*")  # frame of a stack
# Messages of failures of LBANN and of MPI, the most informative first. When a rank is lost, mpirun sends
# signal 15 to the others, which then abort: a consequence, not the cause.
_FAILURES = (
    re.compile(r".*LBANN error on rank.*"),
    re.compile(
        r".*(?:Caught signal (?!15\b)|exited on signal|what\(\):|terminate called|"
        r"[Nn]ot enough slots|HYDROGEN).*"
    ),
    re.compile(r".*\b[Ee]rror:.*"),
    re.compile(r".*(?:MPI_ABORT|MPI_Abort|Caught signal).*"),
)


class UnreadableError(Exception):
    """LBANN's output does not have the form that Ringside expects."""


@dataclass
class Epoch:
    """What LBANN has printed of an epoch: PARTS of training and validation, accuracies as shares."""

    steps: int = 0
    samples: int = 0
    train: dict[str, float] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    steps_s: dict[str, float | None] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether LBANN has printed all lines of the epoch."""
        return self.samples > 0 and set(self.train) == set(self.validation) == PARTS


class LastWords:
    """The line of the output that best explains why LBANN failed, or else the last line."""

    def __init__(self) -> None:
        self._last = ""
        # Keys are indices of _FAILURES; -1 is an exception's message.
        self._telling: dict[int, str] = {}
        self._caught = False

    def read_line(self, line: str) -> None:
        """Process a line."""
        text = plain(line)
        if _FRAME.fullmatch(text) or not any(character.isalnum() for character in text):
            return
        self._last = text
        if self._caught:
            self._telling.setdefault(-1, text)
        self._caught = bool(_CAUGHT.fullmatch(text))
        for place, pattern in enumerate(_FAILURES):
            if pattern.fullmatch(text):
                self._telling.setdefault(place, text)

    def __str__(self) -> str:
        return self._telling[min(self._telling)] if self._telling else self._last or "it printed nothing"


def plain(line: str) -> str:
    """Return a line as a terminal shows it: without colours, and after the last carriage return."""
    return _COLOURS.sub("", line).rstrip().rpartition("\r")[2].strip()


class Output:
    """Results of LBANN so far, parsed line by line."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.epochs: list[Epoch] = []
        # The epoch whose sizes come next, and its steps.
        self._shape: tuple[int, int] | None = None
        self._timers: dict[str, float] = {}

    def read_line(self, line: str) -> None:
        """Process a line; one without a line end was truncated, and is ignored.

        Raises:
            UnreadableError: If an epoch is missing.
        """
        if not line.endswith("\n"):
            return
        text = plain(line)
        if match := _METRIC.fullmatch(text):
            self._metric(match)
        elif match := _SHAPE.match(text):
            self._shape = int(match["epoch"]), int(match["train"])
        elif self._shape and (match := _SIZES.search(text)):
            number, steps = self._shape
            epoch = self._epoch(number)
            epoch.steps, epoch.samples = steps, (steps - 1) * int(match["size"]) + int(match["last"])
            self._shape = None
        elif match := _STEPS.match(text):
            statistics = {
                statistic["name"]: _time(statistic["value"])
                for statistic in _STATISTIC.finditer(match["all"])
            }
            self._epoch(int(match["epoch"])).steps_s = statistics
        elif match := _VERSION.match(text):
            self.versions[match["what"]] = match["version"]
        elif (match := _TIMER.match(text)) and (total := _time(match["total"])) is not None:
            self._timers.setdefault(match["label"], total)

    def has_epoch(self, number: int) -> bool:
        """Return whether epoch `number`, from 0, is complete."""
        return len(self.epochs) > number and self.epochs[number].complete

    def share(self, label: str) -> float | None:
        """Return the share of training time that a timer in LBANN's table has (`forward prop*`, ...)."""
        step_total, part = self._timers.get("train minibatch"), self._timers.get(label)
        return None if not step_total or part is None or part > step_total else part / step_total

    def _metric(self, match: re.Match[str]) -> None:
        if match["epoch"] is None and not self.epochs:
            return  # validation before training
        epoch = self._epoch(int(match["epoch"])) if match["epoch"] else self.epochs[-1]
        part = epoch.train if match["epoch"] else epoch.validation
        metric, value = _read(match)
        part[metric] = value

    def _epoch(self, number: int) -> Epoch:
        """Return the epoch with LBANN's number, from 0.

        Raises:
            UnreadableError: If one was skipped, so that output is missing.
        """
        if number > len(self.epochs):
            raise UnreadableError(
                f"LBANN's output lacks epoch {len(self.epochs)}: it continues with epoch {number}"
            )
        if number == len(self.epochs):
            self.epochs.append(Epoch())
        return self.epochs[number]


def _read(match: re.Match[str]) -> tuple[str, float]:
    """Return the metric of a line, one of PARTS, and its value, which may be NaN."""
    if match["seconds"]:
        return "run time", float(match["seconds"])
    if match["percent"]:
        return "accuracy", round(float(match["percent"]) / 100, 12)
    if match["loss"]:
        return LOSS, float(match["loss"])
    return "objective function", float(match["objective"])


def row(epoch: Epoch, samples_per_epoch: int) -> dict[str, Any]:
    """Return a complete epoch as a row of epochs.csv.

    Raises:
        UnreadableError: If the epoch did not train on each sample once.
    """
    if epoch.samples != samples_per_epoch:
        raise UnreadableError(
            f"LBANN trained on {epoch.samples} samples in an epoch, not on {samples_per_epoch}"
        )
    return {
        "epoch_time_s": epoch.train["run time"],
        "validation_time_s": epoch.validation["run time"],
        "steps": epoch.steps,
        "n_allreduces": epoch.steps,
        "samples_trained": epoch.samples,
        "train_loss": epoch.train[LOSS],
        "train_accuracy": epoch.train["accuracy"],
        "validation_loss": epoch.validation[LOSS],
        "validation_accuracy": epoch.validation["accuracy"],
    }


def finite(value: float) -> float | None:
    """Return a number that LBANN printed, None if it is not finite."""
    return value if math.isfinite(value) else None


def _time(text: str) -> float | None:
    value = math.nan if text == "N/A" else float(text)
    return finite(value) if value >= 0 else None
