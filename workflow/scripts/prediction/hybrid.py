"""Table `hybrid`: predicted epoch times of heterogeneous ranks, and whether adding a slower device pays.

    T = max_r c(n_r) / k_r + X allreduce       c(n) = a + b n

c(n) is the epoch time of one rank alone with n samples of each step, from the single-device runs; k_r is the
strength of rank r relative to that one. The X gradient all-reduces of an epoch take the time of the
collective benchmark, without overlap. Strengths are the declared CPU shares (cpu_shares), or the speeds that
ranks measured before their first epoch. The best partition of the N samples of a step makes all ranks end
together: n_r = (T k_r - a) / b, with T = (b N + R a) / sum k for R ranks.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.level_words import cell_words
from analysis.records import cell_levels, read_runs, successful, varying, with_batch_numbers
from common.notes import Note
from common.options import run_program
from common.schemas import schema
from common.tables import read_table
from declared.factors import fixed_shares
from prediction.study_predictor import cells_with_costs
from ranks.worker.sampling import divide_step

TITLE = "Does adding a slower device pay? Predicted and measured epoch times of heterogeneous ranks"
NOTHING_TO_PREDICT = Note(
    "nothing-to-predict",
    "Nothing to predict: needs cells on several ranks with known speeds, and one on a single rank.",
)
DECLARED, MEASURED = "declared shares", "measured speeds"
MIN_STRENGTH, MAX_STRENGTH = 1e-3, 1e3  # The break-even strength is searched between these.
N_BISECTIONS = 50
SCALE_FACTORS = ("nodes", "devices_per_node", "shares")  # These may differ when a device is added.


@dataclass(frozen=True)
class Ranks:
    """The ranks of a cell.

    Attributes:
        fixed_epoch_s: Constant part a of an epoch of one rank alone.
        sample_epoch_s: Epoch seconds b for each sample of a step.
        allreduce_s: Gradient all-reduces of an epoch.
        step_samples: Samples of a step over all ranks.
        shares: Level of the factor `shares`.
        strengths: Speed of each rank relative to the rank of `fixed_epoch_s` and `sample_epoch_s`.
    """

    fixed_epoch_s: float
    sample_epoch_s: float
    allreduce_s: float
    step_samples: int
    shares: str
    strengths: tuple[float, ...]

    def samples(self) -> list[int]:
        """Return the samples of each rank in a step."""
        if self.shares == "measured":
            return self.balanced_samples()
        return divide_step(self.step_samples, fixed_shares(self.shares) or [1.0] * len(self.strengths))

    def balanced_samples(self) -> list[int]:
        """Return the samples of each rank with which all ranks end together, rounded to whole samples."""
        k = np.array(self.strengths)
        end_s = (self.sample_epoch_s * self.step_samples + len(k) * self.fixed_epoch_s) / k.sum()
        return divide_step(
            self.step_samples, np.maximum(end_s * k - self.fixed_epoch_s, 1e-9 * end_s).tolist()
        )

    def seconds(self, samples: Sequence[int]) -> float:
        """Return the time of an epoch with these samples of each rank in a step."""
        times = (
            (self.fixed_epoch_s + self.sample_epoch_s * n) / k
            for n, k in zip(samples, self.strengths, strict=True)
        )
        return max(times) + self.allreduce_s


def cells_with_strengths(runs: pd.DataFrame, network: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each measured cell and source of strengths, with the numbers of `Ranks`.

    A cell on one rank has one row. Cells are excluded if their strengths are unknown, or if no rank was
    measured alone.
    """
    cells, runs_of_cell = _cells_with_costs(runs, network), successful(runs).groupby("cell")
    rows = [
        {**cell, "source": source, "strengths": strengths}
        for cell in cells[cells["fixed_epoch_s"].notna()].to_dict("records")
        for source, strengths in _strengths_by_source(cell, runs_of_cell.get_group(cell["cell"])).items()
    ]
    return pd.DataFrame(rows, columns=None if rows else ["cell", "source", "ranks"])


def cells_without_baseline(runs: pd.DataFrame, network: pd.DataFrame) -> list[str]:
    """Return the cells with known rank speeds of which no rank was measured alone."""
    cells, ok = _cells_with_costs(runs, network), successful(runs)
    with_speeds = ok.loc[ok[["cpu_shares", "rank_speeds"]].notna().any(axis=1), "cell"]
    is_excluded = cells["fixed_epoch_s"].isna() & (cells["ranks"] > 1) & cells["cell"].isin(with_speeds)
    return cells.loc[is_excluded, "cell"].tolist()


