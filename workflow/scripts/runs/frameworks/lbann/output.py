"""What LBANN prints, line by line, as the epochs of a run: read in LBANN's sources and in logs of v0.104 and October 2024.

Of an epoch it prints its shape (`Epoch : stats formated`, in two lines), then the metrics of training, of validation, each
ending with `run time` and `mini-batch time statistics`; after the last epoch a table of timers. Floats are C++'s.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any

LOSS = "cross-entropy"  # the metric by which it is printed apart from regularization
PARTS = {"objective function", LOSS, "accuracy", "run time"}
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_FLOAT = r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf)"
_SHAPE = re.compile(r"\[(?P<epoch>\d+)\] Epoch : .*iter/epoch = \[(?P<train>\d+)/(?P<validation>\d+)/")
_SIZES = re.compile(r"Global MB = \[\s*(?P<size>\d+)/.*Global last MB = \[\s*(?P<last>\d+)/")
_METRIC = re.compile(
    rf"\S+ \(instance (?P<trainer>\d+)\) (?:training epoch (?P<epoch>\d+)|(?P<split>validation|test|tournament)) "
    rf"(?:(?P<what>objective function|{LOSS}) : (?P<value>{_FLOAT})|accuracy : (?P<percent>{_FLOAT})%|run time : (?P<seconds>{_FLOAT})s)"
)
_STEPS = re.compile(r"\S+ \(instance \d+\) training epoch (?P<epoch>\d+) mini-batch time statistics : (?P<all>.*)")
_STATISTIC = re.compile(rf"(?P<value>{_FLOAT}|N/A)s* (?P<name>mean|median|max|min|stdev)")
_TRAINERS = re.compile(r"\s*Trainers\s*: (?P<count>\d+)")
_VERSION = re.compile(r".*LLNL (?P<what>LBANN|Hydrogen|Aluminum) version: (?P<version>\S+)")
_TIMER = re.compile(rf"\s*(?P<label>train minibatch|forward prop\*|back prop\*)\s*\|\s*\d+ \|\s*(?P<total>{_FLOAT}) \|")
_CAUGHT = re.compile(r".*caught error message:")  # a frame of stars follows, in it the message
# Of what else LBANN and those below it say when they end badly, the most telling first.
_FAILURES = (
    re.compile(r".*LBANN error on rank.*"),
    re.compile(r".*\b(?:what\(\):|terminate called|HYDROGEN|El::|[Ee]rror:).*"),
    re.compile(r".*(?:MPI_ABORT|MPI_Abort|exited on signal|[Nn]ot enough slots).*"),
)


class UnreadableError(Exception):
    """LBANN printed what no run of ours prints."""


@dataclass
class Epoch:
    """One epoch as far as it has been printed, PARTS of training and of validation. Times in seconds, accuracies as fractions."""

    steps: int = 0
    samples: int = 0
    train: dict[str, float] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    steps_s: dict[str, float | None] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all that an epoch has was printed."""
        return self.samples > 0 and set(self.train) == set(self.validation) == PARTS


class LastWords:
    """Takes lines as they are printed; the one that says best why LBANN has ended badly: the most telling, else the last."""

    def __init__(self) -> None:
        self._last = ""
        self._telling: dict[int, str] = {}  # by their place in _FAILURES, an exception's message before them
        self._caught = False

    def take(self, line: str) -> None:
        """Take a line."""
        said = plain(line)
        if not said.strip("*"):
            return
        self._last = said
        if self._caught:
            self._telling.setdefault(-1, said)
        self._caught = bool(_CAUGHT.fullmatch(said))
        for place, pattern in enumerate(_FAILURES):
            if pattern.fullmatch(said):
                self._telling.setdefault(place, said)

    def __str__(self) -> str:
        return self._telling[min(self._telling)] if self._telling else self._last or "it said nothing"


