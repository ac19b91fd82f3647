"""Table of effects: how each factor changes epoch time from its base level, all else equal.

A row is a pair of cells that differ in one factor. The base level is the smallest number, or the first word
in factors.schema.yaml. Every pair of frameworks is compared. `analysis.cell_means` compares two cells.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from analysis import adjusted, conditions, intervals, tables
from analysis.cell_means import CellMeans, Values, estimate_means, estimate_response_means, measured_response
from analysis.intervals import SIGNIFICANCE_LEVEL, Estimate
from analysis.level_words import level_text, title
from analysis.records import cell_levels, levels_in_order, successful, treatments, varying
from common.notes import Note
from declared.mesh import REQUIRED_AXIS, unused_options
from declared.responses import EPOCH_TIME, Response

TITLE = "Effect of each factor on epoch time, all else equal, with simultaneous 95 % intervals"
DIFFERS, DIFFERS_WITHIN, EQUAL, OPEN = "differs", "differs within margin", "equal", "open"
EVERY_PAIR = ("framework",)  # All levels are compared pairwise, because no framework is the natural base.
NO_PAIR = Note("no-pair", "No two cells of the study differ in one factor only.")
THROTTLED = Note(
    "throttled-is-processor-time",
    "Throttled: CPU seconds of an epoch that a quota held back, on the node throttled most. This is CPU "
    "time, not wall time: it is summed over cores, and includes time in which the node would have waited "
    "for other nodes anyway.",
)
SENT = "Sent: bytes sent in an epoch by the busiest node, through its network interface."
SENT_BY_ALL = (
    "Sent: bytes sent in an epoch by all nodes and other programs, since emulated nodes share one interface."
)
ADJUSTED_RATIO = "ratio, adjusted (pointwise 95 %)"
ADJUSTED = Note(
    "ratios-adjusted",
    "Ratio, adjusted: for machine speed (see table `adjusted`). Its interval is pointwise: it holds for "
    "this comparison alone. p and verdict are those of the plain ratio.",
)


def cell_pairs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return factor, from_cell and to_cell of planned cells that differ in one factor, in table order.

    Each level is compared with the base level, frameworks in every pair, the one listed earlier first. Levels
    of parallelism are compared even if the cells also differ in factors that only one of the two uses, such
    as microbatches.
    """
    rows = cell_levels(runs)
    names = factors_in_order(runs)
    ranks = pd.DataFrame(
        {
            name: rows[name].map({level: rank for rank, level in enumerate(levels_in_order(runs, name))})
            for name in names
        }
    ).assign(cell=rows["cell"])
    ranks = ranks.dropna()
    parts = [pd.DataFrame(columns=["factor", "from_cell", "to_cell"])]
    for factor in names:
        free = [name for name in REQUIRED_AXIS if factor == "parallelism" and name in names]
        fixed = [name for name in names if name not in (factor, *free)]
        context = ranks.groupby(fixed).ngroup() if fixed else pd.Series(0, index=ranks.index)
        candidates = ranks[["cell", *free]].assign(context=context, level=ranks[factor])
        if factor in REQUIRED_AXIS:  # Its base level must be one that has an effect.
            candidates = candidates[candidates["cell"].isin(_relevant_cells(rows, factor))]
        matched = candidates.merge(candidates, on="context", suffixes=("_from", "_to"))
        matched = matched[matched["level_from"] < matched["level_to"]]
        for name in free:
            relevant = _relevant_cells(rows, name)
            in_both = matched["cell_from"].isin(relevant) & matched["cell_to"].isin(relevant)
            matched = matched[~in_both | (matched[f"{name}_from"] == matched[f"{name}_to"])]
        if factor not in EVERY_PAIR:
            matched = matched[matched["level_from"] == candidates["level"].min()]
        matched = matched.sort_values(["context", "level_from", "level_to"]).assign(factor=factor)
        parts.append(matched.rename(columns={"cell_from": "from_cell", "cell_to": "to_cell"})[list(parts[0])])
    return pd.concat(parts, ignore_index=True)


def _relevant_cells(rows: pd.DataFrame, factor: str) -> "pd.Series[str]":
    """Return the cells whose parallelism uses the factor."""
    return rows.loc[[factor not in unused_options(level) for level in rows["parallelism"]], "cell"]


