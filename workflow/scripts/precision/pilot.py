"""Table of a pilot: how many runs, and of how many epochs, give an interval of the wanted width in the least time.

A run costs its start-up once, whatever it trains; a longer run has the mean of more epochs. With the variances of `analysis.variance`, of
logarithms, the mean of n runs of e timed epochs has the variance

    (block + run + epoch / e) / n

and costs n (start-up + e epochs). That is two-stage sampling: the best e grows with start-up over epoch, and with the variance within runs over
that between them (Cochran, Sampling Techniques, 3rd ed. (1977), section 10.6). Here all e up to MOST_EPOCHS are tried, since n is a whole number,
FEWEST at least, and few runs have wide intervals (Student's t).

The pilot is the first two blocks of the campaign itself, so that its runs count for it unless `epochs` is changed.
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
from analysis.intervals import t_interval
from analysis.measured import level_text, successful, timed
from analysis.pooling import MOST_PRIOR
from analysis.variance import Components, components, logarithms
from common.errors import InputError
from common.notes import Note
from common.options import run_program
from common.tables import read_table
from common.text import duration
from declared.study import Replicates, Study
from plan.campaign import measured_campaign
from precision.stopping import needed
from records.aggregate import aggregate

AIMS = (0.01, 0.02, 0.05, 0.1, 0.2)  # half-widths of a mean's interval, as shares of it
FEWEST = 3  # runs of a cell: of two, nobody knows how far they spread
MOST_RUNS = 1000
MOST_EPOCHS = 60
TITLE = "What an interval costs: more runs, or longer ones"


@dataclass(frozen=True)
class Times:
    """Seconds of one run of a cell: those that it takes whatever it trains, warm-up epochs among them, and those of a further epoch."""

    fixed_s: float
    epoch_s: float

    def run_s(self, epochs: int) -> float:
        """Of a run of so many timed epochs."""
        return self.fixed_s + epochs * self.epoch_s


def times_of(runs: pd.DataFrame, epochs: pd.DataFrame) -> dict[str, Times]:
    """By cell, means over its successful runs. A further epoch is one with its validation."""
    counted = epochs[~epochs["warm_up"].astype(bool)].groupby("run_id")
    each = (counted["epoch_time_s"].mean() + counted["validation_time_s"].mean().fillna(0.0)).rename("epoch_s")
    ok = successful(runs).set_index("run_id").join(each).join(counted.size().rename("timed"))
    ok["fixed_s"] = (ok["wall_s"] - ok["timed"] * ok["epoch_s"]).clip(lower=0.0)
    means = ok.groupby("cell", sort=False)[["fixed_s", "epoch_s"]].mean()
    return {str(cell): Times(*map(float, row)) for cell, *row in means.itertuples()}


def half_width(sd: float, n: np.ndarray, prior_df: float) -> np.ndarray:
    """Half the width of the 95 % interval of a mean of n runs, as a share of it; `sd`: of a run's logarithm (`analysis.pooling`)."""
    _, high = t_interval(0.0, sd / np.sqrt(n), n - 1 + prior_df)
    return np.sinh(high)


def runs_needed(sd: float, until: float, prior_df: float) -> float:
    """The fewest runs of a cell whose interval is so narrow; infinite above MOST_RUNS."""
    n = np.arange(FEWEST, MOST_RUNS + 1)
    enough = half_width(sd, n, prior_df) <= until
    return float(n[np.argmax(enough)]) if enough.any() else math.inf


def sd_of(found: Components, epochs: float) -> float:
    """Standard deviation of the mean logarithm of a run of so many timed epochs about its cell, blocks included."""
    known = {part: 0.0 if math.isnan(value) else value for part, value in found.variance.items()}
    return math.sqrt(known["block"] + known["run"] + known["epoch"] / epochs)


@dataclass(frozen=True)
class Aim:
    """What a study wants of its means: half-widths as shares, and the rule by which its cells stop, where they do."""

    until: tuple[float, ...] = ()
    rule: Replicates | None = None

    @classmethod
    def of(cls, study: Study) -> "Aim":
        """Of a study: its precision, else its margin. Of ratios a pilot says nothing."""
        rule = study.replicates
        if rule.until is None:
            return cls((study.margin,) if study.margin else ())
        return cls(() if rule.contrasts else (rule.until,), rule)

    def runs(self, sd: float, until: float, cells: int) -> float:
        """The runs of a cell that its mean needs; infinite above MOST_RUNS. Those of the study's own precision by its own rule."""
        if self.rule is None or until not in self.until:
            return runs_needed(sd, until, MOST_PRIOR if cells > 1 else 0.0)
        n = float(needed(sd, replace(self.rule, at_most=MOST_RUNS), cells))
        return n if n < MOST_RUNS else math.inf


def compare(found: Components, times: Mapping[str, Times], aim: Aim = Aim()) -> pd.DataFrame:
    """A row per half-width, those of AIMS and of the study's `aim`: until (a share); epochs, runs of a cell and seconds of all cells, as the
    runs are now (now_...) and where they are cheapest (best_...). NaN where no number of runs reaches it."""
    now = round(found.epochs)
    candidates = sorted({*range(1, MOST_EPOCHS + 1), now})
    spreads = {epochs: sd_of(found, epochs) for epochs in candidates}
    one_each = {epochs: sum(cell.run_s(epochs) for cell in times.values()) for epochs in candidates}
    rows = []
    for until in sorted({*AIMS, *aim.until}):
        runs = {epochs: aim.runs(spreads[epochs], until, len(times)) for epochs in candidates}
        seconds = {epochs: runs[epochs] * one_each[epochs] for epochs in candidates}
        best = min(candidates, key=lambda epochs: (seconds[epochs], epochs))
        row: dict[str, float] = {"until": until}
        for name, epochs in (("now", now), ("best", best)):
            there = math.isfinite(runs[epochs])
            row |= {
                f"{name}_epochs": epochs if there or name == "now" else math.nan,
                f"{name}_runs": runs[epochs] if there else math.nan,
                f"{name}_s": seconds[epochs] if there else math.nan,
            }
        rows.append(row)
    return pd.DataFrame(rows)


