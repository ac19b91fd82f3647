"""Make the table of a pilot: the number and length of runs that reach a target interval in the shortest time.

A run pays its start-up once; a longer run averages more epochs. With the variance components of logarithms
(analysis.variance), the mean of n runs of e timed epochs has the variance

    (block + run + epoch / e) / n

and costs n (start-up + e epochs). This is two-stage sampling: the best e grows with the ratio of start-up to
epoch time, and with the ratio of the variances within and between runs (Cochran, Sampling Techniques, 3rd
ed., 1977, section 10.6). There is no formula for it, because n is an integer of at least MIN_RUNS, and
Student's t widens the intervals of few runs. So all e up to MAX_EPOCHS are tried.

The pilot is the first two blocks of the campaign. Its runs count for the campaign unless `epochs` changes.
"""

import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.cell_means import MAX_PRIOR_DF
from analysis.intervals import t_interval
from analysis.level_words import level_text
from analysis.records import successful, timing_runs
from analysis.variance import Components, estimate_components, log_times_by_run
from common.errors import InputError
from common.notes import Note
from common.options import run_program
from common.tables import read_table
from common.text import format_duration
from declared.replicates import Replicates
from declared.responses import EPOCH_TIME, RESPONSES
from declared.study import Study
from plan.campaign import measured_campaign
from records.aggregate import aggregate_records
from replication.stopping import runs_to_target

TARGETS = (0.01, 0.02, 0.05, 0.1, 0.2)  # Half widths of the interval of a mean, relative to the mean.
MIN_RUNS = 3  # Two runs of a cell do not determine a standard deviation.
MAX_RUNS = 1000
MAX_EPOCHS = 60
TITLE = "Cost of an interval: more runs, or longer runs"


@dataclass(frozen=True)
class Times:
    """Fixed time of a run (start-up, warm-up epochs, shutdown), and time of an epoch with its validation."""

    fixed_s: float
    epoch_s: float

    def run_s(self, epochs: int) -> float:
        """Return the time of a run of `epochs` timed epochs."""
        return self.fixed_s + epochs * self.epoch_s


def mean_times(runs: pd.DataFrame, epochs: pd.DataFrame) -> dict[str, Times]:
    """Return the mean times of each cell's successful runs."""
    counted = epochs[~epochs["warm_up"].astype(bool)].groupby("run_id")
    epoch_s = (counted["epoch_time_s"].mean() + counted["validation_time_s"].mean().fillna(0.0)).rename(
        "epoch_s"
    )
    ok = successful(runs).set_index("run_id").join(epoch_s).join(counted.size().rename("timed"))
    ok["fixed_s"] = (ok["wall_s"] - ok["timed"] * ok["epoch_s"]).clip(lower=0.0)
    means = ok.groupby("cell", sort=False)[["fixed_s", "epoch_s"]].mean()
    return {str(cell): Times(*map(float, row)) for cell, *row in means.itertuples()}


def half_width(sd: float, n: np.ndarray, prior_df: float) -> np.ndarray:
    """Return half the width of the 95 % interval of the mean of n runs, relative to the mean.

    Args:
        sd: Standard deviation of a run's logarithm.
        n: Numbers of runs.
        prior_df: Degrees of freedom that moderation adds (analysis.cell_means).
    """
    _, high = t_interval(0.0, sd / np.sqrt(n), n - 1 + prior_df)
    return np.sinh(high)


def runs_needed(sd: float, until: float, prior_df: float) -> float:
    """Return the fewest runs that give a half width of at most `until`, infinity above MAX_RUNS."""
    n = np.arange(MIN_RUNS, MAX_RUNS + 1)
    enough = half_width(sd, n, prior_df) <= until
    return float(n[np.argmax(enough)]) if enough.any() else math.inf


def run_sd(variances: Components, epochs: float) -> float:
    """Return the sd of the mean logarithm of a run of `epochs` timed epochs, with the variance of blocks."""
    parts = {part: 0.0 if math.isnan(value) else value for part, value in variances.variance.items()}
    return math.sqrt(parts["block"] + parts["run"] + parts["epoch"] / epochs)


