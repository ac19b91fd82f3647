"""Table of cell means: what each cell of the design measured, with 95 % intervals over replicates.

Costs have arithmetic means, rates have harmonic means (Hoefler & Belli, SC'15, rule 3).
"""

import math
import warnings
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from analysis import conditions, intervals, tables
from analysis.intervals import Estimate
from analysis.measured import cell_levels, level_text, successful, title, varying
from analysis.pooling import Pooling, pooled
from common.notes import Note

TIME, RATES = "epoch_time_s", ("throughput_samples_s", "throughput_tokens_s")
STEP_QUANTILES = (
    "Steps: quantiles of all training steps of a run's timed epochs, slowest rank of each step (Hoefler & "
    "Belli, rule 8); shown are their means over runs."
)
MIN_BOOTSTRAP_RUNS = 10
RESAMPLES = 1999
SEED = 20261121
BOOTSTRAP_BATCH = 10_000_000  # limits memory


@dataclass(frozen=True)
class Response:
    """A measured column and how it is displayed.

    Attributes:
        column: Column in runs.csv.
        heading: Heading with the displayed unit.
        minimum: Smallest possible value, in the column's unit.
        maximum: Largest possible value.
        unit_multiplier: Factor from the column's unit to the displayed one.
        digits: Significant digits displayed.
    """

    column: str
    heading: str
    minimum: float = field(default=0.0, kw_only=True)
    maximum: float = field(default=math.inf, kw_only=True)
    unit_multiplier: float = field(default=1.0, kw_only=True)
    digits: int = field(default=3, kw_only=True)