def plain(line: str) -> str:
    """A line as it stands on a terminal in the end: without colours, and only what follows a progress bar's last carriage return."""
    return _COLOURS.sub("", line).rstrip().rpartition("\r")[2].strip()


class Output:
    """Takes lines as they are printed; what they said so far."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.epochs: list[Epoch] = []
        self._shape: tuple[int, int] | None = None  # the epoch whose sizes come next, and its steps
        self._timers: dict[str, float] = {}

    def take(self, line: str) -> None:
        """Take a line; one without an end was cut, and counts for nothing. UnreadableError where there are several trainers, or an
        epoch is missing."""
        if not line.endswith("\n"):
            return
        said = plain(line)
        if (found := _METRIC.fullmatch(said)) and found["split"] not in ("test", "tournament"):
            self._metric(found)
        elif found := _SHAPE.match(said):
            self._shape = int(found["epoch"]), int(found["train"])
        elif self._shape and (found := _SIZES.search(said)):
            number, steps = self._shape
            epoch = self._epoch(number)
            epoch.steps, epoch.samples = steps, (steps - 1) * int(found["size"]) + int(found["last"])
            self._shape = None
        elif found := _STEPS.match(said):
            told = {each["name"]: _finite(each["value"]) for each in _STATISTIC.finditer(found["all"])}
            self._epoch(int(found["epoch"])).steps_s = told
        elif found := _VERSION.match(said):
            self.versions[found["what"]] = found["version"]
        elif found := _TIMER.match(said):
            self._timers.setdefault(found["label"], float(found["total"]))
        elif (found := _TRAINERS.fullmatch(said)) and int(found["count"]) != 1:
            raise UnreadableError(f"LBANN made {found['count']} trainers, which train models of their own: {said}")

    def has(self, number: int) -> bool:
        """Whether epoch `number`, from 0, is complete."""
        return len(self.epochs) > number and self.epochs[number].complete

    def share(self, label: str) -> float | None:
        """The part of all training steps that a timer of LBANN's table has (`forward prop*`, `back prop*`)."""
        whole, part = self._timers.get("train minibatch"), self._timers.get(label)
        return None if not whole or part is None else part / whole

    def _metric(self, found: re.Match[str]) -> None:
        if found["trainer"] != "0":
            raise UnreadableError(f"LBANN trains several models: {found[0]}")
        if found["epoch"] is None and not self.epochs:
            return  # of nothing that was trained
        epoch = self._epoch(int(found["epoch"])) if found["epoch"] else self.epochs[-1]
        part = epoch.train if found["epoch"] else epoch.validation
        if found["percent"]:
            part["accuracy"] = float(found["percent"]) / 100
        elif found["seconds"]:
            part["run time"] = float(found["seconds"])
        else:
            part[found["what"]] = float(found["value"])

    def _epoch(self, number: int) -> Epoch:
        """The epoch with LBANN's number, from 0. UnreadableError where one was skipped: output is missing."""
        if number > len(self.epochs):
            raise UnreadableError(f"LBANN's output lacks epoch {len(self.epochs)}: it goes on with epoch {number}")
        if number == len(self.epochs):
            self.epochs.append(Epoch())
        return self.epochs[number]


def row(epoch: Epoch, samples_per_epoch: int) -> dict[str, Any]:
    """A complete epoch in the columns of epochs.csv; the time is scaled to `samples_per_epoch`."""
    return {
        "epoch_time_s": epoch.train["run time"] * samples_per_epoch / epoch.samples,
        "validation_time_s": epoch.validation["run time"],
        "steps": epoch.steps,
        "exchanges": epoch.steps,
        "samples_trained": epoch.samples,
        "train_loss": epoch.train[LOSS],
        "train_accuracy": epoch.train["accuracy"],
        "validation_loss": epoch.validation[LOSS],
        "validation_accuracy": epoch.validation["accuracy"],
    }


def _finite(text: str) -> float | None:
    value = math.nan if text == "N/A" else float(text)
    return value if math.isfinite(value) else None
