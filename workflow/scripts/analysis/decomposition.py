"""Table that decomposes the contrast between a treatment and gradient accumulation into the effects of both.

A contrast starts at a cell with another treatment and no accumulation, and ends at a cell with accumulation
and the base levels of the other treatments. It passes through the cell with neither, so each of its two parts
is the effect of one factor. If accumulation is the only treatment, its effect is the whole contrast. With
mean epoch times T over the same blocks the decomposition is exact:

    T(end) - T(start) = (T(middle) - T(start)) + (T(end) - T(middle))
    T(end) / T(start) = T(middle) / T(start) x T(end) / T(middle)

Both parts include the cell in the middle, so their intervals are dependent.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions, intervals, tables
from analysis.cell_means import estimate_means
from analysis.effects import THROTTLED, cells_without_runs_note, contrasts, no_shared_session_note
from analysis.intervals import Estimate, columns, estimate_of
from analysis.level_words import level_text, title, treatment_text
from analysis.records import cell_levels, levels_in_order, treatments, varying
from common.notes import Note
from declared.mesh import exceeds_data_parallelism
from declared.models import find_graph
from models.collectives import ALL_REDUCE
from models.messages import number_bytes

Levels = Mapping[str, Any]  # The levels of a cell.

ACCUMULATION = "sync_every"
TOTAL = "total"
BENCHMARK_COLUMNS = ("framework", "nodes", "device", "bandwidth")
NO_CONTRAST = Note(
    "no-contrast",
    "There is no contrast to decompose. This needs cells with and without gradient accumulation, all else "
    "equal, and if there are other treatments, cells with one of them and without accumulation.",
)
NO_BENCHMARK = Note(
    "no-collective-benchmark",
    "There is no collective benchmark, so the effect of the network alone is not predicted.",
)
TOTAL_OF_PARTS = Note(
    "total-of-parts",
    "The total is the sum of its two parts in seconds, and their product as ratios; approximately, if the "
    "three cells do not have runs in the same blocks. The intervals of the parts are not independent, "
    "because both include the cell in the middle.",
)
ON_ONE_NODE = Note(
    "accumulation-on-one-node",
    "On one node nothing crosses the network, so the part of accumulation is the cost of the optimizer and "
    "of the loop, throttling included.",
)
NETWORK_ALONE = Note(
    "network-alone-is-predicted",
    "Network alone: the number of all-reduces that accumulation saves in an epoch, times the time of one "
    "all-reduce of the gradients' size in the collective benchmark, interpolated linearly between its sizes. "
    "Its interval is over the rounds of one benchmark, in the same processes. It is a prediction, not "
    "measured in training: in the benchmark, ranks send one message and compute nothing else. Beyond the "
    "network: the rest of the difference, with the errors of both in its interval. It contains the cost of "
    "the optimizer and of the loop, overlapped communication (above 0), and communication that took longer "
    "during computation (below 0).",
)
TITLE = "Contrast of treatments, decomposed into the effect of each, with 95 % intervals"
TITLE_OF_ACCUMULATION = "Effect of gradient accumulation on epoch time, with 95 % intervals"


def gradient_bytes(model: str, dataset: str, levels: Mapping[str, Any] = MappingProxyType({})) -> float:
    """Return the bytes of a model's gradients that an all-reduce sums; NaN for an unregistered model.

    `levels` of the cell give the type of the numbers (`models.messages.number_bytes`).
    """
    graph = find_graph(model, dataset)
    return float(number_bytes(levels).reduced * graph.parameters) if graph else math.nan


def all_reduce_s(benchmark: pd.DataFrame, size: float) -> Estimate:
    """Return the seconds of one all-reduce from a collective benchmark.

    A round's time at each size is the mean of its repetitions. Times are interpolated linearly between sizes,
    and extrapolated along the last two. The estimate is the mean over rounds with its t interval; NaN if
    fewer than two sizes were measured.

    Args:
        benchmark: Rows of network.csv of one framework and number of nodes.
        size: Bytes of the all-reduce.
    """
    ok = benchmark[
        (benchmark["collective"] == ALL_REDUCE) & (benchmark["status"] == "ok") & benchmark["seconds"].notna()
    ]
    means = (
        ok.groupby(["round", "bytes"])["seconds"].mean().unstack("bytes").dropna(axis="columns").astype(float)
    )
    sizes = means.columns.to_numpy(float)
    if len(sizes) < 2 or np.isnan(size):
        return Estimate(float("nan"))
    right = int(np.clip(np.searchsorted(sizes, size), 1, len(sizes) - 1))
    share = (size - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
    times = means.to_numpy()
    return intervals.mean((1 - share) * times[:, right - 1] + share * times[:, right], minimum=0)


def contrast_paths(runs: pd.DataFrame) -> Iterator[tuple[str, Levels, Levels, Levels]]:
    """Yield the factor of the first part, and the cells at start, middle and end of each planned contrast.

    If accumulation is the only treatment, the factor is accumulation, and start and middle are the same cell.
    """
    treated = treatments(runs)
    if ACCUMULATION not in treated:
        return
    order = {name: levels_in_order(runs, name) for name in treated}
    base = {name: levels[0] for name, levels in order.items()}
    starts = [
        (name, base | {name: level}) for name in treated if name != ACCUMULATION for level in order[name][1:]
    ]
    ends = [base | {ACCUMULATION: level} for level in order[ACCUMULATION][1:]]
    context = varying(runs, exclude=treated)
    rows = cell_levels(runs)
    by_levels = {tuple(row[name] for name in (*context, *treated)): row for row in rows.to_dict("records")}
    for factor, start in starts or [(ACCUMULATION, base)]:
        for end in ends:
            for setting in dict.fromkeys(tuple(row) for row in rows[context].itertuples(index=False)):
                path_cells = [by_levels.get((*setting, *levels.values())) for levels in (start, base, end)]
                if all(row is not None for row in path_cells):
                    yield (factor, *path_cells)  # type: ignore[misc]


def decompose(runs: pd.DataFrame, network: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return a row for each part and total of the contrasts; one row if accumulation is the only treatment.

    Args:
        runs: Runs of the study.
        network: network.csv. With it, rows of accumulation have all_reduce_s, the time of one all-reduce of
            the gradients' size; network_s, the predicted time of the saved all-reduces, negative; and
            beyond_network_s, the rest of the difference.

    Returns:
        Levels, part, from, to, and the columns of `effects.contrasts`.
    """
    treated = treatments(runs)
    context = varying(runs, exclude=treated)
    rows, ends = [], []
    for factor, start, middle, end in contrast_paths(runs):
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
    measured = contrasts(runs, estimate_means(runs), data["to_cell"].tolist(), data["from_cell"].tolist())
    data = pd.concat([data, measured.drop(columns=["p", "df"])], axis=1)
    if network is None:
        return data
    benchmarks = dict(list(network.groupby([*BENCHMARK_COLUMNS, "ranks"], sort=False)))

    @functools.cache
    def all_reduce_time(benchmark: tuple[Any, ...], size: float) -> tuple[float, Estimate]:
        return size, all_reduce_s(benchmarks.get(benchmark, network[:0]), size)

    predicted = [
        _network_part(
            row,
            *all_reduce_time(
                tuple(end[name] for name in (*BENCHMARK_COLUMNS, "n_devices")),
                gradient_bytes(end["model"], end["dataset"], end),
            ),
        )
        if row["part"] == ACCUMULATION
        and not exceeds_data_parallelism(end["parallelism"], int(end["n_devices"]))
        else {}
        for row, end in zip(data.to_dict("records"), ends, strict=True)
    ]
    return pd.concat([data, pd.DataFrame(predicted)], axis=1)


