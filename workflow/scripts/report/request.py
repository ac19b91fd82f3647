"""Numbers behind a proposal for compute time: how one series scales, and which node hours follow from it.

A series is what a proposal asks time for: cells that differ in nodes and devices only. Speed-up is relative
to the fewest devices with a measured cell. Node hours of trainings on N nodes are

    node hours = trainings x N x (epochs x (epoch time + validation time) + start-up time) x attempts

with the epoch time on N nodes measured or, where N was not measured, predicted by the law of prediction.
`attempts` is how many runs of the campaign were started for each that succeeded.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.intervals import ESTIMATE_COLUMNS, Estimate
from analysis.measured import cell_words, level_text, measured_elsewhere, successful, varying
from analysis.pooling import pooled
from analysis.speedup import baseline_cells
from common.errors import InputError
from common.text import alternatives
from prediction.curves import hypothetical_cells
from prediction.projection import load_records

HOUR_S = 3600.0
UNKNOWN = Estimate(math.nan)
COUNTS = ("nodes", "devices_per_node", "replicas")  # which grow along a series


@dataclass(frozen=True)
class Question:
    """What time is asked for.

    Attributes:
        nodes: Nodes of a production training.
        epochs: Epochs of it; None for those of the measured runs.
        samples: Samples of it, in place of epochs.
        trainings: Number of trainings.
        levels: Levels that choose the series, as text by factor.
    """

    nodes: int
    epochs: float | None = None
    samples: float | None = None
    trainings: int = 1
    levels: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Series:
    """The chosen cells, from the fewest to the most devices, and what one epoch takes on each.

    Attributes:
        runs: All runs of the cells.
        words: What distinguishes the series from the others of the study.
        rows: A row per cell: cell, nodes, devices, n, and epoch_time_s, speedup and efficiency with bounds.
    """

    runs: pd.DataFrame
    words: str
    rows: pd.DataFrame

    @property
    def largest(self) -> str:
        """The cell with the most devices."""
        return str(self.rows["cell"].iloc[-1])

    def at_largest(self, column: str) -> float:
        """Return the mean of a column of runs.csv over the runs of the largest cell; NaN without a value."""
        ok = successful(self.runs)
        return float(pd.to_numeric(ok.loc[ok["cell"] == self.largest, column]).mean())

    def row(self, nodes: int) -> pd.Series | None:
        """Return the measured row with the most devices on this number of nodes; None if not measured."""
        rows = self.rows[self.rows["nodes"] == nodes]
        return None if rows.empty else rows.iloc[-1]


@dataclass(frozen=True)
class Request:
    """Node hours and what they follow from; times in seconds.

    Attributes:
        question: What is asked for.
        epochs: Epochs of a training, also a fraction.
        epoch_s: Time of an epoch on the nodes asked for; NaN where it can neither be measured nor predicted.
        is_predicted: Whether it was predicted; then its bounds are those of a 90 % band.
        validation_s: Validation after each epoch, 0 if not recorded.
        startup_s: Start-up of a training, 0 if not recorded.
        attempts: Runs started for each that succeeded.
    """

    question: Question
    epochs: float
    epoch_s: Estimate
    is_predicted: bool
    validation_s: float
    startup_s: float
    attempts: float

    @property
    def training_s(self) -> Estimate:
        """Wall time of one training."""
        constant = self.startup_s + self.epochs * self.validation_s
        value, low, high = (
            constant + self.epochs * end for end in (self.epoch_s.value, self.epoch_s.low, self.epoch_s.high)
        )
        return Estimate(value, low, high)

    @property
    def node_hours(self) -> Estimate:
        """Node hours of all trainings."""
        return self.training_s.scaled(self.question.nodes * self.question.trainings * self.attempts / HOUR_S)


def parse_levels(texts: Sequence[str]) -> dict[str, str]:
    """Return levels by factor from texts such as `model=resnet-50`.

    Raises:
        InputError: If a text is not FACTOR=LEVEL.
    """
    pairs = [text.partition("=") for text in texts]
    for text, (factor, _, level) in zip(texts, pairs, strict=True):
        if not (factor and level):
            raise InputError(
                "wrong-format", f"'{text}' is no level", file="--level", got=text, expected="FACTOR=LEVEL"
            )
    return {factor: level for factor, _, level in pairs}


def choose_series(runs: pd.DataFrame, levels: Mapping[str, str] | None = None) -> Series:
    """Return the series with the most devices and scales and then the shortest epoch, among these levels.

    Raises:
        InputError: If no run succeeded, or a level or factor is unknown.
    """
    ok = successful(runs)
    if ok.empty:
        raise InputError("no-success", "no run of the study succeeded", expected="at least one measured cell")
    candidates = _at_levels(ok, levels or {})
    names = varying(ok, but=COUNTS)
    groups = [own for _, own in candidates.assign(all=0).groupby(["all", *names], dropna=False, sort=False)]
    best = max(
        groups,
        key=lambda own: (
            own["replicas"].max(),
            own["replicas"].nunique(),
            -own.loc[own["replicas"] == own["replicas"].max(), "epoch_time_s"].mean(),
        ),
    )
    cells = best.sort_values(["replicas", "nodes"], kind="stable")["cell"].drop_duplicates().tolist()
    baseline = baseline_cells(runs).get(cells[-1])
    if baseline and baseline not in cells:
        cells.insert(0, baseline)
    words = cell_words(runs, but=COUNTS).get(cells[-1], "")
    return Series(runs[runs["cell"].isin(cells)], words, _scaling_rows(runs, cells))


def _at_levels(ok: pd.DataFrame, levels: Mapping[str, str]) -> pd.DataFrame:
    for factor, level in levels.items():
        if factor not in (names := varying(ok)):
            problem = f"'{factor}' does not vary"
            raise InputError(
                "unknown-name", problem, file="--level", got=factor, **alternatives(factor, names)
            )
        texts = ok[factor].map(level_text)
        if level not in (choices := texts.unique().tolist()):
            problem = f"{factor} has no level '{level}' among these runs"
            raise InputError(
                "unknown-name", problem, file="--level", got=level, **alternatives(level, choices)
            )
        ok = ok[texts == level]
    return ok


def _scaling_rows(runs: pd.DataFrame, cells: Sequence[str]) -> pd.DataFrame:
    """Return time, speed-up over the first cell and efficiency of each cell, with bounds."""
    pooling, first = pooled(runs), successful(runs).drop_duplicates("cell").set_index("cell")
    samples = pd.to_numeric(first["samples_per_epoch"]).astype(float)
    ratios = pooling.ratios([cells[0]] * len(cells), list(cells))[ESTIMATE_COLUMNS]
    rows = []
    for cell, ratio in zip(cells, ratios.itertuples(index=False), strict=True):
        mean, speedup = pooling.cell_mean(cell), Estimate(1.0) if cell == cells[0] else Estimate(*ratio)
        row: dict[str, Any] = {
            "cell": cell,
            "framework": first.at[cell, "framework"],
            "nodes": int(first.at[cell, "nodes"]),
            "devices": int(first.at[cell, "replicas"]),
            "n": mean.n,
            "samples": samples[cell],
        }
        growth = row["devices"] / int(first.at[cells[0], "replicas"])
        for name, estimate in (
            ("epoch_time_s", mean),
            ("speedup", speedup),
            ("efficiency", speedup.scaled(1 / growth)),
        ):
            row |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        rows.append(row)
    return pd.DataFrame(rows)


def predict_epoch(runs_csv: Path, network_csv: Path | None, cell: str, nodes: int) -> Estimate:
    """Return the epoch time of a cell's series on so many nodes, with a 90 % band.

    NaN where the law does not hold for the series or has too few cells.
    """
    study = load_records(runs_csv, network_csv)
    case = study.law.cells[study.law.cells["cell"] == cell]
    if case.empty:
        return UNKNOWN
    is_epoch_known = not measured_elsewhere(study.runs)
    cells = hypothetical_cells(case, case["rate"].tolist(), nodes, is_epoch_known=is_epoch_known)
    cells = cells[cells["nodes"] == nodes].reset_index(drop=True)
    if cells.empty:
        return UNKNOWN
    predicted = study.law.predict(cells)
    return Estimate(
        *(float(pd.Series(end).iloc[0]) for end in (predicted.seconds, predicted.low, predicted.high))
    )


def _epochs(series: Series, question: Question) -> float:
    """Return the epochs of a training: as asked for, else those of the measured runs."""
    if question.epochs is not None and question.samples is not None:
        raise InputError("conflicting-keys", "give --epochs or --samples, not both", file="--samples")
    if question.samples is None:
        return question.epochs or float(successful(series.runs)["epochs"].max())
    samples = float(series.rows["samples"].iloc[-1])
    if math.isnan(samples):
        raise InputError(
            "conflicting-keys",
            "cannot be used: the runs do not say how many samples an epoch has",
            file="--samples",
            hint="give --epochs; a training to its target counts as one",
        )
    return question.samples / samples


def make_request(series: Series, question: Question, predicted: Estimate = UNKNOWN) -> Request:
    """Return the node hours that a question asks for; `predicted` counts if its nodes were not measured."""
    measured = series.row(question.nodes)
    epoch_s = predicted
    if measured is not None:
        epoch_s = Estimate(*measured[["epoch_time_s", "epoch_time_s_low", "epoch_time_s_high"]])
    ok = successful(series.runs)
    started = series.runs[series.runs["status"] != "missing"]
    means = {name: series.at_largest(name) for name in ("validation_time_s", "startup_s")}
    return Request(
        question,
        _epochs(series, question),
        epoch_s,
        measured is None,
        *(0.0 if math.isnan(mean) else mean for mean in means.values()),
        attempts=float(started["attempt"].fillna(1).sum()) / len(ok),
    )
