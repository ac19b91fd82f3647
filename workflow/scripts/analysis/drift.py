"""Table of drift: how machine speed, by the reference benchmark, and epoch times change over the campaign.

Times of the reference benchmark are relative to the median of all runs of the same setting
(analysis.adjusted). Epoch times are relative to the geometric mean of all successful runs of their cell. 1.05
is 5 % slower than usual.
"""

import math

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.adjusted import (
    NO_REFERENCE,
    SAME_SETTING,
    SpeedAdjustment,
    adjust_for_speed,
    adjusted_tables_note,
    interval_gain_note,
    setting_of,
    slopes_note,
)
from analysis.cell_means import after_blocks
from analysis.records import block_of, successful
from common.notes import Note
from common.text import number_of

TITLE = "Reference benchmark of every run over the campaign, by block"
NOTHING_SHOWN = Note("nothing-shown", f"Nothing is shown: {NO_REFERENCE}.", why=NO_REFERENCE)
REFERENCE = ("reference_s", "reference_before_s", "reference_after_s")


def drift_by_run(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per successful run in the order of starts; no rows if no run has a reference benchmark.

    Columns: run_id, cell, session, block, started_at, ended_at; reference, before, after (right before and
    right after the run) and epoch_time, as ratios to the usual value, NaN if not measured; steal_share,
    other_cpu_share, and waited_s (0 without waiting).
    """
    ok = successful(runs)
    referenced = ok if ok["reference_s"].notna().any() else ok[:0]
    data = referenced[["run_id", "cell", "session", "block", "started_at", "ended_at", "order_key"]].copy()
    logs = np.log(referenced[[*REFERENCE, "epoch_time_s"]].astype(float))
    usual = logs["reference_s"].groupby(setting_of(referenced)).transform("median")
    for name, column in zip(("reference", "before", "after"), REFERENCE, strict=True):
        data[name] = np.exp(logs[column] - usual)
    data["epoch_time"] = np.exp(
        logs["epoch_time_s"] - logs["epoch_time_s"].groupby(referenced["cell"]).transform("mean")
    )
    for name in ("steal_share", "other_cpu_share"):
        data[name] = referenced[name].astype(float)
    data["waited_s"] = referenced["waited_s"].astype(float).fillna(0.0)
    by_clock = data["started_at"].notna().all()
    return data.sort_values("started_at" if by_clock else "order_key", kind="stable").drop(
        columns="order_key"
    )


def covariate_and_time(runs: pd.DataFrame, result: SpeedAdjustment) -> pd.DataFrame:
    """Return the leading covariate and epoch_time of runs with a reference, as ratios within cell and block.

    The slope of this covariate alone is fitted to these values. No rows if there is no slope.
    """
    if result.leading_covariate is None:
        return pd.DataFrame(columns=["covariate", "epoch_time"], dtype=float)
    referenced = runs.loc[result.covariates.index]
    cell, block = pd.factorize(referenced["cell"])[0], block_of(referenced)
    log_times = np.log(referenced["epoch_time_s"].to_numpy(float))
    residuals = [
        after_blocks(values, cell, block)[0]
        for values in (result.covariates[result.leading_covariate].to_numpy(), log_times)
    ]
    return pd.DataFrame(
        np.exp(np.column_stack(residuals)), columns=["covariate", "epoch_time"], index=referenced.index
    )


def drift_by_block(data: pd.DataFrame) -> pd.DataFrame:
    """Return a row per block of a session from `drift_by_run`, in the order of their first starts.

    Columns: session, block, started_at, n, reference and epoch_time (geometric means), lowest and highest
    reference, mean and highest steal_share, highest other_cpu_share, waited (runs), waited_s (total).
    """
    waited = data[data["reference"].notna()].assign(waited=data["waited_s"] > 0)
    blocks = waited.groupby(["session", "block"], dropna=False, sort=False).agg(
        started_at=("started_at", "first"),
        n=("run_id", "size"),
        reference=("reference", _geometric_mean),
        reference_lowest=("reference", "min"),
        reference_highest=("reference", "max"),
        epoch_time=("epoch_time", _geometric_mean),
        steal_share=("steal_share", "mean"),
        steal_share_highest=("steal_share", "max"),
        other_cpu_share_highest=("other_cpu_share", "max"),
        waited=("waited", "sum"),
        waited_s=("waited_s", "sum"),
    )
    return blocks.reset_index()


def _geometric_mean(ratios: "pd.Series[float]") -> float:
    return float(np.exp(np.log(ratios).mean()))


def campaign_correlation(data: pd.DataFrame) -> float:
    """Return the correlation of log epoch time and log reference; NaN if one is constant."""
    logs = np.log(data[["reference", "epoch_time"]].dropna().to_numpy(float))
    if len(logs) < 3 or (np.ptp(logs, axis=0) < 1e-9).any():
        return math.nan
    return float(np.corrcoef(logs.T)[0, 1])


def table(runs: pd.DataFrame) -> tables.Table:
    """Return the table of a study; it has no rows without a reference benchmark."""
    by_run = drift_by_run(runs)
    data = drift_by_block(by_run)
    if data.empty:
        display = pd.DataFrame(columns=["block"], dtype=str)
        return tables.Table(TITLE, data, display, [NOTHING_SHOWN, conditions.measurement_note(runs)])
    texts: dict[str, list[str]] = {}
    if data["session"].nunique(dropna=False) > 1:
        texts["session"] = ["–" if pd.isna(name) else str(name) for name in data["session"]]
    texts["block"] = data["block"].map(str).tolist()
    if data["started_at"].notna().all():
        texts["from (UTC)"] = (
            pd.to_datetime(data["started_at"], utc=True).dt.strftime("%Y-%m-%d %H:%M").tolist()
        )
    texts["n"] = data["n"].map(str).tolist()
    references = data[["reference", "reference_lowest", "reference_highest"]] - 1
    decimals = tables.change_decimals(references)
    texts["reference (%)"] = [
        "{} [{}, {}]".format(*(tables.change(share, decimals) for share in row))
        for row in references.itertuples(index=False)
    ]
    decimals = tables.change_decimals(data["epoch_time"] - 1)
    texts["epoch time (%)"] = [tables.change(share - 1, decimals) for share in data["epoch_time"]]
    for heading, column in (
        ("CPU steal, mean (%)", "steal_share"),
        ("CPU steal, highest (%)", "steal_share_highest"),
        ("other processes, highest (%)", "other_cpu_share_highest"),
    ):
        texts[heading] = [tables.percent(value) for value in data[column]]
    if data["waited"].any():
        texts["waited (s)"] = [tables.number(value) for value in data["waited_s"]]
    result, n_missing = adjust_for_speed(runs), int(by_run["reference"].isna().sum())
    notes = [
        f"{conditions.run_counts_note(runs, intervals=False)} Reference: time of fixed work right before "
        f"and right after a run, relative to the median of the campaign's runs {SAME_SETTING}; the fastest "
        "and the slowest run are in brackets. Epoch time: relative to the mean of its cell.",
        Note(
            "runs-without-reference",
            f"Without a reference benchmark: {number_of(n_missing, 'run')}.",
            runs=n_missing,
        )
        if n_missing
        else "",
        _correlation_note(campaign_correlation(by_run)),
        slopes_note(result),
        interval_gain_note(result) or adjusted_tables_note(result),
        conditions.measurement_note(runs),
    ]
    return tables.Table(
        TITLE,
        data.dropna(axis="columns", how="all"),
        pd.DataFrame(texts),
        notes,
        left_aligned=["session", "from (UTC)"],
    )


def _correlation_note(value: float) -> str:
    if math.isnan(value):
        return ""
    text = (
        "Over the whole campaign, blocks included, the correlation of log epoch time and log reference is "
        f"{tables.number(value, 2)}."
    )
    return Note("correlation-over-all", text, correlation=value)
