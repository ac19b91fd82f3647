"""Compute the numbers of a proposal for compute time: how one series scales, and the node hours it needs.

A series consists of cells that differ only in nodes and devices. Speed-up is relative to the fewest devices
with a measured cell. Node hours of trainings on N nodes are

    node hours = trainings x N x (epochs x (epoch time + validation time) + start-up time) x attempts

with the epoch time on N nodes measured or, where N was not measured, predicted by the optimizer-step law.
`attempts` is how many runs of the campaign were started for each that succeeded.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.cell_means import estimate_means
from analysis.cost import HOUR_S
from analysis.intervals import ESTIMATE_COLUMNS, Estimate, columns, estimate_of
from analysis.level_words import cell_words, level_text
from analysis.records import groups_by, successful, varying
from analysis.speedup import baseline_cells
from common.errors import InputError, check_range
from common.run_status import NO_RECORD_STATUSES
from common.text import alternatives
from prediction.measured_study import MeasuredStudy
from prediction.projection import predict_cases

UNKNOWN = Estimate(math.nan)
#: Smallest and largest numbers of a question. The largest are far beyond all machines and trainings.
LIMITS = {
    "--target-nodes": (1, 10**6), "--epochs": (1e-9, 1e9), "--samples": (1e-9, 1e15),
    "--trainings": (1, 10**6),
}  # fmt: skip
COUNTS = ("nodes", "devices_per_node", "n_devices")  # Factors that grow along a series.


@dataclass(frozen=True)
class Question:
    """The production trainings that a proposal requests time for.

    Attributes:
        nodes: Nodes of a training.
        epochs: Epochs of a training; None for the epochs of the measured runs.
        samples: Samples of a training, instead of epochs.
        trainings: Number of trainings.
        levels: Levels that choose the series, as text by factor.
    """

    nodes: int
    epochs: float | None = None
    samples: float | None = None
    trainings: int = 1
    levels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise InputError if a number is out of its range, or both epochs and samples are given."""
        if self.epochs is not None and self.samples is not None:
            raise InputError("conflicting-keys", "give --epochs or --samples, not both", file="--samples")
        for option, value in (
            ("--target-nodes", self.nodes),
            ("--epochs", self.epochs),
            ("--samples", self.samples),
            ("--trainings", self.trainings),
        ):
            check_range(option, value, *LIMITS[option])

    @property
    def is_work_stated(self) -> bool:
        """Return whether epochs or samples of a training are stated."""
        return self.epochs is not None or self.samples is not None


@dataclass(frozen=True)
class Series:
    """The chosen cells, from the fewest to the most devices, and what one epoch takes on each.

    Attributes:
        runs: All runs of the cells.
        words: The words that distinguish the series from the others of the study; "" if there are no others.
        rows: A row per cell: cell, framework, nodes, devices, n, samples of an epoch, and epoch_time_s,
            speedup and efficiency with bounds.
    """

    runs: pd.DataFrame
    words: str
    rows: pd.DataFrame

    @property
    def largest(self) -> str:
        """The cell with the most devices."""
        return str(self.rows["cell"].iloc[-1])

    @property
    def devices(self) -> list[int]:
        """Devices of the cells."""
        return [int(count) for count in self.rows["devices"]]

    @property
    def samples(self) -> float:
        """Samples of an epoch; 0 if unknown."""
        samples = float(self.rows["samples"].iloc[-1])
        return 0.0 if math.isnan(samples) else samples

    @property
    def most_nodes(self) -> int:
        """The largest number of nodes of a cell."""
        return int(self.rows["nodes"].max())

    @property
    def devices_per_node(self) -> int:
        """Devices per node of the largest cell."""
        return max(1, round(self.devices[-1] / int(self.rows["nodes"].iloc[-1])))

    def mean_at_largest(self, column: str) -> float:
        """Return the mean of a column of runs.csv in the largest cell; 0 if it was not recorded."""
        ok = successful(self.runs)
        if column not in ok:
            return 0.0
        mean = float(ok.loc[ok["cell"] == self.largest, column].astype(float).mean())
        return 0.0 if math.isnan(mean) else mean

    def estimate(self, name: str, place: int = -1) -> Estimate:
        """Return an estimate in `rows`, by default of the largest cell."""
        return estimate_of(self.rows.iloc[place], name)

    def measured_epoch(self, nodes: int) -> Estimate | None:
        """Return the epoch time of the cell with the most devices on `nodes` nodes; None without a cell."""
        places = np.flatnonzero(self.rows["nodes"] == nodes)
        return self.estimate("epoch_time_s", int(places[-1])) if len(places) else None

    def predicted_row(self, request: "Request") -> dict[str, Any]:
        """Return a row for the requested nodes, with the predicted epoch time and its band."""
        first, nodes, epoch_s = self.rows.iloc[0], request.question.nodes, request.epoch_s
        devices, base_s = nodes * self.devices_per_node, float(first["epoch_time_s"])
        speedup = Estimate(base_s / epoch_s.value, base_s / epoch_s.high, base_s / epoch_s.low)
        return {
            **self.rows.iloc[-1].to_dict(),
            **{"cell": None, "nodes": nodes, "devices": devices, "n": 0},
            **columns("epoch_time_s", epoch_s),
            **columns("speedup", speedup),
            **columns("efficiency", speedup.times(self.devices[0] / devices)),
        }


