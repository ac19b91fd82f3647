"""Table of drift: how quick the machine was over the campaign, by the reference beside every run, and how epoch times went with it.

The reference is told as a ratio to the median of all runs in the same setting (analysis.adjusted), epoch times as one to the geometric mean
of all successful runs of their cell: 1.05 is 5 % slower than usual.
"""

import math

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.adjusted import ALIKE, Adjustment, adjustment, holds, said, setting_of, told, untold
from analysis.measured import block_of, successful
from analysis.pooling import after_blocks
from common.notes import Note
from common.text import number_of

TITLE = "The reference beside every run over the campaign, by block"
REFERENCE = ("reference_s", "reference_before_s", "reference_after_s")


def by_run(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per successful run, in the order of their starts: run_id, cell, session, block, started_at, ended_at, and as ratios
    to what is usual reference, before, after (right before and right after the run; NaN without a reference) and epoch_time; steal_share,
    foreign_cpu_share, waited_s (0 where nothing waited). No rows where none of them has a reference."""
    ok = successful(runs)
    known = ok if ok["reference_s"].notna().any() else ok[:0]
    data = known[["run_id", "cell", "session", "block", "started_at", "ended_at", "order_key"]].copy()
    logs = np.log(known[[*REFERENCE, "epoch_time_s"]].astype(float))
    usual = logs["reference_s"].groupby(setting_of(known)).transform("median")
    for name, column in zip(("reference", "before", "after"), REFERENCE, strict=True):
        data[name] = np.exp(logs[column] - usual)
    data["epoch_time"] = np.exp(logs["epoch_time_s"] - logs["epoch_time_s"].groupby(known["cell"]).transform("mean"))
    for name in ("steal_share", "foreign_cpu_share"):
        data[name] = known[name].astype(float)
    data["waited_s"] = known["waited_s"].astype(float).fillna(0.0)
    by_clock = data["started_at"].notna().all()
    return data.sort_values("started_at" if by_clock else "order_key", kind="stable").drop(columns="order_key")


def beside(runs: pd.DataFrame, found: Adjustment) -> pd.DataFrame:
    """The covariate of `found` that predicts runs best, and epoch_time, of each run with a reference, as ratios to what its cell and its block
    have: what the slope of that covariate alone is fitted to. No rows where none can be told."""
    if found.leading is None:
        return pd.DataFrame(columns=["covariate", "epoch_time"], dtype=float)
    known = runs.loc[found.covariates.index]
    cell, block = pd.factorize(known["cell"])[0], block_of(known)
    of_time = np.log(known["epoch_time_s"].to_numpy(float))
    left = [after_blocks(values, cell, block)[0] for values in (found.covariates[found.leading].to_numpy(), of_time)]
    return pd.DataFrame(np.exp(np.column_stack(left)), columns=["covariate", "epoch_time"], index=known.index)


def by_block(data: pd.DataFrame) -> pd.DataFrame:
    """A row per block of a session with references, in the order of their first starts, of `by_run`: session, block, started_at, n, reference and
    epoch_time (geometric means), quickest and slowest reference, mean and largest steal_share, largest foreign_cpu_share, waited (runs),
    waited_s (all together)."""
    waited = data[data["reference"].notna()].assign(waited=data["waited_s"] > 0)
    found = waited.groupby(["session", "block"], dropna=False, sort=False).agg(
        started_at=("started_at", "first"),
        n=("run_id", "size"),
        reference=("reference", _geometric),
        reference_lowest=("reference", "min"),
        reference_highest=("reference", "max"),
        epoch_time=("epoch_time", _geometric),
        steal_share=("steal_share", "mean"),
        steal_share_highest=("steal_share", "max"),
        foreign_cpu_share_highest=("foreign_cpu_share", "max"),
        waited=("waited", "sum"),
        waited_s=("waited_s", "sum"),
    )
    return found.reset_index()


def _geometric(ratios: "pd.Series[float]") -> float:
    return float(np.exp(np.log(ratios).mean()))


def correlation(data: pd.DataFrame) -> float:
    """That of log epoch time and log reference over the whole campaign, of `by_run`; NaN where one of them does not vary."""
    logs = np.log(data[["reference", "epoch_time"]].dropna().to_numpy(float))
    if len(logs) < 3 or (np.ptp(logs, axis=0) < 1e-9).any():
        return math.nan
    return float(np.corrcoef(logs.T)[0, 1])


def table(runs: pd.DataFrame) -> tables.Table:
    """The table of a study; without rows where no run has a reference."""
    runs_told = by_run(runs)
    data = by_block(runs_told)
    if data.empty:
        shown = pd.DataFrame(columns=["block"], dtype=str)
        return tables.Table(TITLE, data, shown, [_nothing(runs), conditions.setting(runs)])
    texts: dict[str, list[str]] = {}
    if data["session"].nunique(dropna=False) > 1:
        texts["session"] = ["–" if pd.isna(name) else str(name) for name in data["session"]]
    texts["block"] = data["block"].map(str).tolist()
    if data["started_at"].notna().all():
        texts["from (UTC)"] = pd.to_datetime(data["started_at"], utc=True).dt.strftime("%Y-%m-%d %H:%M").tolist()
    texts["n"] = data["n"].map(str).tolist()
    ends = [
        (data[name] - 1).map(tables.change)
        for name in ("reference", "reference_lowest", "reference_highest", "epoch_time")
    ]
    texts["reference (%)"] = [f"{mean} [{low}, {high}]" for mean, low, high in zip(*ends[:3], strict=True)]
    texts["epoch time (%)"] = ends[3].tolist()
    for heading, column in (
        ("stolen, mean (%)", "steal_share"),
        ("stolen, most (%)", "steal_share_highest"),
        ("foreign CPU, most (%)", "foreign_cpu_share_highest"),
    ):
        texts[heading] = [tables.percent(value) for value in data[column]]
    if data["waited"].any():
        texts["waited (s)"] = [tables.number(value) for value in data["waited_s"]]
    found, lacking = adjustment(runs), int(runs_told["reference"].isna().sum())
    notes = [
        f"{conditions.counts(runs, intervals=False)} Reference: time of a fixed piece of work right before and right after a run, above its "
        f"median in this campaign, of runs {ALIKE}; in brackets the quickest and the slowest run. Epoch time: above the mean of its cell.",
        Note("runs-without-reference", f"Without a reference: {number_of(lacking, 'run')}.", runs=lacking)
        if lacking
        else "",
        _over_all(correlation(runs_told)),
        told(found),
        said(found) or holds(found),
        conditions.setting(runs),
    ]
    return tables.Table(
        TITLE,
        data.dropna(axis="columns", how="all"),
        pd.DataFrame(texts),
        [note for note in notes if note],
        words=["session", "from (UTC)"],
    )


def _nothing(runs: pd.DataFrame) -> Note:
    why = untold(runs)
    return Note("nothing-shown", f"Nothing is shown: {why}.", why=why)


def _over_all(value: float) -> str:
    if math.isnan(value):
        return ""
    text = f"Over the whole campaign, blocks included, the correlation of log epoch time and log reference is {tables.number(value, 2)}."
    return Note("correlation-over-all", text, correlation=value)
