"""Table of useful time: how much of the node time of a campaign trained, and where the rest went.

    useful share = node seconds of training / all node seconds that the campaign held

A run holds its nodes while it waits for a quiet machine, and from its launch to the end of its record. Node
seconds are these seconds x nodes. Time in queues holds no nodes and is in no share.
"""

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.cost import HOUR_S, paid_nodes
from analysis.level_words import level_texts, title
from analysis.records import cell_levels, currency_of, successful
from analysis.shares import run_seconds
from common.notes import Note
from common.run_status import NO_RECORD_STATUSES
from common.text import number_of
from common.units import Unit, choose_unit

TITLE = "Node time of the campaign by use"
# Parts of node time -> heading. They add up to node_s.
PARTS = {
    "training_s": "training",
    "validation_s": "validation",
    "warm_up_s": "warm-up",
    "startup_s": "start-up",
    "other_s": "other",
    "unsuccessful_s": "unsuccessful runs",
    "lost_s": "lost attempts",
    "idle_s": "idle",
}
NODE_TIMES = (Unit(HOUR_S, "node h"), Unit(60.0, "node min"), Unit(1.0, "node s"))
NO_TIME = Note("no-node-time", "No run recorded its wall time.")
# What a note says of a part, if the table has its column.
PART_TEXTS = {
    "training_s": "Training: epochs of successful runs.",
    "warm_up_s": "Warm-up: what warm-up epochs took longer than timed ones; training does not include it.",
    "startup_s": "Start-up: until all ranks met.",
    "other_s": "Other: shutdown, reference benchmark, waiting for a quiet machine.",
    "unsuccessful_s": "Unsuccessful: failed, timed out, out of memory or invalid.",
    "lost_s": "Lost: earlier attempts of repeated runs.",
    "idle_s": "Idle: nodes of an allocation while no run used them, collective benchmarks included.",
}
EMULATED = "Emulated nodes count as the one machine that they share."
QUEUE_NOTE = Note(
    "time-in-queues",
    "Queue: from submission to start of jobs, times nodes. It holds no nodes and is in no share.",
)


def run_parts(runs: pd.DataFrame, epochs: pd.DataFrame) -> pd.DataFrame:
    """Return node seconds by part of each run with a wall time, with the index of `runs`.

    The column reserved_s has the seconds for which a run held its nodes.

    Args:
        runs: Every run of the design, including traced ones.
        epochs: Their epochs.
    """
    ran = runs[runs["wall_s"].notna()]
    times = {
        name: pd.to_datetime(ran[name], utc=True, format="ISO8601") for name in ("started_at", "ended_at")
    }
    elapsed = (times["ended_at"] - times["started_at"]).dt.total_seconds()
    reserved_s = np.maximum(ran["wall_s"].astype(float), elapsed.fillna(0.0)) + _filled(ran, "waited_s")
    seconds = run_seconds(ran, epochs).reindex(ran["run_id"]).set_axis(ran.index).astype(float).fillna(0.0)
    is_ok = ran["run_id"].isin(successful(ran)["run_id"])
    warm_up = seconds["warm_up_s"].clip(lower=0)
    parts = pd.DataFrame(
        {
            "training_s": seconds["epochs_s"] - warm_up,
            "validation_s": seconds["validation_s"],
            "warm_up_s": warm_up,
            "startup_s": seconds["startup_s"],
        }
    ).where(is_ok, 0.0)
    parts["other_s"] = (reserved_s - parts.sum(axis=1)).clip(lower=0).where(is_ok, 0.0)
    parts["unsuccessful_s"] = reserved_s.where(~is_ok, 0.0)
    parts["lost_s"] = _filled(ran, "lost_s")
    return parts.mul(paid_nodes(ran), axis=0).assign(reserved_s=reserved_s)


def _filled(runs: pd.DataFrame, column: str) -> pd.Series:
    return runs[column].astype(float).fillna(0.0)