RESPONSES = [
    Response(TIME, "epoch time (s)"),
    Response("throughput_samples_s", "throughput (samples/s)"),
    Response("throughput_tokens_s", "throughput (tokens/s)"),
    Response("train_accuracy", "training accuracy (%)", maximum=1, unit_multiplier=100),
    Response("validation_accuracy", "validation accuracy (%)", maximum=1, unit_multiplier=100),
    Response("perplexity", "perplexity", minimum=1),
    Response("step_time_median_s", "step, median (ms)", unit_multiplier=1e3),
    Response("step_time_p95_s", "step, 95 % quantile (ms)", unit_multiplier=1e3),
    Response("step_time_p99_s", "step, 99 % quantile (ms)", unit_multiplier=1e3),
    Response("step_time_largest_s", "longest step (ms)", unit_multiplier=1e3),
    Response("memory_peak_bytes", "memory per rank (MiB)", unit_multiplier=2**-20),
    Response("device_memory_peak_bytes", "device memory (MiB)", unit_multiplier=2**-20),
]


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell: factors, n, unsuccessful, and the statistics of each response.

    Each response has the columns mean, low, high (in its own unit) and cv; epoch times also have a median.
    """
    ok, pooling = successful(runs), pooled(runs)
    rows = cell_levels(runs).set_index("cell", drop=False)
    rows["n"] = ok.groupby("cell").size().reindex(rows.index, fill_value=0)
    rows["unsuccessful"] = runs.groupby("cell").size().reindex(rows.index) - rows["n"]
    for response in RESPONSES:
        if runs[response.column].isna().all():
            continue
        values = ok[response.column].astype(float)
        if response.column == TIME:
            estimates = pooling.cell_statistics.rename(columns={"mean": "value"})
        elif response.column in RATES:
            estimates = _harmonic_means(values, ok["cell"], pooling)
        else:
            estimates = intervals.means(
                values, ok["cell"], minimum=response.minimum, maximum=response.maximum
            )
        for part, name in (("value", "mean"), ("low", "low"), ("high", "high"), ("cv", "cv")):
            rows[f"{response.column}_{name}"] = estimates[part].reindex(rows.index)
    return rows.join(median_intervals(pooling.samples)).reset_index(drop=True)


def _harmonic_means(rates: pd.Series, cell: pd.Series, pooling: Pooling) -> pd.DataFrame:
    """Return harmonic means of rates by cell.

    Rate times epoch time is constant in a cell, so the interval is that of epoch times, inverted.
    """
    times = pooling.cell_statistics
    inverse = intervals.means(1 / rates, cell).reindex(times.index)
    value = 1 / inverse["value"]
    low, high = (value * times["mean"] / times[bound] for bound in ("high", "low"))
    return pd.DataFrame({"value": value, "low": low, "high": high, "cv": inverse["cv"]})


def median_intervals(samples: dict[str, np.ndarray]) -> pd.DataFrame:
    """Return the median epoch time (s) of each cell.

    Cells with MIN_BOOTSTRAP_RUNS or more get a 95 % bootstrap interval (BCa; Efron, JASA 82, 1987).
    """
    columns = [f"{TIME}_median", f"{TIME}_median_low", f"{TIME}_median_high"]
    data = pd.DataFrame(math.nan, index=pd.Index(list(samples), name="cell"), columns=columns)
    sizes = pd.Series({cell: len(times) for cell, times in samples.items()}, dtype=int)
    for n, names in sizes.groupby(sizes).groups.items():
        times = np.stack([samples[cell] for cell in names])
        data.loc[names, columns[0]] = np.median(times, axis=1)
        if n < MIN_BOOTSTRAP_RUNS:
            continue
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # equal times have no interval
            drawn = stats.bootstrap(
                (times,),
                np.median,
                axis=1,
                n_resamples=RESAMPLES,
                batch=max(1, BOOTSTRAP_BATCH // times.size),
                rng=SEED,
            )
        data.loc[names, columns[1]] = drawn.confidence_interval.low
        data.loc[names, columns[2]] = drawn.confidence_interval.high
    return data


def table(runs: pd.DataFrame) -> tables.Table:
    """Return the table of cell means of a study."""
    data = summarize(runs)
    factor_names = ["framework", *varying(runs, but=["framework"])]
    display = {title(name): data[name].map(level_text) for name in factor_names}
    display["n"] = [
        f"{n} of {n + bad}" if bad else f"{n}" for n, bad in zip(data["n"], data["unsuccessful"], strict=True)
    ]
    for response in RESPONSES:
        if f"{response.column}_mean" in data:
            bounds = (
                data[[f"{response.column}_{part}" for part in ("mean", "low", "high")]]
                * response.unit_multiplier
            )
            display[response.heading] = [
                tables.interval(Estimate(*row), response.digits) for row in bounds.itertuples(index=False)
            ]
        if response.column == TIME and f"{TIME}_cv" in data:
            middle = data[[f"{TIME}_median{part}" for part in ("", "_low", "_high")]]
            display["median (s)"] = [
                tables.interval(Estimate(*row)) for row in middle.itertuples(index=False)
            ]
            display["CV (%)"] = [tables.percent(cv) for cv in data[f"{TIME}_cv"]]
    notes = [
        conditions.paragraph(
            "runs-and-intervals", [conditions.run_counts_note(runs), "In brackets the interval."]
        ),
        "Throughput is a harmonic mean; its interval is that of epoch time, inverted. Other responses have "
        "t intervals from the runs of their own cell alone, cut at the range that is possible. CV (standard "
        "deviation divided by mean) is that of epoch time.",
        _median_note(data),
        STEP_QUANTILES if "step_time_median_s_mean" in data else "",
        conditions.setting_note(runs),
    ]
    return tables.Table(
        title="Cell means over replicates with 95 % intervals",
        data=data.dropna(axis="columns", how="all"),
        display=pd.DataFrame(display),
        notes=[note for note in notes if note],
        left_aligned=[title("framework"), title("model"), title("dataset")],
    )


def _median_note(data: pd.DataFrame) -> Note:
    resampled = int((data["n"] >= MIN_BOOTSTRAP_RUNS).sum())
    if resampled:
        without_interval = " Cells with fewer have none." if resampled < len(data) else ""
        text = (
            f"Intervals of medians are bootstrap intervals (BCa, {RESAMPLES} resamples, seeded), "
            f"for cells with {MIN_BOOTSTRAP_RUNS} runs or more.{without_interval}"
        )
    else:
        text = f"Medians have no interval: a bootstrap needs at least {MIN_BOOTSTRAP_RUNS} runs."
    return Note("intervals-of-medians", text, cells=resampled, of=len(data))