def factors_in_order(runs: pd.DataFrame) -> list[str]:
    """Return the varying factors: framework, nodes and treatments first, then all others in table order."""
    first = ["framework", "nodes", *treatments(runs)]
    varied = varying(runs)
    return [name for name in first if name in varied] + [name for name in varied if name not in first]


def contrasts(
    runs: pd.DataFrame, cell_means: CellMeans, to: Sequence[str], base: Sequence[str]
) -> pd.DataFrame:
    """Compare the runs of pairs of cells.

    Args:
        runs: Runs of the study.
        cell_means: Mean epoch times of the cells.
        to: Cells after the change.
        base: Cells before the change.

    Returns:
        A row per pair. ratio is that of mean epoch times, with df, p (of a ratio of 1) and within_blocks
        (`CellMeans.ratios`). ratio, difference_s and throttled_difference_s have bounds. from_s, to_s, from_n
        and to_n describe the compared runs, within blocks the runs of shared blocks. n_allreduces and
        sent_bytes are given for both cells. shared_sessions is the number of sessions with runs of both
        cells, NaN if the sessions of one are not recorded.
    """
    ok = successful(runs)
    ends = {"from": list(base), "to": list(to)}
    data = pd.DataFrame(index=range(len(ends["to"])))
    means = ok.groupby("cell")[["n_allreduces", "sent_bytes"]].mean().astype(float)
    compared = cell_means.pair_means(ends["to"], ends["from"])
    for end, cell in (("from", "second"), ("to", "first")):
        data[f"{end}_n"] = compared[f"{cell}_n"].to_numpy(int)
        data[f"{end}_s"] = compared[cell].to_numpy(float)
    ratios = cell_means.ratios(numerator=ends["to"], denominator=ends["from"])
    _set_interval(data, "ratio", ratios)
    _set_interval(data, "difference_s", cell_means.differences(ends["to"], ends["from"]))
    throttled = ok[ok["throttled_s"].notna()]
    _set_interval(
        data,
        "throttled_difference_s",
        Values.from_runs(throttled, "throttled_s").differences(ends["to"], ends["from"]),
    )
    for name in ("n_allreduces", "sent_bytes"):
        for end, names in ends.items():
            data[f"{end}_{name}"] = means[name].reindex(names).to_numpy()
    shared = _shared_sessions(ok, ends["to"], ends["from"])
    return data.assign(
        df=ratios["df"], p=ratios["p"], within_blocks=ratios["within_blocks"], shared_sessions=shared
    )


def _set_interval(data: pd.DataFrame, name: str, estimates: pd.DataFrame) -> None:
    data[[name, f"{name}_low", f"{name}_high"]] = estimates[["value", "low", "high"]].to_numpy()


def _shared_sessions(ok: pd.DataFrame, to: Sequence[str], base: Sequence[str]) -> np.ndarray:
    """Return the number of sessions with runs of both cells of each pair; NaN if not recorded."""
    recorded = ok.loc[ok["session"].notna(), ["cell", "session"]].drop_duplicates()
    cell, names = pd.factorize(recorded["cell"])
    session, sessions = pd.factorize(recorded["session"])
    cell_sessions = csr_array(
        (np.ones(len(recorded)), (cell, session)), shape=(len(names), max(1, len(sessions)))
    )
    rows = [names.get_indexer(pd.Index(list(ends), dtype=names.dtype)) for ends in (to, base)]
    both_recorded = (rows[0] >= 0) & (rows[1] >= 0)
    shared = np.full(len(rows[0]), np.nan)
    if both_recorded.any():
        shared[both_recorded] = (
            cell_sessions[rows[0][both_recorded]] * cell_sessions[rows[1][both_recorded]]
        ).sum(axis=1)
    return shared


