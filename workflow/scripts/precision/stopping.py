"""When a cell has enough runs: pure functions of what was measured and of the rule that a study states.

Who looks after every block, and stops when an interval is narrow enough, stops most often where runs spread little by chance: the intervals
that are reported hold the truth too seldom (Anscombe, J. R. Stat. Soc. B 15, 1953; Chow & Robbins, Ann. Math. Stat. 36, 1965). With three runs of
one cell that is far from what a stricter level in the rule could mend, since the fewer the runs, the luckier are those that stop. What mends it is
to know the spread before it decides, as from the first stage of Stein (Ann. Math. Stat. 16, 1945), from all cells together: a cell is not
stopped before KNOWN and KNOWN_OF_ALL degrees of freedom stand behind its spread, and not by its own spread alone, but also by the one that is
moderated by as much as cells are alike (`analysis.pooling` limits that in what is reported). Reported intervals stay the ordinary ones.

Other rules were simulated, too (docs/explanation/statistics.md): more runs after the interval is narrow enough (Hall, Ann. Stat. 9, 1981;
Mukhopadhyay & de Silva, Sequential Methods and Their Applications, 2009), stricter levels, all cells' pooled spread, fewer looks.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.intervals import t_interval
from analysis.measured import factors, timed
from analysis.pooling import MOST_PRIOR, Pooling, pooled
from declared.study import KNOWN_OF_ALL, Replicates
from plan.decisions import BY_CHANCE, NO, NOT_ASKED, YES

# Degrees of freedom of a cell's spread, with those that others lend it as far as they are alike; KNOWN_OF_ALL: of the spread of all cells together.
# Fewer give intervals that hold the truth too seldom, more only cost runs: make bench-stopping
KNOWN = 8.0


def looks(runs: pd.DataFrame, rule: Replicates) -> pd.DataFrame:
    """By cell of `runs` (rows of runs.csv): n, its successful runs; half_width, half of its 95 % interval over its value; reached: whether
    that is as narrow as the rule wants, one of plan.decisions.REACHED; refine: whether it gets another run; known: the degrees of freedom of
    all cells' spread.

    By chance: the spread of such a cell is not known well enough to call it precise. With contrasts the widest interval of those in which
    the cell is. A cell of which nothing is asked has no half_width: one that is in no contrast, or is not timed. No cell is refined
    without a successful run, or that was run `at_most` times.
    """
    some = timed(runs)
    pooling = pooled(some)
    limit = math.nan if rule.until is None else rule.until
    judged = _of_contrasts(some, pooling, rule.contrasts) if rule.contrasts else _of_cells(pooling)
    asked = judged.index if rule.contrasts else some["cell"].unique()
    found = pd.DataFrame(index=pd.Index(runs["cell"].unique(), name="cell"))
    found["n"] = pooling.cells["n"].reindex(found.index).fillna(0).astype(int)
    found[["half_width", "alike", "df", "known"]] = judged.reindex(found.index)
    others = ~found.index.isin(asked)
    precise = (found["half_width"] <= limit).to_numpy()
    enough = (found["alike"] <= limit) & (found["df"] >= KNOWN) & (found["known"] >= KNOWN_OF_ALL)
    made = runs.groupby("cell").size().reindex(found.index)
    found["reached"] = np.select([others, precise & enough, precise], [NOT_ASKED, YES, BY_CHANCE], NO)
    found["refine"] = found["reached"].isin([BY_CHANCE, NO]) & (found["n"] > 0) & (made < rule.at_most)
    return found.drop(columns=["alike", "df"])


def expected(found: pd.DataFrame, rule: Replicates) -> pd.Series:
    """By cell the number of runs that it is expected to have in the end, from what `looks` found.

    Intervals of logarithms, of whose half width half_width is the sinh, narrow as 1 / sqrt(n), and with Student's t; spreads are known by
    n - 1 degrees of freedom of each cell."""
    n = found["n"].to_numpy(float)
    with np.errstate(all="ignore"):
        spread = np.arcsinh(found["half_width"]) * np.sqrt(n) / t_interval(0.0, 1.0, n - 1 + MOST_PRIOR)[1]
        per_run = found["known"] / (n - 1)
    wanted = needed(spread.to_numpy(float), rule, per_run.to_numpy(float))
    wanted = np.maximum(wanted, np.minimum(n + 1, rule.at_most))
    return pd.Series(np.where(found["refine"], wanted, n.clip(rule.at_least)).astype(int), index=found.index)


def needed(spread: np.ndarray | float, rule: Replicates, cells: np.ndarray | float) -> np.ndarray:
    """The runs that cells are expected to need whose logarithms of epoch times have these standard deviations, blocks included.

    `cells`: how many there are, or how many degrees of freedom a run more of each gives to what is known of all. NaN needs `at_most`.
    """
    spread, cells = np.broadcast_arrays(np.asarray(spread, dtype=float), np.asarray(cells, dtype=float))
    if rule.until is None:
        return np.full(spread.shape, rule.at_least)
    n = np.arange(rule.at_least, rule.at_most + 1)
    lent = np.where(cells > 1, MOST_PRIOR, 0.0)[..., None]
    _, half = t_interval(0.0, spread[..., None] / np.sqrt(n), n - 1 + lent)
    enough = (half <= math.asinh(rule.until)) & (
        (n - 2) * cells[..., None] >= KNOWN_OF_ALL
    )  # about a run more than at best
    return np.where(enough.any(axis=-1), n[enough.argmax(axis=-1)], rule.at_most)


def _of_cells(pooling: Pooling) -> pd.DataFrame:
    """By cell: half_width as reported; the same by a spread that is moderated by as much as cells are alike, and its degrees of freedom; those
    of the spread of all cells."""
    alike = replace(pooling, most=math.inf).cells
    return pd.DataFrame(
        {
            "half_width": _half(pooling.cells, "mean"),
            "alike": _half(alike, "mean"),
            "df": alike["df"],
            "known": pooling.freedom,
        }
    )


def _of_contrasts(runs: pd.DataFrame, pooling: Pooling, contrasts: Mapping[str, tuple[Any, ...]]) -> pd.DataFrame:
    """As `_of_cells`, by cell of its contrasts: the widest interval, the fewest degrees of freedom; NaN where one of them has none."""
    pairs = pd.DataFrame(_pairs(runs, contrasts), columns=["to", "base"])
    columns = ["half_width", "alike", "df", "known"]
    pairs[columns] = math.nan
    if (measured := pairs["to"].isin(pooling.samples) & pairs["base"].isin(pooling.samples)).any():
        ends = (pairs.loc[measured, end].tolist() for end in ("to", "base"))
        to, base = ends
        reported, alike = pooling.ratios(to, base), replace(pooling, most=math.inf).ratios(to, base)
        known = np.where(reported["within_blocks"] > 0, pooling.within.df, pooling.freedom)
        of_pairs = {
            "half_width": _half(reported, "value"),
            "alike": _half(alike, "value"),
            "df": alike["df"],
            "known": known,
        }
        pairs.loc[measured, columns] = pd.DataFrame(of_pairs)[columns].to_numpy(float)
    by_end = pd.concat([pairs.set_index(end)[columns] for end in ("to", "base")]).groupby(level=0)
    widest = {"half_width": "max", "alike": "max", "df": "min", "known": "min"}
    return pd.DataFrame({name: getattr(by_end[name], end)(skipna=False) for name, end in widest.items()})


def _half(intervals: pd.DataFrame, value: str) -> pd.Series:
    return (intervals["high"] - intervals["low"]) / (2 * intervals[value])


def _pairs(runs: pd.DataFrame, contrasts: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[str, str]]:
    """The pairs of cells that differ in one of these factors alone, between two of its levels."""
    cells = runs.drop_duplicates("cell")
    for name, levels in contrasts.items():
        others = [other for other in factors() if other != name]
        chosen = cells[cells[name].isin(levels)]
        for _, same in chosen.groupby(others, dropna=False, sort=False):
            yield from itertools.combinations(same["cell"], 2)
