"""Table of effects: what one factor does to epoch time from its base level to another, all else equal.

A row is a pair of cells that differ in one factor. The base level is the first one: of numbers the smallest, of words the
first in factors.schema.yaml. Of frameworks every pair is compared. How two cells are compared: analysis.pooling.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from analysis import adjusted, conditions, intervals, tables
from analysis.intervals import LEVEL, Estimate
from analysis.measured import cells, level_text, levels_in_order, successful, title, treatments, varying
from analysis.pooling import Pooling, Values, pooled
from common.notes import Note
from declared.mesh import NEEDS, idle

TITLE = "Effect of each factor on epoch time, all else equal, with 95 % intervals"
DIFFERS, DIFFERS_WITHIN, EQUAL, OPEN = "differs", "differs within margin", "equal", "open"
EVERY_PAIR = ("framework",)
NO_PAIR = Note("no-pair", "No two cells of the study differ in one factor only.")
STRATEGIES = " Levels of parallelism may differ in factors that only one of them has, too; the row has its level."
THROTTLED = Note(
    "throttled-is-processor-time",
    "Throttled: processor seconds of an epoch that a quota withheld, on the node that was throttled most. This is processor "
    "time, not wall time: it is summed over processors, and it includes time in which the node would have waited for others anyway.",
)
ADJUSTED = Note(
    "ratios-adjusted",
    "Ratio, adjusted: by how quick the machine was (table adjusted says how); p and verdict are those of the plain ratio.",
)
EVERY_PAIR_COMPARED = Note(
    "every-pair-compared",
    "Every pair of frameworks is compared; for other factors, each level is compared with the first.",
)


def pairs(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per pair of planned cells that differ in one factor: factor, from_cell, to_cell; in table order.

    From the base level of the factor to each other one; of frameworks every pair, the one listed earlier first. Two levels of parallelism are
    compared, too, where cells differ in factors that mean nothing with one of them, such as microbatches without a pipeline.
    """
    rows = cells(runs)
    names = in_order(runs)
    ranks = pd.DataFrame(
        {
            name: rows[name].map({level: rank for rank, level in enumerate(levels_in_order(runs, name))})
            for name in names
        }
    ).assign(cell=rows["cell"])
    ranks = ranks.dropna()
    found = [pd.DataFrame(columns=["factor", "from_cell", "to_cell"])]
    for factor in names:
        free = [name for name in NEEDS if factor == "parallelism" and name in names]
        others = [name for name in names if name not in (factor, *free)]
        place = ranks.groupby(others).ngroup() if others else pd.Series(0, index=ranks.index)
        one = ranks[["cell", *free]].assign(place=place, level=ranks[factor])
        if factor in NEEDS:  # its base level is one that means something
            one = one[one["cell"].isin(_meant(rows, factor))]
        both = one.merge(one, on="place", suffixes=("_from", "_to"))
        both = both[both["level_from"] < both["level_to"]]
        for name in free:
            meant = _meant(rows, name)
            in_both = both["cell_from"].isin(meant) & both["cell_to"].isin(meant)
            both = both[~in_both | (both[f"{name}_from"] == both[f"{name}_to"])]
        if factor not in EVERY_PAIR:
            both = both[both["level_from"] == one["level"].min()]
        both = both.sort_values(["place", "level_from", "level_to"]).assign(factor=factor)
        found.append(both.rename(columns={"cell_from": "from_cell", "cell_to": "to_cell"})[list(found[0])])
    return pd.concat(found, ignore_index=True)


def _meant(rows: pd.DataFrame, factor: str) -> "pd.Series[str]":
    """The cells in which a factor that some levels of parallelism alone have means something."""
    return rows.loc[[factor not in idle(level) for level in rows["parallelism"]], "cell"]


def in_order(runs: pd.DataFrame) -> list[str]:
    """The factors that vary: what a study asks about before what it asks at."""
    first = ["framework", "nodes", *treatments(runs)]
    varied = varying(runs)
    return [name for name in first if name in varied] + [name for name in varied if name not in first]