def build_rows(
    runs: pd.DataFrame, margin: float | None = None, response: Response = EPOCH_TIME
) -> pd.DataFrame:
    """Return a row per pair of `cell_pairs`: factor, from, to, other levels and the columns of `contrasts`.

    p_holm is corrected over the pairs of a factor. Ratios also have the bounds that agree with it
    (`intervals.simultaneous_ratios`).

    Args:
        runs: Runs of the study.
        margin: Share of the response by which equal cells may differ. If given, rows have p_equal (of a
            larger difference), p_equal_holm (corrected over the pairs of a factor) and a verdict.
        response: The response of the study. If it is not epoch time, `runs` has its column, and rows also
            have the columns of `_response_ratios`. Equality is tested for epoch time if no run has it.
    """
    varied, paired = varying(runs), cell_pairs(runs)
    if paired.empty:
        return pd.DataFrame(columns=["factor", "from", "to", "p", "within_blocks"])
    by_cell = cell_levels(runs).set_index("cell")[varied].astype(object)
    ends = {end: by_cell.loc[paired[f"{end}_cell"]].reset_index(drop=True) for end in ("from", "to")}
    levels = {
        end: [row[factor] for row, factor in zip(table.to_dict("records"), paired["factor"], strict=True)]
        for end, table in ends.items()
    }
    other_levels = pd.DataFrame(
        {name: ends["to"][name].where(paired["factor"] != name, None) for name in varied}, dtype=object
    )
    is_parallelism = paired["factor"] == "parallelism"
    for name in [name for name in REQUIRED_AXIS if is_parallelism.any() and name in varied]:
        idle_to = is_parallelism & np.array(
            [name in unused_options(level) for level in ends["to"]["parallelism"]]
        )
        other_levels[name] = other_levels[name].mask(idle_to, ends["from"][name])
    data = pd.concat(
        [
            paired[["factor"]],
            pd.DataFrame(levels, dtype=object),  # The type keeps integers next to missing levels.
            other_levels,
            paired[["from_cell", "to_cell"]],
            contrasts(runs, estimate_means(runs), paired["to_cell"].tolist(), paired["from_cell"].tolist()),
            _adjusted_ratios(runs, paired),
        ],
        axis=1,
    )
    data["p_holm"] = _holm_by_factor(data, "p")
    _add_simultaneous_bounds(data)
    if response != EPOCH_TIME:
        data = data.join(_response_ratios(runs, paired, response))
        data["response_p_holm"] = _holm_by_factor(data, "response_p")
        _add_simultaneous_bounds(data, "response_")
    if margin is not None:
        judged = measured_response(runs, response)
        data["p_equal"] = estimate_response_means(runs, judged).equivalence_p(
            data["to_cell"].tolist(), data["from_cell"].tolist(), margin
        )
        data["p_equal_holm"] = _holm_by_factor(data, "p_equal")
        data["verdict"] = verdicts(data, "p_holm" if judged == EPOCH_TIME else "response_p_holm")
    return data


def _adjusted_ratios(runs: pd.DataFrame, paired: pd.DataFrame) -> pd.DataFrame:
    """Return ratio_adjusted of each pair with bounds; NaN if not adjusted (`SpeedAdjustment.ratios`)."""
    ratios = adjusted.adjust_for_speed(runs).ratios(paired["to_cell"].tolist(), paired["from_cell"].tolist())
    columns = [f"ratio_adjusted{end}" for end in ("", "_low", "_high")]
    return ratios.set_axis(columns, axis="columns").set_axis(paired.index)


def _add_simultaneous_bounds(data: pd.DataFrame, prefix: str = "") -> None:
    """Insert the simultaneous bounds of ratios behind their pointwise bounds, and drop the column `df`."""
    columns = {"ratio": "value", "ratio_low": "low", "ratio_high": "high", "df": "df", "p": "p"}
    ratios = data[["factor", *(f"{prefix}{name}" for name in columns)]].set_axis(
        ["factor", *columns.values()], axis="columns"
    )
    families = [intervals.simultaneous_ratios(rows) for _, rows in ratios.groupby("factor", sort=False)]
    bounds = pd.concat(families).reindex(data.index)
    for name in ("high", "low"):
        position = data.columns.get_loc(f"{prefix}ratio_high") + 1
        data.insert(position, f"{prefix}ratio_{name}_simultaneous", bounds[name])
    del data[f"{prefix}df"]


def _response_ratios(runs: pd.DataFrame, paired: pd.DataFrame, response: Response) -> pd.DataFrame:
    """Return response_from, response_to and response_ratio of each pair, the latter with bounds, df and p."""
    cell_means = estimate_response_means(runs, response)
    to, base = paired["to_cell"].tolist(), paired["from_cell"].tolist()
    means, ratios = cell_means.pair_means(to, base), cell_means.ratios(numerator=to, denominator=base)
    data = pd.DataFrame({"response_from": means["second"], "response_to": means["first"]})
    _set_interval(data, "response_ratio", ratios)
    return data.assign(response_df=ratios["df"], response_p=ratios["p"]).set_axis(paired.index)