@dataclass(frozen=True)
class Request:
    """The node hours of trainings and the times that they are computed from, in seconds.

    Attributes:
        question: The trainings.
        epochs: Epochs of a training, possibly a fraction.
        epoch_s: Time of an epoch on the requested nodes; NaN if it was neither measured nor predicted.
        is_predicted: Whether it was predicted; its bounds then span a 90 % band.
        validation_s: Validation after each epoch, 0 if not recorded.
        startup_s: Start-up of a training, 0 if not recorded.
        attempts: Number of runs started per successful one; NaN if not recorded.
        advice: Sentences on how many nodes are worth it; "" without a prediction.
    """

    question: Question
    epochs: float
    epoch_s: Estimate
    is_predicted: bool
    validation_s: float
    startup_s: float
    attempts: float
    advice: str = ""

    @property
    def is_known(self) -> bool:
        """Whether there is an epoch time for the requested nodes."""
        return not math.isnan(self.epoch_s.value)

    @property
    def training_s(self) -> Estimate:
        """Wall time of one training."""
        constant_s = self.startup_s + self.epochs * self.validation_s
        epochs_s = self.epoch_s.times(self.epochs)
        return Estimate(constant_s + epochs_s.value, constant_s + epochs_s.low, constant_s + epochs_s.high)

    @property
    def node_hours(self) -> Estimate:
        """Node hours of all trainings."""
        attempts = 1.0 if math.isnan(self.attempts) else self.attempts
        return self.training_s.times(self.question.nodes * self.question.trainings * attempts / HOUR_S)

    def on_most_nodes(self, series: Series) -> "Request":
        """Return the request for the same trainings on the most nodes that were measured."""
        return make_request(series, replace(self.question, nodes=series.most_nodes))


def parse_levels(texts: Sequence[str]) -> dict[str, str]:
    """Return levels by factor from texts such as `model=resnet-50`.

    Raises:
        InputError: If a text is not FACTOR=LEVEL.
    """
    pairs = [text.partition("=") for text in texts]
    for text, (factor, _, level) in zip(texts, pairs, strict=True):
        if not (factor and level):
            problem = f"'{text}' is not a level"
            raise InputError("wrong-format", problem, file="--level", got=text, expected="FACTOR=LEVEL")
    levels = {factor: level for factor, _, level in pairs}
    for factor, _, level in pairs:
        if levels[factor] != level:
            problem, hint = f"{factor} has two levels here", "a series has one level of each factor"
            raise InputError("conflicting-keys", problem, file="--level", got=factor, hint=hint)
    return levels


def choose_series(runs: pd.DataFrame, levels: Mapping[str, str]) -> Series:
    """Return the series at these levels with the most devices, then most sizes, then the shortest epoch.

    Args:
        runs: Runs of a study; at least one succeeded.
        levels: Levels that choose the series, as text by factor.

    Raises:
        InputError: If a level or factor is unknown.
    """
    ok = successful(runs)
    groups = groups_by(_at_levels(ok, levels), varying(ok, exclude=COUNTS))

    def rank(group: pd.DataFrame) -> tuple[int, int, float]:
        n_devices = group["n_devices"].max()
        fastest_s = group.loc[group["n_devices"] == n_devices, "epoch_time_s"].mean()
        return int(n_devices), group["n_devices"].nunique(), -float(fastest_s)

    best = max((group for _, group in groups), key=rank).sort_values(["n_devices", "nodes"], kind="stable")
    cells = best["cell"].drop_duplicates().tolist()
    baseline = baseline_cells(runs).get(cells[-1])
    if baseline and baseline not in cells:
        cells.insert(0, baseline)
    words = cell_words(runs, exclude=COUNTS)[cells[-1]] if varying(ok, exclude=COUNTS) else ""
    return Series(runs[runs["cell"].isin(cells)], words, _scaling_rows(runs, cells))