def contrasts(runs: pd.DataFrame, pooling: Pooling, to: Sequence[str], base: Sequence[str]) -> pd.DataFrame:
    """A row per pair of cells: how the runs of `to` differ from those of `base`, in seconds and bytes.

    ratio = mean epoch time of `to` over that of `base`, p that it is 1, within_blocks (`Pooling.ratios`); difference_s = `to`
    less `base`; each with bounds. from_s, to_s, from_n, to_n: of the runs that are compared, which within blocks are those of the
    blocks in which both cells have one.
    shared_sessions: in how many sessions both cells have runs; missing where a cell's sessions are not known.
    """
    ok = successful(runs)
    ends = {"from": list(base), "to": list(to)}
    data = pd.DataFrame(index=range(len(ends["to"])))
    means = ok.groupby("cell")[["exchanges", "sent_bytes"]].mean().astype(float)
    compared = pooling.compared(ends["to"], ends["from"])
    for end, mean, n in (("from", "base", "base_n"), ("to", "to", "n")):
        data[f"{end}_n"] = compared[n].to_numpy(int)
        data[f"{end}_s"] = compared[mean].to_numpy(float)
    ratios = pooling.ratios(ends["to"], ends["from"])
    _put(data, "ratio", ratios)
    _put(data, "difference_s", pooling.differences(ends["to"], ends["from"]))
    throttled = ok[ok["throttled_s"].notna()]
    _put(data, "throttled_difference_s", Values.of(throttled, "throttled_s").differences(ends["to"], ends["from"]))
    for name in ("exchanges", "sent_bytes"):
        for end, names in ends.items():
            data[f"{end}_{name}"] = means[name].reindex(names).to_numpy()
    shared = _shared_sessions(ok, ends["to"], ends["from"])
    return data.assign(p=ratios["p"], within_blocks=ratios["within_blocks"], shared_sessions=shared)


def _put(data: pd.DataFrame, name: str, estimates: pd.DataFrame) -> None:
    data[[name, f"{name}_low", f"{name}_high"]] = estimates[["value", "low", "high"]].to_numpy()


def _shared_sessions(ok: pd.DataFrame, to: Sequence[str], base: Sequence[str]) -> np.ndarray:
    """In how many sessions both cells of each pair have runs; NaN where one has no run with a session."""
    known = ok.loc[ok["session"].notna(), ["cell", "session"]].drop_duplicates()
    cell, names = pd.factorize(known["cell"])
    session, sessions = pd.factorize(known["session"])
    held = csr_array((np.ones(len(known)), (cell, session)), shape=(len(names), max(1, len(sessions))))
    rows = [names.get_indexer(pd.Index(list(ends), dtype=names.dtype)) for ends in (to, base)]
    there = (rows[0] >= 0) & (rows[1] >= 0)
    shared = np.full(len(rows[0]), np.nan)
    if there.any():
        shared[there] = (held[rows[0][there]] * held[rows[1][there]]).sum(axis=1)
    return shared


def compare(runs: pd.DataFrame, margin: float | None = None) -> pd.DataFrame:
    """One row per pair: factor, from, to, the other levels, the columns of `contrasts`, p_holm within each factor.

    `margin`: the share of epoch time by which cells may differ and be called equal; with it p_equal, that the pair differs by
    more, p_equal_holm within each factor, and a verdict (`verdicts`).
    """
    varied, found = varying(runs), pairs(runs)
    if found.empty:
        return pd.DataFrame(columns=["factor", "from", "to", "p", "within_blocks"])
    by_cell = cells(runs).set_index("cell")[varied].astype(object)
    ends = {end: by_cell.loc[found[f"{end}_cell"]].reset_index(drop=True) for end in ("from", "to")}
    levels = {
        end: [row[factor] for row, factor in zip(table.to_dict("records"), found["factor"], strict=True)]
        for end, table in ends.items()
    }
    own = pd.DataFrame({name: ends["to"][name].where(found["factor"] != name, None) for name in varied}, dtype=object)
    divided = found["factor"] == "parallelism"
    for name in [name for name in NEEDS if divided.any() and name in varied]:
        idle_to = divided & np.array([name in idle(level) for level in ends["to"]["parallelism"]])
        own[name] = own[name].mask(idle_to, ends["from"][name])
    data = pd.concat(
        [
            found[["factor"]],
            pd.DataFrame(levels, dtype=object),  # with a gap, whole numbers would become decimal ones
            own,
            found[["from_cell", "to_cell"]],
            contrasts(runs, pooled(runs), found["to_cell"].tolist(), found["from_cell"].tolist()),
            _adjusted(runs, found),
        ],
        axis=1,
    )
    data["p_holm"] = _corrected(data, "p")
    if margin is not None:
        data["p_equal"] = pooled(runs).equal(data["to_cell"].tolist(), data["from_cell"].tolist(), margin)
        data["p_equal_holm"] = _corrected(data, "p_equal")
        data["verdict"] = verdicts(data)
    return data