def _cells_with_costs(runs: pd.DataFrame, network: pd.DataFrame) -> pd.DataFrame:
    """Return the measured cells with the fields of `Ranks`; a and b are NaN if no rank was measured alone."""
    cells = cells_with_costs(runs, network)
    batches_per_epoch, n_allreduces = cells["batches_per_epoch"], cells["n_allreduces"]
    return cells.assign(
        fixed_epoch_s=batches_per_epoch * cells["fixed_s"] + n_allreduces * cells["update_s"],
        sample_epoch_s=batches_per_epoch * cells["sample_s"],
        allreduce_s=n_allreduces * cells["benchmarked_messages_s"],
        step_samples=(cells["local_batch"] * cells["n_devices"]).round().astype(int),
    )


def _strengths_by_source(cell: Mapping[Any, Any], runs: pd.DataFrame) -> dict[str, tuple[float, ...]]:
    """Return the strengths of a cell's ranks by source, relative to a rank that takes c(n) for n samples."""
    if cell["ranks"] == 1:
        return {DECLARED: (1.0,)}
    by_source = {}
    if runs["cpu_shares"].notna().any():
        shares = np.array(runs["cpu_shares"].dropna().iloc[0].split("/"), float)
        by_source[DECLARED] = tuple(np.repeat(shares / shares[0], cell["ranks"] // len(shares)).tolist())
    measured = runs.dropna(subset="rank_speeds")
    if len(measured):
        speeds, samples = (
            np.array(measured[name].str.split("/").tolist(), float)
            for name in ("rank_speeds", "rank_samples")
        )
        epoch_s = cell["batches_per_epoch"] * samples / speeds
        strengths = (cell["fixed_epoch_s"] + cell["sample_epoch_s"] * samples) / epoch_s
        by_source[MEASURED] = tuple(np.mean(strengths, axis=0).tolist())
    return by_source


def build_rows(runs: pd.DataFrame, network: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each cell on several ranks and source of strengths, with predicted and measured times.

    `saved` is the share of the epoch time that the last rank saves, compared with the cell without it.
    `break_even` is the strength, relative to the strongest other rank, above which the last rank saves time.

    Args:
        runs: runs.csv of the study.
        network: network.csv of the study.
    """
    candidates = cells_with_strengths(runs, network)
    measured_samples = successful(runs).groupby("cell")["rank_samples"].first()
    fixed = varying(runs, exclude=SCALE_FACTORS)
    rows = []
    for _, cell in candidates[candidates["ranks"] > 1].iterrows():
        ranks = _ranks(cell)
        samples = ranks.samples()
        smaller = _cell_with_fewer_ranks(candidates, cell, fixed)
        fewer_ranks = _ranks(smaller) if smaller is not None else None
        before_s = fewer_ranks.seconds(fewer_ranks.samples()) if fewer_ranks else math.nan
        predicted_s, best_s = ranks.seconds(samples), ranks.seconds(ranks.balanced_samples())
        measured_before_s = float(smaller["epoch_time_s"]) if smaller is not None else math.nan
        rows.append(
            {
                "cell": cell["cell"],
                **{name: cell[name] for name in dict.fromkeys([*fixed, *SCALE_FACTORS])},
                "ranks": cell["ranks"],
                "source": cell["source"],
                "strengths": "/".join(f"{k / max(ranks.strengths):.4g}" for k in ranks.strengths),
                "samples": "/".join(map(str, samples)),
                "measured_samples": measured_samples.get(cell["cell"]),
                "allreduce_s": ranks.allreduce_s,
                "epoch_time_s": cell["epoch_time_s"],
                "n": cell["n"],
                "predicted_s": predicted_s,
                "error": predicted_s / cell["epoch_time_s"] - 1,
                "best_samples": "/".join(map(str, ranks.balanced_samples())),
                "best_s": best_s,
                "without": smaller["cell"] if smaller is not None else None,
                "saved": 1 - predicted_s / before_s,
                "measured_saved": 1 - cell["epoch_time_s"] / measured_before_s,
                "break_even": break_even(ranks, before_s),
            }
        )
    order = {cell: position for position, cell in enumerate(cell_levels(runs)["cell"])}
    rows.sort(key=lambda row: order[row["cell"]])
    return pd.DataFrame(rows, columns=None if rows else ["cell", "source"])


def _ranks(row: pd.Series) -> Ranks:
    return Ranks(**{attribute.name: row[attribute.name] for attribute in fields(Ranks)})


def _cell_with_fewer_ranks(
    candidates: pd.DataFrame, cell: pd.Series, fixed: Sequence[str]
) -> pd.Series | None:
    """Return the cell with the next fewer ranks and the same other levels, or None.

    Cells with the same shares and source of strengths are preferred.
    """
    has_levels = (candidates[list(fixed)] == cell[list(fixed)]).all(axis=1)
    smaller = candidates[has_levels & (candidates["ranks"] < cell["ranks"])]
    if smaller.empty:
        return None
    differs = (smaller["shares"] != cell["shares"]) + 2 * (smaller["source"] != cell["source"])
    order = pd.DataFrame({"ranks": -smaller["ranks"], "differs": differs})
    return smaller.loc[order.sort_values(["ranks", "differs"], kind="stable").index[0]]


def break_even(ranks: Ranks, before_s: float) -> float:
    """Return the strength of the last rank above which an epoch takes less than `before_s`.

    It is relative to the strongest other rank; inf if no strength is enough, NaN if a time is unknown.
    """
    other_strengths = ranks.strengths[:-1]

    def seconds(strength: float) -> float:
        extended = replace(ranks, strengths=(*other_strengths, strength))
        return extended.seconds(extended.samples())

    if math.isnan(before_s) or math.isnan(ranks.allreduce_s):
        return math.nan
    if seconds(MAX_STRENGTH) >= before_s:
        return math.inf
    low, high = math.log(MIN_STRENGTH), math.log(MAX_STRENGTH)
    for _ in range(N_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if seconds(math.exp(middle)) < before_s else (middle, high)
    return math.exp(high) / max(other_strengths)


def table(runs: pd.DataFrame, network: pd.DataFrame) -> tables.Table:
    """Return the table of a study with heterogeneous ranks."""
    rows, text_columns, labels = build_rows(runs, network), ["cell", "speeds from"], cell_words(runs)
    notes = [conditions.measurement_note(runs)] if len(successful(runs)) else []
    if without_baseline := cells_without_baseline(runs, network):
        names = "; ".join(labels[cell] for cell in without_baseline)
        text = f"Not predicted, because no rank was measured alone on their work: {names}."
        notes.insert(0, Note("cells-not-predicted", text, cells=without_baseline))
    if rows.empty:
        display = pd.DataFrame(columns=["cell"])
        return tables.Table(TITLE, rows, display, [NOTHING_TO_PREDICT, *notes], text_columns)
    percent = partial(tables.change, decimals=1)
    first = rows["cell"] != rows["cell"].shift()
    cell_starts = rows.index[first].tolist()
    columns = {
        "cell": rows["cell"].map(labels).where(first, ""),
        "speeds from": rows["source"],
        "strengths": rows["strengths"],
        "samples of ranks": rows["samples"],
        "measured with": rows["measured_samples"].fillna(tables.DASH).where(first, ""),
        "predicted (s)": rows["predicted_s"].map(_seconds_text),
        "measured (s)": rows["epoch_time_s"].map(_seconds_text).where(first, ""),
        "error (%)": rows["error"].map(percent),
        "best (s)": rows["best_s"].map(_seconds_text),
        "last rank saves (%)": rows["saved"].map(percent),
        "measured (%)": rows["measured_saved"].map(percent).where(first, ""),
        "pays from strength": rows["break_even"].map(_strength_text),
    }
    predicted = (
        "Predicted: the slowest rank's computation, from the runs on one rank, plus gradient all-reduces, "
        "from the collective benchmark, without overlap or random waiting. Strengths are relative to the "
        "strongest rank: CPU shares that the site declares, or speeds that ranks measured before the first "
        "epoch. Best: a step's samples are partitioned so that all ranks end together. Last rank saves: 1 "
        "minus epoch time over that of the cell without it. Pays from strength: a last rank that is weaker, "
        "relative to the strongest other rank, costs more than it saves."
    )
    notes = [Note("predicted", predicted), *notes]
    return tables.Table(TITLE, rows, pd.DataFrame(columns), notes, text_columns, cell_starts[1:])


def _seconds_text(value: float) -> str:
    return tables.DASH if pd.isna(value) else f"{value:.3g}"


def _strength_text(value: float) -> str:
    if pd.isna(value):
        return tables.DASH
    return "none" if math.isinf(value) else f"{value:.2g}"


def main(*, runs: Path, out: Path, network: Path | None = None) -> None:
    """Write the table of heterogeneous ranks.

    Args:
        runs: runs.csv of the study
        out: files to write, without their suffix
        network: network.csv of the study, if there is a collective benchmark
    """
    columns = list(schema("network")["properties"])
    benchmarks = read_table(network, "network") if network else pd.DataFrame(columns=columns)
    tables.write(table(with_batch_numbers(read_runs(runs)), benchmarks), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