def find_counterpart(runs: pd.DataFrame, series: Series) -> Series | None:
    """Return the same series with the other batch scope; None without one.

    It shows strong scaling if this series shows weak scaling, and vice versa.
    """
    ok = successful(runs)
    row = ok[ok["cell"] == series.largest].iloc[0]
    scopes = [scope for scope in ok["batch_scope"].dropna().unique() if scope != row["batch_scope"]]
    levels = {name: level_text(row[name]) for name in varying(ok, exclude=COUNTS)}
    try:
        return choose_series(runs, levels | {"batch_scope": scopes[0]}) if scopes else None
    except InputError:  # this study does not have it at these levels
        return None


def _at_levels(ok: pd.DataFrame, levels: Mapping[str, str]) -> pd.DataFrame:
    names = varying(ok)
    for factor, level in levels.items():
        choices = ok[factor].map(level_text).unique().tolist() if factor in names else []
        if level not in choices:
            unknown = level if choices else factor
            problem = f"{factor} has no level '{level}' here" if choices else f"'{factor}' does not vary"
            fields = alternatives(unknown, choices or names)
            raise InputError("unknown-name", problem, file="--level", got=unknown, **fields)
        ok = ok[ok[factor].map(level_text) == level]
    return ok


def _scaling_rows(runs: pd.DataFrame, cells: Sequence[str]) -> pd.DataFrame:
    """Return time, speed-up over the first cell and efficiency of each cell, with bounds."""
    cell_means, measured = (
        estimate_means(runs),
        successful(runs).drop_duplicates("cell").set_index("cell").loc[cells],
    )
    ratios = cell_means.ratios([cells[0]] * len(cells), list(cells))[ESTIMATE_COLUMNS]
    speedups = [Estimate(1.0), *(Estimate(*row) for row in ratios.iloc[1:].itertuples(index=False))]
    growth = measured["n_devices"] / measured["n_devices"].iloc[0]
    rows = [
        columns("epoch_time_s", cell_means.cell_mean(cell))
        | columns("speedup", speedup)
        | columns("efficiency", speedup.times(1 / growth[cell]))
        for cell, speedup in zip(cells, speedups, strict=True)
    ]
    return pd.DataFrame(rows).assign(
        cell=list(cells),
        framework=measured["framework"].tolist(),
        nodes=measured["nodes"].astype(int).tolist(),
        devices=measured["n_devices"].astype(int).tolist(),
        n=[cell_means.cell_mean(cell).n for cell in cells],
        samples=pd.to_numeric(measured["samples_per_epoch"]).astype(float).tolist(),
    )


def project(study: MeasuredStudy, cell: str, nodes: int) -> tuple[Estimate, str]:
    """Return the predicted epoch time on `nodes` nodes with a 90 % band, and advice on how many are worth it.

    NaN and "" if the optimizer-step law does not apply to the series of `cell`.
    """
    rows = predict_cases(study, nodes, cell=cell)
    if rows.empty:
        return UNKNOWN, ""
    return estimate_of(rows.iloc[0], "epoch_time_s"), str(rows["answer"].iloc[0])


def make_request(
    series: Series, question: Question, predicted: Estimate = UNKNOWN, advice: str = ""
) -> Request:
    """Return the request for the trainings of a question; `predicted` is for nodes that were not measured."""
    measured = series.measured_epoch(question.nodes)
    attempts = series.runs.loc[~series.runs["status"].isin(NO_RECORD_STATUSES), "attempt"]
    n_successful = len(successful(series.runs))
    return Request(
        question,
        epochs=_epochs(series, question),
        epoch_s=measured or predicted,
        is_predicted=measured is None,
        validation_s=series.mean_at_largest("validation_time_s"),
        startup_s=series.mean_at_largest("startup_s"),
        attempts=math.nan if attempts.isna().all() else attempts.fillna(1).sum() / n_successful,
        advice=advice,
    )


def _epochs(series: Series, question: Question) -> float:
    """Return the epochs of a training: as the question states, or else of the measured runs."""
    if question.samples is None:
        return question.epochs or float(successful(series.runs)["epochs"].max())
    if not series.samples:
        problem, hint = "the runs do not say how many samples an epoch has", "give --epochs"
        raise InputError("conflicting-keys", problem, file="--samples", hint=hint)
    return question.samples / series.samples