def _adjusted(runs: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """ratio_adjusted of each pair with bounds; missing where it is not adjusted (`adjusted.Adjustment.ratios`)."""
    ratios = adjusted.adjustment(runs).ratios(found["to_cell"].tolist(), found["from_cell"].tolist())
    columns = [f"ratio_adjusted{end}" for end in ("", "_low", "_high")]
    return ratios.set_axis(columns, axis="columns").set_axis(found.index)


def _corrected(data: pd.DataFrame, name: str) -> "pd.Series[float]":
    return data.groupby("factor", sort=False)[name].transform(lambda p: intervals.holm(p.tolist()))


def verdicts(data: pd.DataFrame) -> np.ndarray:
    """What corrected p_holm and p_equal_holm say of each pair, [pairs]; nothing where it has no p."""
    differs, equal = data["p_holm"] < LEVEL, data["p_equal_holm"] < LEVEL
    found = np.select([differs & equal, differs, equal], [DIFFERS_WITHIN, DIFFERS, EQUAL], OPEN)
    return np.where(data["p_holm"].isna(), None, found)  # type: ignore[call-overload]


def table(runs: pd.DataFrame, margin: float | None = None) -> tables.Table:
    """The table of effects of a study; `margin` as in `compare`."""
    data = compare(runs, margin)
    if data.empty:
        return tables.Table(TITLE, data, pd.DataFrame(columns=["effect of"]), [NO_PAIR])
    shown: dict[str, Any] = {
        title(name): [
            f"{level_text(start)} → {level_text(end)}" if factor == name else level_text(level)
            for factor, start, end, level in data[["factor", "from", "to", name]].itertuples(index=False, name=None)
        ]
        for name in varying(runs)
    }
    shown["from (s)"] = data["from_s"].map(tables.number)
    shown["to (s)"] = data["to_s"].map(tables.number)
    shown["n"] = [f"{a}, {b}" for a, b in zip(data["from_n"], data["to_n"], strict=True)]
    shown["ratio"] = interval_texts(data, "ratio")
    if data["ratio_adjusted"].notna().any():
        shown["ratio, adjusted"] = interval_texts(data, "ratio_adjusted")
    shown["difference (s)"] = interval_texts(data, "difference_s")
    shown["p (Holm)"] = data["p_holm"].map(tables.p_value)
    if margin is not None:
        shown["p equal (Holm)"] = data["p_equal_holm"].map(tables.p_value)
        shown["verdict"] = data["verdict"].fillna(tables.DASH)
    strategies = bool(set(NEEDS) & set(varying(runs)))
    notes = [
        "Ratio: mean epoch time after the arrow divided by that before it. Difference: after minus before.",
        Note(
            "one-factor-differs",
            "A row compares two cells that differ only in the factor with an arrow."
            + (STRATEGIES if strategies else "")
            + " A ratio below 1, or a difference below 0, means that the level "
            "after the arrow is faster.",
            strategies=strategies,
        ),
        conditions.paragraph(
            "runs-compared",
            [
                conditions.counts(runs),
                "n: number of runs compared, before and after the arrow; means are of these runs.",
            ],
        ),
        _corrections(data),
        _family(data),
        _equality(data, margin),
        EVERY_PAIR_COMPARED if "framework" in set(data["factor"]) else "",
        apart(data),
        not_compared(data, runs),
        conditions.setting(runs),
    ]
    if "ratio, adjusted" in shown:
        notes.insert(-4, ADJUSTED)
    if (data["shared_sessions"] == 0).any():
        shown["same session"] = data["shared_sessions"].map(_shared_text)
    if data["throttled_difference_s"].notna().any():
        shown["throttled: difference (s)"] = interval_texts(data, "throttled_difference_s")
        notes.insert(-4, THROTTLED)
    if data[["from_sent_bytes", "to_sent_bytes"]].notna().any(axis=None):
        shown["sent (MB)"] = [
            f"{_megabytes(a)} → {_megabytes(b)}"
            for a, b in zip(data["from_sent_bytes"], data["to_sent_bytes"], strict=True)
        ]
        notes.insert(-4, "Sent: bytes that left the node that sent most, through its network interface, in an epoch.")
    firsts = data.index[data["factor"] != data["factor"].shift()].tolist()
    return tables.Table(
        TITLE,
        data.dropna(axis="columns", how="all"),
        pd.DataFrame(shown),
        [note for note in notes if note],
        words=[title(name) for name in ("framework", "model", "dataset", "training_loop")]
        + ["same session", "verdict"],
        parts=firsts[1:],
    )


def interval_texts(data: pd.DataFrame, name: str) -> list[str]:
    """The column `name` with its interval, for people."""
    bounds = data[[name, f"{name}_low", f"{name}_high"]].astype(float)
    return [tables.difference(Estimate(*row)) for row in bounds.itertuples(index=False)]


def not_compared(data: pd.DataFrame, runs: pd.DataFrame) -> str:
    """The cells that keep rows of `data` (from_cell, to_cell, ratio) without a number, in a sentence; empty for none."""
    named = data.loc[data["ratio"].isna(), ["from_cell", "to_cell"]].stack()
    measured = set(successful(runs)["cell"])
    lacking = [cell for cell in dict.fromkeys(named) if cell not in measured]
    if not lacking:
        return ""
    text = f"Not compared, because a cell has no successful run: {conditions.named(lacking)}."
    return Note("cells-without-runs", text, cells=lacking)


def apart(data: pd.DataFrame) -> str:
    """How many rows of `data` compare cells that share no session, in a sentence; empty for none."""
    rows = int((data["shared_sessions"] == 0).sum())
    if not rows:
        return ""
    text = (
        f"{rows} of {len(data)} rows compare cells that share no session. Their differences include what changed between "
        "sessions; their intervals and p do not account for it."
    )
    return Note("no-shared-session", text, rows=rows, of=len(data))


def _shared_text(sessions: float) -> str:
    return tables.DASH if pd.isna(sessions) else "yes" if sessions else "no"


def _corrections(data: pd.DataFrame) -> Note:
    compared = conditions.compared(data["within_blocks"])
    text = f"{compared} Intervals are not corrected for multiple comparisons; p is."
    return Note("intervals-not-corrected", text, notes=[compared])


def _family(data: pd.DataFrame) -> Note:
    counts: Mapping[str, int] = data[data["p"].notna()].groupby("factor", sort=False).size().to_dict()
    if not counts:
        return Note("no-p-values", "There are no p values: they need at least two replicates in each cell.")
    families = ", ".join(f"{title(factor)} {count}" for factor, count in counts.items())
    text = (
        "p: two-sided t test of the ratio, corrected by Holm's method over all comparisons of "
        f"the same factor ({families})."
    )
    return Note("p-of-ratios", text, comparisons=counts)


def _equality(data: pd.DataFrame, margin: float | None) -> str:
    """What the table says about equality."""
    if not data["p"].notna().any():
        return ""
    if margin is None:
        text = "A large p does not mean that two cells are equal; the interval says which difference is excluded."
        return Note("large-p-is-not-equal", text)
    text = (
        f"p equal: two one-sided t tests that two cells differ by more than the study's margin, {margin_text(margin)} (ratio between "
        f"{1 / (1 + margin):.3f} and {1 + margin:.3f}), corrected in the same way. Verdict: {DIFFERS} (p below {LEVEL}), {EQUAL} "
        f"(p equal below {LEVEL}), {DIFFERS_WITHIN} (both), {OPEN} (neither: more runs are needed)."
    )
    return Note("p-of-equality", text, margin=margin)


def margin_text(margin: float) -> str:
    """A margin in per cent, for people."""
    return f"{100 * margin:.4g} %"


def _megabytes(value: float) -> str:
    return tables.DASH if pd.isna(value) else tables.number(value / 1e6 if value >= 1000 else 0.0)  # an ARP or two