@dataclass(frozen=True)
class Aim:
    """Interval targets of a study, as half widths relative to means, and its stopping rule if it has one."""

    until: tuple[float, ...] = ()
    rule: Replicates | None = None

    @classmethod
    def from_study(cls, study: Study) -> "Aim":
        """Return a study's target: the one of its stopping rule, or else its margin if it is about times.

        A rule for ratios has no target here, because the table is about means.
        """
        rule, response = study.replicates, RESPONSES[study.response]
        if rule.until is None:
            # Rates are inverse to times, so their relative intervals are as wide.
            is_inverse = response == EPOCH_TIME or response.is_rate
            return cls((study.margin,) if study.margin and is_inverse else ())
        return cls(() if rule.contrasts else (rule.until,), rule)

    def runs(self, sd: float, until: float, cells: int) -> float:
        """Return the runs that a cell needs, infinity above MAX_RUNS.

        If `until` is the study's target, the stopping rule decides, otherwise the width alone.
        """
        if self.rule is None or until not in self.until:
            return runs_needed(sd, until, MAX_PRIOR_DF if cells > 1 else 0.0)
        n = float(runs_to_target(sd, replace(self.rule, at_most=MAX_RUNS), cells))
        return n if n < MAX_RUNS else math.inf


def build_rows(variances: Components, times: Mapping[str, Times], aim: Aim = Aim()) -> pd.DataFrame:
    """Return the cost of each target with the current and with the cheapest length of runs.

    Returns:
        A row per half width in TARGETS and in the study's aim. until is the half width. now_epochs, now_runs
        (of a cell) and now_s (of all cells) are for runs as long as now; best_... are for the cheapest
        length. They are NaN if no number of runs suffices.
    """
    now = round(variances.epochs)
    candidates = sorted({*range(1, MAX_EPOCHS + 1), now})
    spreads = {epochs: run_sd(variances, epochs) for epochs in candidates}
    block_s = {epochs: sum(cell.run_s(epochs) for cell in times.values()) for epochs in candidates}
    rows = []
    for until in sorted({*TARGETS, *aim.until}):
        runs = {epochs: aim.runs(spreads[epochs], until, len(times)) for epochs in candidates}
        seconds = {epochs: runs[epochs] * block_s[epochs] for epochs in candidates}
        best = min(candidates, key=lambda epochs: (seconds[epochs], epochs))
        row: dict[str, float] = {"until": until}
        for name, epochs in (("now", now), ("best", best)):
            is_reachable = math.isfinite(runs[epochs])
            row |= {
                f"{name}_epochs": epochs if is_reachable or name == "now" else math.nan,
                f"{name}_runs": runs[epochs] if is_reachable else math.nan,
                f"{name}_s": seconds[epochs] if is_reachable else math.nan,
            }
        rows.append(row)
    return pd.DataFrame(rows)


def table(runs: pd.DataFrame, epochs: pd.DataFrame, aim: Aim = Aim()) -> tables.Table:
    """Return the table of a pilot.

    Raises:
        InputError: If there are too few runs or epochs to estimate variances.
    """
    variances, times = estimate_components(log_times_by_run(runs, epochs)), mean_times(runs, epochs)
    if not (variances.df["run"] > 0 and variances.df["epoch"] > 0):
        raise InputError(
            "too-few-runs",
            "a pilot needs at least two successful runs of a cell, with at least two timed epochs each",
            hint="set epochs: 3 or more in the study; ./ringside status lists runs that failed",
        )
    data = build_rows(variances, times, aim)
    columns = {
        "interval (± %)": [
            f"{tables.number(100 * until)}{' (aim)' * (until in aim.until)}" for until in data["until"]
        ]
    }
    for name, words in (("now", "as now"), ("best", "cheapest")):
        for column, heading in (("epochs", "timed epochs"), ("runs", "runs of a cell")):
            counts = data[f"{name}_{column}"]
            columns[f"{words}: {heading}"] = [tables.DASH if math.isnan(n) else f"{n:.0f}" for n in counts]
        columns[f"{words}: time"] = [
            tables.DASH if math.isnan(seconds) else format_duration(seconds) for seconds in data[f"{name}_s"]
        ]
    columns["time saved (%)"] = [tables.percent(share, 0) for share in 1 - data["best_s"] / data["now_s"]]
    notes = [*_notes(variances, times, runs), *_aim_notes(aim, data), conditions.measurement_note(runs)]
    return tables.Table(TITLE, data, pd.DataFrame(columns), notes)