def _network_part(row: Mapping[str, Any], size: float, all_reduce: Estimate) -> dict[str, float]:
    change = row["to_n_allreduces"] - row["from_n_allreduces"]
    predicted = change * all_reduce.value
    bounds = sorted([change * all_reduce.low, change * all_reduce.high])
    difference = estimate_of(row, "difference_s")
    return {
        "gradient_bytes": size,
        **columns("all_reduce_s", all_reduce),
        **columns("network_s", Estimate(predicted, *bounds)),
        **columns("beyond_network_s", subtract(difference, Estimate(predicted, *bounds))),
    }


def subtract(a: Estimate, b: Estimate) -> Estimate:
    """Return a - b of independent estimates with its interval (Zou & Donner, Stat. Med. 27, 2008)."""
    value = a.value - b.value
    low, high = math.hypot(a.value - a.low, b.high - b.value), math.hypot(a.high - a.value, b.value - b.low)
    return Estimate(value, value - low, value + high)


def table(runs: pd.DataFrame, network: pd.DataFrame | None = None) -> tables.Table:
    """Return the table of a study's decomposed contrasts."""
    data = decompose(runs, network)
    if data.empty:
        empty = pd.DataFrame(columns=["part", "from", "to", "difference_s", "ratio"])
        return tables.Table(TITLE, empty, pd.DataFrame(columns=["part"]), [NO_CONTRAST], ["part"])
    context = varying(runs, exclude=treatments(runs))
    has_total = TOTAL in set(data["part"])
    firsts = list(range(0, len(data), 3 if has_total else 1))
    display: dict[str, Any] = {
        title(name): [level_text(level) if row in firsts else "" for row, level in enumerate(data[name])]
        for name in context
    }
    parts = [
        TOTAL if part == TOTAL else f"{before} → {after}"
        for part, before, after in data[["part", "from", "to"]].itertuples(index=False)
    ]
    heading = TITLE if has_total else TITLE_OF_ACCUMULATION
    if len(set(parts)) == 1:
        heading += f": {parts[0]}"
    else:
        display["part"] = parts
    display["difference (s)"] = tables.interval_texts(data, "difference_s")
    display["ratio"] = tables.interval_texts(data, "ratio")
    rows = data[data["part"] == ACCUMULATION]
    nodes = rows["nodes"] if "nodes" in rows else pd.Series(runs["nodes"].iloc[0], index=rows.index)
    predicted = rows.get("network_s", pd.Series(np.nan, rows.index))
    unpredicted = rows.loc[(nodes > 1) & predicted.isna(), "to_cell"].tolist() if network is not None else []
    if predicted.notna().any():
        for name, column in (
            ("network_s", "network alone (s)"),
            ("beyond_network_s", "beyond the network (s)"),
        ):
            texts = pd.Series(tables.interval_texts(data, name), data.index)
            display[column] = texts.where(data["part"] == ACCUMULATION, "")
    has_throttling = data["throttled_difference_s"].notna().any()
    if has_throttling:
        display["throttled: difference (s)"] = tables.interval_texts(data, "throttled_difference_s")
    notes = [
        TOTAL_OF_PARTS if has_total else "",
        "A difference below 0, or a ratio below 1, means that the level after the arrow is faster.",
        f"{conditions.run_counts_note(runs)} {conditions.comparison_note(data['within_blocks'])} Intervals "
        "are not corrected for the number of rows (table `effects` has corrected p values of the "
        "parts).",
        no_shared_session_note(data),
        (NO_BENCHMARK if network is None else NETWORK_ALONE) if (nodes > 1).any() else "",
        ON_ONE_NODE if (nodes == 1).any() else "",
        Note(
            "network-not-predicted",
            "No prediction, because the benchmark, the gradients' size or the cell is missing: "
            f"{conditions.join_names(unpredicted)}.",
            cells=unpredicted,
        )
        if unpredicted
        else "",
        THROTTLED if has_throttling else "",
        cells_without_runs_note(data, runs),
        conditions.measurement_note(runs),
    ]
    return tables.Table(
        heading,
        data.dropna(axis="columns", how="all"),
        pd.DataFrame(display),
        notes,
        left_aligned=["part"],
        rules_above=firsts[1:] if has_total else [],
    )
