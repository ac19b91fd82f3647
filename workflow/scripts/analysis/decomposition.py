"""Table that takes a contrast of treatments apart: what another treatment gives, what accumulation gives, and both.

For a study that has gradient accumulation at the base level of the other treatment factors, and another treatment without
accumulation: the contrast from the latter to the former goes over the cell with neither, so that its two parts are effects
of one factor each. Where accumulation is the only treatment, it is the whole contrast. With mean epoch times T over the same
blocks it is exact: T(end) - T(start) = (T(middle) - T(start)) + (T(end) - T(middle)), and
T(end) / T(start) = T(middle) / T(start) x T(end) / T(middle). Parts share a cell, so their intervals are not independent.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions, intervals, tables
from analysis.effects import THROTTLED, apart, contrasts, interval_texts, not_compared
from analysis.intervals import Estimate, columns
from analysis.measured import (
    cells,
    level_text,
    levels_in_order,
    title,
    treatment_text,
    treatments,
    varying,
)
from analysis.pooling import pooled
from common.errors import InputError
from common.notes import Note
from declared.mesh import divides_more
from declared.models import model_graph
from models.collectives import ALL_REDUCE

Levels = Mapping[str, Any]  # of a cell

ACCUMULATION = "sync_every"
TOTAL = "total"
SWEPT = ("framework", "nodes", "device", "bandwidth")  # what a sweep of the network has of a cell, beside its ranks
NO_CONTRAST = Note(
    "no-contrast",
    "There is no contrast to decompose: this needs cells with gradient accumulation and cells without it, all else equal; if "
    "there are other treatments, also cells with one of them and without accumulation.",
)
NO_SWEEP = Note(
    "no-network-sweep", "There is no sweep of the network, so the effect of the network alone is not predicted."
)
ON_ONE_NODE = Note(
    "accumulation-on-one-node",
    "On one node nothing crosses the network: there, the part of accumulation is the cost of the optimizer and of the "
    "loop, throttling included.",
)
NETWORK_ALONE = Note(
    "network-alone-is-predicted",
    "Network alone: the number of exchanges that accumulation saves in an epoch, times the time of one all-reduce of the "
    "gradients' size (float32) in the sweep of the network, interpolated linearly between its "
    "sizes. Its interval is over the rounds of one sweep, in the same processes. It is a prediction, not measured "
    "in training: ranks send one message and compute nothing else. Beyond the network: the rest of the difference, with "
    "an interval that includes both: the cost of the optimizer and of the loop, exchanges that computation hid (above 0), "
    "and exchanges that took longer during computation (below 0).",
)
TITLE = "Contrast of treatments, taken apart into the effect of each, with 95 % intervals"


def gradient_bytes(model: str, dataset: str) -> float:
    """Size of all gradients in bytes, float32; NaN for a model that is not described for this data set."""
    try:
        return float(model_graph(model, dataset).gradient_bytes)
    except (InputError, KeyError, ValueError):
        return float("nan")


def all_reduce_s(sweep: pd.DataFrame, size: float) -> Estimate:
    """Seconds of one all-reduce of `size` bytes from the rows of network.csv of one framework and number of nodes.

    In each round the arithmetic mean of the repetitions of every measured size, linear between sizes; beyond the largest
    one the line through the last two goes on. The mean over rounds with its t interval. NaN without two measured sizes.
    """
    ok = sweep[(sweep["collective"] == ALL_REDUCE) & (sweep["status"] == "ok") & sweep["seconds"].notna()]
    means = ok.groupby(["round", "bytes"])["seconds"].mean().unstack("bytes").dropna(axis="columns").astype(float)
    sizes = means.columns.to_numpy(float)
    if len(sizes) < 2 or np.isnan(size):
        return Estimate(float("nan"))
    right = int(np.clip(np.searchsorted(sizes, size), 1, len(sizes) - 1))
    share = (size - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
    times = means.to_numpy()
    return intervals.mean((1 - share) * times[:, right - 1] + share * times[:, right], minimum=0)


def paths(runs: pd.DataFrame) -> Iterator[tuple[str, Levels, Levels, Levels]]:
    """Factor of the first part, and the cells at start, middle and end (rows of `cells`), for each planned contrast.

    Where accumulation is the only treatment, it is the factor, and start and middle are the same cell.
    """
    treated = treatments(runs)
    if ACCUMULATION not in treated:
        return
    order = {name: levels_in_order(runs, name) for name in treated}
    base = {name: levels[0] for name, levels in order.items()}
    starts = [(name, base | {name: level}) for name in treated if name != ACCUMULATION for level in order[name][1:]]
    ends = [base | {ACCUMULATION: level} for level in order[ACCUMULATION][1:]]
    context = varying(runs, but=treated)
    rows = cells(runs)
    by_levels = {tuple(row[name] for name in (*context, *treated)): row for row in rows.to_dict("records")}
    for factor, start in starts or [(ACCUMULATION, base)]:
        for end in ends:
            for place in dict.fromkeys(tuple(row) for row in rows[context].itertuples(index=False)):
                found = [by_levels.get((*place, *levels.values())) for levels in (start, base, end)]
                if all(row is not None for row in found):
                    yield (factor, *found)  # type: ignore[misc]


def decompose(runs: pd.DataFrame, network: pd.DataFrame | None = None) -> pd.DataFrame:
    """Three rows per contrast (the two parts, the total): levels, part, from, to, the columns of `effects.contrasts`.

    One row, that of accumulation, where it is the only treatment.
    `network` is network.csv. The row of accumulation then has all_reduce_s, the time of one all-reduce of the gradients'
    size; network_s, what the exchanges that are saved would have taken at that rate, less than 0; and beyond_network_s, the
    difference less network_s, with an interval of both.
    """
    treated = treatments(runs)
    context = varying(runs, but=treated)
    rows, ends = [], []
    for factor, start, middle, end in paths(runs):
        parts = [(factor, start, middle), (ACCUMULATION, middle, end), (TOTAL, start, end)]
        for part, before, after in parts if factor != ACCUMULATION else parts[1:2]:
            changed = treated if part == TOTAL else [part]
            ends.append(end)
            rows.append(
                {
                    **{name: end[name] for name in context},
                    "part": part,
                    "from": treatment_text({name: before[name] for name in changed}),
                    "to": treatment_text({name: after[name] for name in changed}),
                    "from_cell": before["cell"],
                    "to_cell": after["cell"],
                }
            )
    data = pd.DataFrame(rows)
    if data.empty:
        return data
    measured = contrasts(runs, pooled(runs), data["to_cell"].tolist(), data["from_cell"].tolist())
    data = pd.concat([data, measured.drop(columns=["p"])], axis=1)
    if network is None:
        return data
    sweeps = dict(list(network.groupby([*SWEPT, "ranks"], sort=False)))

    @functools.cache
    def one_exchange(place: tuple[Any, ...], model: str, dataset: str) -> tuple[float, Estimate]:
        size = gradient_bytes(model, dataset)
        return size, all_reduce_s(sweeps.get(place, network[:0]), size)

    predicted = [
        _network_part(
            row, *one_exchange(tuple(end[name] for name in (*SWEPT, "replicas")), end["model"], end["dataset"])
        )
        if row["part"] == ACCUMULATION and not divides_more(end["parallelism"], int(end["replicas"]))
        else {}
        for row, end in zip(data.to_dict("records"), ends, strict=True)
    ]
    return pd.concat([data, pd.DataFrame(predicted)], axis=1)


def _network_part(row: Mapping[str, Any], size: float, one: Estimate) -> dict[str, float]:
    change = row["to_exchanges"] - row["from_exchanges"]
    predicted = change * one.value
    bounds = sorted([change * one.low, change * one.high])
    difference = Estimate(*(row[name] for name in ("difference_s", "difference_s_low", "difference_s_high")))
    return {
        "gradient_bytes": size,
        **columns("all_reduce_s", one),
        **columns("network_s", Estimate(predicted, *bounds)),
        **columns("beyond_network_s", less(difference, Estimate(predicted, *bounds))),
    }


def less(a: Estimate, b: Estimate) -> Estimate:
    """a - b of independent estimates, its interval from theirs (Zou & Donner, Statistics in Medicine 27, 2008)."""
    value = a.value - b.value
    low, high = math.hypot(a.value - a.low, b.high - b.value), math.hypot(a.high - a.value, b.value - b.low)
    return Estimate(value, value - low, value + high)


def table(runs: pd.DataFrame, network: pd.DataFrame | None = None) -> tables.Table:
    """The table of a study's contrasts, taken apart."""
    data = decompose(runs, network)
    if data.empty:
        empty = pd.DataFrame(columns=["part", "from", "to", "difference_s", "ratio"])
        return tables.Table(TITLE, empty, pd.DataFrame(columns=["part"]), [NO_CONTRAST], ["part"])
    context = varying(runs, but=treatments(runs))
    whole = TOTAL in set(data["part"])
    firsts = list(range(0, len(data), 3 if whole else 1))
    shown: dict[str, Any] = {
        title(name): [level_text(level) if row in firsts else "" for row, level in enumerate(data[name])]
        for name in context
    }
    shown["part"] = [
        TOTAL if part == TOTAL else f"{before} → {after}"
        for part, before, after in data[["part", "from", "to"]].itertuples(index=False)
    ]
    shown["difference (s)"] = interval_texts(data, "difference_s")
    shown["ratio"] = interval_texts(data, "ratio")
    total = _total(data) if whole else ""
    notes = [
        conditions.paragraph(
            "sign-of-differences",
            [
                total,
                "A difference below 0, or a ratio below 1, means that the level after the arrow is faster.",
            ],
        ),
        f"{conditions.counts(runs)} {conditions.compared(data['within_blocks'])} Intervals are not "
        "corrected for the number of rows (the table of effects has corrected p values of the parts).",
        apart(data),
        *_network_notes(data, network, runs),
    ]
    if "network_s" in data and data["network_s"].notna().any():
        shown["network alone (s)"] = _where_accumulated(data, "network_s")
        shown["beyond the network (s)"] = _where_accumulated(data, "beyond_network_s")
    if data["throttled_difference_s"].notna().any():
        shown["throttled: difference (s)"] = interval_texts(data, "throttled_difference_s")
        explains = "It can help to explain a difference in seconds, but it is not a part of the sum."
        notes.append(conditions.paragraph("throttling-explains", [THROTTLED, explains]))
    notes += [
        not_compared(data, runs),
        conditions.setting(runs),
    ]
    return tables.Table(
        TITLE,
        data.dropna(axis="columns", how="all"),
        pd.DataFrame(shown),
        [note for note in notes if note],
        words=[title(name) for name in ("framework", "model", "dataset")] + ["part"],
        parts=firsts[1:] if whole else [],
    )