def _holm_by_factor(data: pd.DataFrame, name: str) -> "pd.Series[float]":
    return data.groupby("factor", sort=False)[name].transform(lambda p: intervals.holm(p.tolist()))


def verdicts(data: pd.DataFrame, p_differs: str = "p_holm") -> np.ndarray:
    """Return verdicts [pairs] by p_equal_holm and the column `p_differs`; None without p."""
    differs, equal = data[p_differs] < SIGNIFICANCE_LEVEL, data["p_equal_holm"] < SIGNIFICANCE_LEVEL
    verdict = np.select([differs & equal, differs, equal], [DIFFERS_WITHIN, DIFFERS, EQUAL], OPEN)
    return np.where(data[p_differs].isna(), None, verdict)  # type: ignore[call-overload]


def table(runs: pd.DataFrame, margin: float | None = None, response: Response = EPOCH_TIME) -> tables.Table:
    """Return the table of effects of a study; `margin` and `response` as in `build_rows`."""
    data = build_rows(runs, margin, response)
    if data.empty:
        return tables.Table(TITLE, data, pd.DataFrame(columns=["effect of"]), [NO_PAIR])
    display: dict[str, Any] = {
        title(name): [
            f"{level_text(start)} → {level_text(end)}" if factor == name else level_text(level)
            for factor, start, end, level in data[["factor", "from", "to", name]].itertuples(
                index=False, name=None
            )
        ]
        for name in varying(runs)
    }
    if response != EPOCH_TIME and data["response_ratio"].notna().any():
        ends = [
            tables.mean_texts(data, f"response_{end}", "response_ratio", response.unit_multiplier)
            for end in ("from", "to")
        ]
        display[response.label] = [f"{start} → {end}" for start, end in zip(*ends, strict=True)]
        display[f"{response.title}: ratio"] = _ratio_texts(data, "response_ratio")
        display[f"{response.title}: p (Holm)"] = data["response_p_holm"].map(tables.p_value)
    for end in ("from", "to"):
        display[f"{end} (s)"] = tables.mean_texts(data, f"{end}_s", "ratio")
    display["n"] = [f"{a}, {b}" for a, b in zip(data["from_n"], data["to_n"], strict=True)]
    display["ratio"] = _ratio_texts(data, "ratio")
    if data["ratio_adjusted"].notna().any():
        display[ADJUSTED_RATIO] = tables.interval_texts(data, "ratio_adjusted")
    display["difference (s)"] = [
        text.partition(" [")[0] for text in tables.interval_texts(data, "difference_s")
    ]  # Its interval, which is in the CSV, could exclude 0 although that of the ratio includes 1.
    display["p (Holm)"] = data["p_holm"].map(tables.p_value)
    if margin is not None:
        display["p equal (Holm)"] = data["p_equal_holm"].map(tables.p_value)
        display["verdict"] = data["verdict"].fillna(tables.DASH)
    has_throttling = data["throttled_difference_s"].notna().any()
    if has_throttling:
        display["throttled: difference (s)"] = tables.interval_texts(data, "throttled_difference_s")
    has_bytes = data[["from_sent_bytes", "to_sent_bytes"]].notna().any(axis=None)
    if has_bytes:
        display["sent (MB)"] = [
            f"{_megabytes(a)} → {_megabytes(b)}"
            for a, b in zip(data["from_sent_bytes"], data["to_sent_bytes"], strict=True)
        ]
    notes = [
        "" if response == EPOCH_TIME else Note("response", response.meaning, response=response.name),
        "Ratio: mean after the arrow divided by that before it. Difference: after minus before.",
        "A row compares two cells that differ only in the factor with an arrow. "
        + "Cells of different parallelism can also differ in factors that only one of them uses. "
        * bool((data["factor"] == "parallelism").any())
        + "A ratio below 1, or a difference below 0, means that the level after the arrow is faster. Every "
        "pair of frameworks is compared. For other factors, each level is compared with the first.",
        conditions.paragraph(
            "runs-compared",
            [
                conditions.run_counts_note(runs),
                "n: number of runs compared, before and after the arrow; means are of these runs."
                if set(pd.concat([data["from_n"], data["to_n"]]))
                != set(successful(runs)["cell"].value_counts())
                else "",
            ],
        ),
        conditions.paragraph(
            "intervals-simultaneous",
            [
                conditions.comparison_note(data["within_blocks"]),
                "Intervals of ratios are simultaneous over the comparisons of a factor: one excludes 1 only "
                "if p < 0.05; where one ends at 1, p decides.",
            ],
        ),
        _p_values_note(data),
        "A large p does not mean that two cells are equal; the interval says which difference is excluded."
        if margin is None
        else _equality_note(margin, measured_response(runs, response)),
        ADJUSTED if ADJUSTED_RATIO in display else "",
        THROTTLED if has_throttling else "",
        (SENT_BY_ALL if conditions.is_emulated(runs) else SENT) if has_bytes else "",
        no_shared_session_note(data),
        cells_without_runs_note(data, runs),
        conditions.measurement_note(runs),
    ]
    firsts = data.index[data["factor"] != data["factor"].shift()].tolist()
    return tables.Table(
        TITLE,
        data.dropna(axis="columns", how="all"),
        pd.DataFrame(display),
        notes,
        left_aligned=[title("training_loop"), "verdict"],
        rules_above=firsts[1:],
    )