def table(runs: pd.DataFrame, epochs: pd.DataFrame, aim: Aim = Aim()) -> tables.Table:
    """The table of the runs that are there. InputError where they say nothing of their variance."""
    known = logarithms(runs, epochs)
    found, times = components(known), times_of(runs, epochs)
    if not (found.df["run"] > 0 and found.df["epoch"] > 0):
        raise InputError(
            "too-few-runs",
            "a pilot needs two successful runs of a cell at least, of two timed epochs each",
            hint="say epochs: 3 or more in the study, and see ./ringside status for runs that failed",
        )
    data = compare(found, times, aim)
    shown = pd.DataFrame(
        {
            "interval (± %)": [
                f"{tables.number(100 * until)}{' (aim)' * (until in aim.until)}" for until in data["until"]
            ],
            **_shown(data, "now", "as now"),
            **_shown(data, "best", "cheapest"),
            "time saved (%)": [tables.percent(share, 0) for share in 1 - data["best_s"] / data["now_s"]],
        }
    )
    return tables.Table(
        TITLE, data, shown, [*_notes(found, times, runs), *_of_aim(aim, data), conditions.setting(runs)]
    )


def _shown(data: pd.DataFrame, name: str, words: str) -> dict[str, list[str]]:
    return {
        f"{words}: timed epochs": [_whole(epochs) for epochs in data[f"{name}_epochs"]],
        f"{words}: runs of a cell": [_whole(runs) for runs in data[f"{name}_runs"]],
        f"{words}: time": [tables.DASH if math.isnan(seconds) else duration(seconds) for seconds in data[f"{name}_s"]],
    }


def _whole(number: float) -> str:
    return tables.DASH if math.isnan(number) else f"{number:.0f}"


def _notes(found: Components, times: Mapping[str, Times], runs: pd.DataFrame) -> list[Note]:
    now = found.epochs
    whole = sum(cell.run_s(round(now)) for cell in times.values())
    start = sum(cell.fixed_s for cell in times.values()) / whole
    sd = {part: 100 * math.sqrt(value) for part, value in found.variance.items() if not math.isnan(value)}
    told = [f"runs differ by {sd['run']:.2g} % (df {found.df['run']})"]
    if "block" in sd:
        told.append(f"blocks by {sd['block']:.2g} % (df {found.df['block']})")
    told.append(f"epochs of one run by {sd['epoch']:.2g} % (df {found.df['epoch']})")
    lengths = sorted(set(runs["epochs"].dropna()))
    return [
        Note(
            "interval-and-time",
            f"Interval: 95 %, of a cell's mean epoch time. Time: of all {len(times)} cells, one run after the other, without what is between runs.",
            cells=len(times),
        ),
        Note(
            "measured-spread",
            f"Measured: {', '.join(told)}. {100 * start:.0f} % of a run is start-up, warm-up epochs and an end, which take as long however many "
            "epochs are timed.",
            startup_share=start,
            variance=dict(found.variance),
            df=dict(found.df),
        ),
        Note(
            "known-roughly",
            "A pilot knows these variances only roughly, and so what is cheapest. To change the length, set "
            f"`epochs` in the study (now {', '.join(map(level_text, lengths))}, warm-up included). Then the runs of this pilot stay on disk, but do not count "
            "for the campaign. A study of accuracy needs its epochs for that.",
            epochs=lengths,
        ),
    ]


def _of_aim(aim: Aim, data: pd.DataFrame) -> Iterator[Note]:
    """How the study's own precision stands to the rows."""
    if aim.rule is None:
        return
    if aim.rule.contrasts:
        text = "The study asks for the precision of ratios; the rows are of means. Ratios of cells that share blocks are mostly narrower."
        yield Note("ratios-asked", text)
        return
    (row,) = data[data["until"].isin(aim.until)].itertuples()
    most = aim.rule.at_most
    yield Note(
        "aim-by-rule",
        "Aim: runs by the study's rule, which also asks that it is known how far runs spread; of the other rows by the width alone, as with a "
        "fixed number of replicates.",
    )
    if not row.now_runs <= most:
        there = (
            "no number of runs reaches it"
            if math.isnan(row.now_runs)
            else f"it needs {row.now_runs:.0f} runs of a cell"
        )
        text = f"at_most: {most} is too few for the aim: with epochs as they are {there}."
        yield Note("at-most-too-few", text, at_most=most, runs=float(row.now_runs))


def main(*, study: str, site: str, records: str, out: Path) -> None:
    """Make the table of a pilot, and show it.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        records: campaign, available, or the folder with published tables
        out: files to write, without their suffix
    """
    campaign = measured_campaign(study, site, records)
    with tempfile.TemporaryDirectory() as folder:
        epochs_csv = Path(folder) / "epochs.csv"
        there = [run for run in campaign.runs if run.run_id in campaign.statuses]
        runs = timed(aggregate(replace(campaign, possible=there), epochs_csv))
        epochs = read_table(epochs_csv, "epochs")
    made = table(runs, epochs, Aim.of(campaign.study))
    tables.write(made, out)
    print(tables.markdown(made))


if __name__ == "__main__":
    sys.exit(run_program(main))