def _where_accumulated(data: pd.DataFrame, name: str) -> list[str]:
    texts = interval_texts(data, name)
    return [text if part == ACCUMULATION else "" for text, part in zip(texts, data["part"], strict=True)]


def _total(data: pd.DataFrame) -> Note:
    """What the total is, and how its parts add up to it."""
    nearly = _nearly(data)
    text = (
        f"Total: {_totals(data)}. It is the sum of its two parts in seconds and their product as ratios{nearly}; "
        "the intervals of the parts are not independent, because both include the cell in the middle."
    )
    return Note("total-of-parts", text, exact=not nearly)


def _totals(data: pd.DataFrame) -> str:
    totals = data.loc[data["part"] == TOTAL, ["from", "to"]].drop_duplicates()
    return "; ".join(f"{before} → {after}" for before, after in totals.itertuples(index=False))


def _nearly(data: pd.DataFrame) -> str:
    """What keeps the parts of some contrast from adding up to their total; empty where all do."""
    parts = data["difference_s"].to_numpy(float).reshape(-1, 3)
    known = parts[~np.isnan(parts).any(axis=1)]
    if np.allclose(known[:, 0] + known[:, 1], known[:, 2]):
        return ""
    return ", approximately if the three cells do not have runs in the same blocks"


def _network_notes(data: pd.DataFrame, network: pd.DataFrame | None, runs: pd.DataFrame) -> list[str]:
    """What the network alone means, and where it is not known."""
    notes: list[str] = []
    rows = data[data["part"] == ACCUMULATION]
    nodes = rows["nodes"] if "nodes" in rows else pd.Series(runs["nodes"].iloc[0], index=rows.index)
    if network is not None and (nodes > 1).any():
        notes.append(NETWORK_ALONE)
    elif network is None and (nodes > 1).any():
        notes.append(NO_SWEEP)
    if (nodes == 1).any():
        notes.append(ON_ONE_NODE)
    if network is not None and (
        lacking := rows[(nodes > 1) & rows.get("network_s", pd.Series(np.nan, rows.index)).isna()]["to_cell"].tolist()
    ):
        text = f"No prediction, because the sweep, the gradients' size or the cell is missing: {conditions.named(lacking)}."
        notes.append(Note("network-not-predicted", text, cells=lacking))
    return notes