def _ratio_texts(data: pd.DataFrame, name: str) -> list[str]:
    """Return ratios with their simultaneous bounds as text."""
    rows = data[[name, f"{name}_low_simultaneous", f"{name}_high_simultaneous"]]
    return [tables.ratio(Estimate(*row)) for row in rows.itertuples(index=False)]


def cells_without_runs_note(data: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Name the cells whose lack of runs leaves ratios of `data` empty; "" if there are none."""
    compared = data.loc[data["ratio"].isna(), ["from_cell", "to_cell"]].stack()
    measured = set(successful(runs)["cell"])
    without_runs = [cell for cell in dict.fromkeys(compared) if cell not in measured]
    if not without_runs:
        return ""
    text = f"Not compared, because a cell has no successful run: {conditions.join_names(without_runs)}."
    return Note("cells-without-runs", text, cells=without_runs)


def no_shared_session_note(data: pd.DataFrame) -> str:
    """Say how many rows of `data` compare cells that share no session; "" if there are none."""
    rows = int((data["shared_sessions"] == 0).sum())
    if not rows:
        return ""
    text = (
        f"{rows} of {len(data)} rows compare cells that share no session. Their differences include what "
        "changed between sessions; their intervals and p do not account for it."
    )
    return Note("no-shared-session", text, rows=rows, of=len(data))


def _p_values_note(data: pd.DataFrame) -> Note:
    counts: Mapping[str, int] = data[data["p"].notna()].groupby("factor", sort=False).size().to_dict()
    if not counts:
        return Note("no-p-values", "There are no p values: they need at least two replicates in each cell.")
    text = "p: two-sided t test of the ratio, with Holm's correction for all comparisons of the same factor."
    return Note("p-of-ratios", text, comparisons=counts)


def _equality_note(margin: float, judged: Response) -> Note:
    """Explain the tests that cells are equal in the response `judged`."""
    text = (
        f"p equal: two one-sided t tests that two cells differ in {judged.title} by more than the study's "
        f"margin, {margin_text(margin)} (ratio between {1 / (1 + margin):.3f} and {1 + margin:.3f}), "
        f"corrected in the same way. Verdict: {DIFFERS} (p below {SIGNIFICANCE_LEVEL}), {EQUAL} (p equal "
        f"below {SIGNIFICANCE_LEVEL}), {DIFFERS_WITHIN} (both), {OPEN} (neither: more runs are needed)."
    )
    return Note("p-of-equality", text, margin=margin)


def margin_text(margin: float) -> str:
    """Return a margin in per cent as text."""
    return f"{100 * margin:.4g} %"


def _megabytes(value: float) -> str:
    if pd.isna(value):
        return tables.DASH
    return tables.number(value / 1e6 if value >= 1000 else 0.0)  # Fewer bytes are ARP packets.