def _notes(variances: Components, times: Mapping[str, Times], runs: pd.DataFrame) -> list[Note]:
    total_s = sum(cell.run_s(round(variances.epochs)) for cell in times.values())
    start = sum(cell.fixed_s for cell in times.values()) / total_s
    parts = [
        f"{words} by {100 * math.sqrt(variances.variance[part]):.2g} % (df {variances.df[part]})"
        for part, words in (("run", "runs"), ("block", "blocks"), ("epoch", "epochs of one run"))
        if not math.isnan(variances.variance[part])
    ]
    lengths = sorted(set(runs["epochs"].dropna()))
    return [
        Note(
            "interval-and-time",
            f"Interval: 95 %, of a cell's mean epoch time. Time: all {len(times)} cells, one run after the "
            "other, without the time between runs.",
            cells=len(times),
        ),
        Note(
            "measured-spread",
            f"Measured differences: {', '.join(parts)}. {100 * start:.0f} % of a run is start-up, warm-up "
            "epochs and shutdown, whose time does not depend on the number of timed epochs.",
            startup_share=start,
            variance=dict(variances.variance),
            df=dict(variances.df),
        ),
        Note(
            "known-roughly",
            "A pilot estimates these variances, and so the cheapest length, only roughly. To change the "
            f"length, set `epochs` in the study (now {', '.join(map(level_text, lengths))}, warm-up "
            "included). The runs of this pilot then stay on disk, but do not count for the campaign. A study "
            "of accuracy needs its number of epochs.",
            epochs=lengths,
        ),
    ]


def _aim_notes(aim: Aim, data: pd.DataFrame) -> Iterator[Note]:
    """Explain how the study's target relates to the rows."""
    if aim.rule is None:
        return
    if aim.rule.contrasts:
        text = "The study's target is for ratios, mostly with narrower intervals; the rows are for means."
        yield Note("ratios-asked", text)
        return
    (row,) = data[data["until"].isin(aim.until)].itertuples()
    yield Note(
        "aim-by-rule",
        "Aim: runs by the study's rule, which also requires that the spread of runs is well known. The other "
        "rows count runs by the width alone, as for a fixed number of replicates.",
    )
    if not row.now_runs <= (at_most := aim.rule.at_most):
        text = f"at_most: {at_most} is too few for the aim with the present number of epochs."
        yield Note("at-most-too-few", text, at_most=at_most, runs=float(row.now_runs))


def main(*, study: str, site: str, records: str, out: Path) -> None:
    """Make the table of a pilot, and print it.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        records: campaign, available, or the folder with published tables
        out: files to write, without their suffix
    """
    campaign = measured_campaign(study, site, records)
    with tempfile.TemporaryDirectory() as folder:
        epochs_csv = Path(folder) / "epochs.csv"
        attempted = [run for run in campaign.runs if run.run_id in campaign.statuses_by_run]
        runs = timing_runs(aggregate_records(replace(campaign, designed_runs=attempted), epochs_csv))
        epochs = read_table(epochs_csv, "epochs")
    result = table(runs, epochs, Aim.from_study(campaign.study))
    tables.write(result, out)
    print(tables.markdown(result))


if __name__ == "__main__":
    sys.exit(run_program(main))
