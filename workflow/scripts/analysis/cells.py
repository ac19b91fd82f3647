"""Table of cell means: all responses of each cell, with 95 % intervals over replicates.

Costs have arithmetic means, rates have harmonic means (Hoefler & Belli, SC'15, rule 3).
"""

import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis import conditions, intervals, tables
from analysis.cell_means import estimate_means, estimate_response_means
from analysis.intervals import Estimate
from analysis.level_words import OUT_OF_MEMORY_MARK, level_text, level_texts, title
from analysis.records import cell_levels, successful
from common.run_status import RunStatus
from declared.factors import LARGEST
from declared.responses import EPOCH_TIME, Response
from declared.responses import RESPONSES as DECLARED

TIME = EPOCH_TIME.column
STEP_QUANTILES = (
    "Steps: quantiles of a run's training steps in timed epochs, slowest rank of each step (Hoefler & Belli, "
    "rule 8), or those that the source of runs measured elsewhere gives; means over runs are shown."
)
MIN_BOOTSTRAP_RUNS = 10
RESAMPLES = 1999
SEED = 20261121
BOOTSTRAP_BATCH = 10_000_000  # Values resampled at once. The number limits memory.


_MEMORY: dict[str, Any] = {"unit": "MiB", "unit_multiplier": 2**-20}
_STEPS: dict[str, Any] = {"unit": "ms", "unit_multiplier": 1e3}
_ACCURACY: dict[str, Any] = {"unit": "%", "maximum": 1.0, "unit_multiplier": 100.0}
RESPONSES = [
    EPOCH_TIME,
    DECLARED["throughput"],
    DECLARED["token_throughput"],
    Response(column="train_accuracy", title="training accuracy", **_ACCURACY),
    Response(column="validation_accuracy", title="validation accuracy", **_ACCURACY),
    Response(column="perplexity", title="perplexity", unit="", minimum=1.0),
    DECLARED["step_time"],
    DECLARED["step_time_p95"],
    Response(column="step_time_p99_s", title="99 % quantile of step time", **_STEPS),
    Response(column="step_time_largest_s", title="longest step", **_STEPS),
    Response(column="memory_peak_bytes", title="memory per rank", **_MEMORY),
    Response(column="device_memory_peak_bytes", title="device memory", **_MEMORY),
]


def summarize(runs: pd.DataFrame, response: Response = EPOCH_TIME) -> pd.DataFrame:
    """Return one row per cell: factors, n, unsuccessful, out_of_memory (missing for none), and the responses.

    The columns of a response are its column's name with _mean, _low, _high (in its unit) and _cv. Epoch time
    also has _median with bounds.

    Args:
        runs: Runs of a study, with the column of `response`.
        response: The response of the study, which comes first.
    """
    ok = successful(runs)
    rows = cell_levels(runs).set_index("cell", drop=False)
    if (rows["batch_size"] == LARGEST).any():  # The level does not say the number.
        rows["local_batch"] = runs.drop_duplicates("cell").set_index("cell")["local_batch"]
    rows["n"] = ok.groupby("cell").size().reindex(rows.index, fill_value=0)
    rows["unsuccessful"] = runs.groupby("cell").size().reindex(rows.index) - rows["n"]
    rows["out_of_memory"] = runs[runs["status"] == RunStatus.OOM].groupby("cell").size().reindex(rows.index)
    for listed in _listed(response):
        if runs[listed.column].isna().all():
            continue
        if listed.is_bounded:
            values = ok[listed.column].astype(float)
            estimates = intervals.means(values, ok["cell"], listed.minimum, listed.maximum)
        else:
            estimates = estimate_response_means(runs, listed).cell_statistics.rename(
                columns={"mean": "value"}
            )
        for part, name in (("value", "mean"), ("low", "low"), ("high", "high"), ("cv", "cv")):
            rows[f"{listed.column}_{name}"] = estimates[part].reindex(rows.index)
    return rows.join(median_intervals(estimate_means(runs).values_by_cell)).reset_index(drop=True)


def _listed(response: Response) -> list[Response]:
    """Return the responses of the table, the study's first."""
    return [response, *(listed for listed in RESPONSES if listed != response)]


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
            warnings.simplefilter("ignore")  # Equal times have no interval.
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


def table(runs: pd.DataFrame, response: Response = EPOCH_TIME) -> tables.Table:
    """Return the table of cell means of a study; same arguments as `summarize`."""
    data = summarize(runs, response)
    display = level_texts(data, runs)
    ran_out = (data["n"] == 0) & data["out_of_memory"].notna()
    if "local_batch" in data and title("batch_size") in display:
        has_size = (data["n"] > 0) | ran_out  # Otherwise the search may not have found one.
        display[title("batch_size")] = [
            f"{LARGEST} ({level_text(size)})" if level == LARGEST and is_known else level_text(level)
            for level, size, is_known in zip(data["batch_size"], data["local_batch"], has_size, strict=True)
        ]
    display["n"] = [
        f"{n} of {n + bad}" if bad else f"{n}" for n, bad in zip(data["n"], data["unsuccessful"], strict=True)
    ]
    for listed in _listed(response):
        if f"{listed.column}_mean" in data:
            bounds = (
                data[[f"{listed.column}_{part}" for part in ("mean", "low", "high")]] * listed.unit_multiplier
            )
            texts = tables.intervals(
                (Estimate(*row) for row in bounds.itertuples(index=False)), listed.digits
            )
            display[listed.label] = pd.Series(texts, data.index).mask(ran_out, OUT_OF_MEMORY_MARK).tolist()
        if listed == EPOCH_TIME and f"{TIME}_cv" in data:
            display["median (s)"] = _median_texts(data)
            display["CV (%)"] = [tables.number(100 * cv, 2) for cv in data[f"{TIME}_cv"]]
    notes = [
        conditions.paragraph(
            "runs-and-intervals", [conditions.run_counts_note(runs), "The interval is in brackets."]
        ),
        conditions.one_allocation_note(runs),
        "Throughput is a harmonic mean; its interval is that of epoch time, inverted. "
        f"{'Accuracy and perplexity have' if 'perplexity_mean' in data else 'Accuracy has'} t intervals from "
        "the runs of the cell alone, cut at the possible range. Intervals of other responses are computed "
        "like those of epoch time. CV (standard deviation divided by mean) is that of epoch time.",
        f"Medians have bootstrap intervals (BCa, {RESAMPLES} resamples, seeded) in cells with "
        f"{MIN_BOOTSTRAP_RUNS} runs or more."
        if (data["n"] >= MIN_BOOTSTRAP_RUNS).any()
        else "",
        STEP_QUANTILES if "step_time_median_s_mean" in data else "",
        conditions.single_run_steps_note(runs),
        conditions.measurement_note(runs),
    ]
    return tables.Table(
        title="Cell means over replicates with 95 % intervals",
        data=data.dropna(axis="columns", how="all"),
        display=pd.DataFrame(display),
        notes=[note for note in notes if note],
    )


def _median_texts(data: pd.DataFrame) -> list[str]:
    """Return the median of each cell with its interval; without one, it has as many digits as the mean."""
    texts = tables.interval_texts(data, f"{TIME}_median")
    rows = data[[f"{TIME}_{part}" for part in ("median", "low", "high")]].itertuples(index=False)
    as_precise_as_means = tables.intervals(Estimate(*row) for row in rows)
    return [
        precise.partition(" ")[0] if math.isnan(low) else text
        for text, precise, low in zip(texts, as_precise_as_means, data[f"{TIME}_median_low"], strict=True)
    ]