def job_times(runs: pd.DataFrame, reserved_s: pd.Series) -> pd.DataFrame:
    """Return idle_s and queue_s in node seconds of each scheduler job whose start is recorded.

    A job is taken to have as many nodes as its largest run. Nodes are idle between runs, and while a smaller
    run leaves them unused.
    """
    paid = paid_nodes(runs)
    of_jobs = runs.loc[reserved_s.index].assign(paid=paid, node_s=reserved_s * paid)
    of_jobs = of_jobs.dropna(subset=["job", "job_started_at"])
    for name in ("submitted_at", "job_started_at", "ended_at"):
        of_jobs[name] = pd.to_datetime(of_jobs[name], utc=True, format="ISO8601")
    jobs = of_jobs.groupby(["job", "job_started_at"]).agg(
        nodes=("paid", "max"),
        node_s=("node_s", "sum"),
        ended=("ended_at", "max"),
        submitted=("submitted_at", "min"),
    )
    started = pd.DatetimeIndex(jobs.index.get_level_values("job_started_at"))
    length = (jobs["ended"] - started).dt.total_seconds()
    waited = (started - pd.DatetimeIndex(jobs["submitted"])).total_seconds()
    return pd.DataFrame(
        {
            "idle_s": (jobs["nodes"] * length - jobs["node_s"]).clip(lower=0),
            "queue_s": (jobs["nodes"] * waited).clip(lower=0),
        }
    )


def summarize(runs: pd.DataFrame, epochs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for the campaign and one per cell, in node seconds; no rows if no run has a wall time.

    Columns: cell ("" for the campaign), factors, n_devices, baseline, n, node_s, PARTS, queue_s,
    useful_share, and cost if a price is stated. Idle nodes and queues belong to the campaign alone.
    """
    parts = run_parts(runs, epochs)
    if parts.empty:
        return pd.DataFrame(columns=["cell"])
    jobs = job_times(runs, parts.pop("reserved_s"))
    cell = runs.loc[parts.index, "cell"]
    rows = cell_levels(runs).set_index("cell", drop=False)
    of_cells = parts.groupby(cell).sum().assign(n=cell.value_counts())
    rows = rows.join(of_cells, how="inner")
    campaign = pd.DataFrame([{"cell": "", "n": len(parts), **parts.sum(), **jobs.sum()}])
    data = pd.concat([campaign, rows], ignore_index=True)
    data["node_s"] = data[list(PARTS)].sum(axis=1)
    data["useful_share"] = data["training_s"] / data["node_s"]
    prices = runs["price_per_node_hour"].dropna().astype(float)
    is_priced = prices.nunique() == 1 and currency_of(runs)
    data["cost"] = data["node_s"] / HOUR_S * prices.iloc[0] if is_priced else np.nan
    return data


def table(runs: pd.DataFrame, epochs: pd.DataFrame) -> tables.Table:
    """Return the table of a study; `runs` are all runs of its design, including traced ones."""
    data = summarize(runs, epochs)
    if data.empty:
        return tables.Table(TITLE, data, pd.DataFrame(columns=["cell"], dtype=str), [NO_TIME])
    is_campaign = data["cell"] == ""
    display = {name: texts.mask(is_campaign, "") for name, texts in level_texts(data, runs).items()}
    display[title("framework")] = display[title("framework")].mask(is_campaign, "all runs")
    display["runs"] = data["n"].map(str)
    unit = choose_unit(data["node_s"], NODE_TIMES)
    display[f"node time ({unit.name})"] = (data["node_s"] / unit.size).map(tables.number)
    shown_parts = [part for part in PARTS if data[part].gt(0).any()]
    for part in shown_parts:
        display[f"{PARTS[part]} (%)"] = (data[part] / data["node_s"]).map(tables.percent)
    if data["queue_s"].gt(0).any():
        display[f"queue ({unit.name})"] = (data["queue_s"] / unit.size).map(tables.number)
    if data["cost"].notna().any():
        display[f"cost ({currency_of(runs)})"] = data["cost"].map(tables.number)
    part_texts = [text for part, text in PART_TEXTS.items() if part in shown_parts]
    is_emulated = bool((runs["placement"] == "emulated").any())
    n_missing = int(runs["status"].isin(NO_RECORD_STATUSES).sum())
    notes = [
        Note(
            "parts-of-node-time", " ".join([*part_texts, EMULATED * is_emulated]).strip(), parts=shown_parts
        ),
        QUEUE_NOTE if data["queue_s"].gt(0).any() else "",
        Note("runs-without-record", f"Without a record: {number_of(n_missing, 'run')}.", runs=n_missing)
        if n_missing
        else "",
        conditions.measurement_note(runs),
    ]
    listed = data.dropna(axis="columns", how="all")
    return tables.Table(TITLE, listed, pd.DataFrame(display), notes, rules_above=(1,))
