"""When a cell has enough runs: pure functions of what was measured and of the rule that a study states."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.measured import factors, timed
from analysis.pooling import Pooling, pooled
from declared.study import Replicates


def looks(runs: pd.DataFrame, rule: Replicates) -> pd.DataFrame:
    """By cell of `runs` (rows of runs.csv): n, its successful runs; half_width, half of its 95 % interval over its value; precise;
    refine: whether it gets another run.

    With contrasts the widest interval of those in which the cell is; a cell in none has no half_width, and is precise. Nor is a cell refined
    without a successful run, or that was run `at_most` times.
    """
    some = timed(runs)
    pooling = pooled(some)
    half = _of_contrasts(some, pooling, rule.contrasts) if rule.contrasts else _half(pooling.cells, "mean")
    asked = half.index if rule.contrasts else some["cell"].unique()
    found = pd.DataFrame(index=pd.Index(runs["cell"].unique(), name="cell"))
    found["n"] = pooling.cells["n"].reindex(found.index).fillna(0).astype(int)
    found["half_width"] = half.reindex(found.index).astype(float)
    found["precise"] = (found["half_width"] <= rule.until) | ~found.index.isin(asked)
    made = runs.groupby("cell").size().reindex(found.index)
    found["refine"] = ~found["precise"] & (found["n"] > 0) & (made < rule.at_most)
    return found


def expected(found: pd.DataFrame, rule: Replicates) -> pd.Series:
    """By cell the number of runs that it is expected to have in the end, from what `looks` found: intervals narrow as 1 / sqrt(n)."""
    wanted = found["n"] * (found["half_width"] / (rule.until or 1.0)) ** 2
    wanted = wanted.where(found["refine"], found["n"].clip(lower=rule.at_least))
    return np.ceil(wanted.fillna(rule.at_most)).clip(rule.at_least, rule.at_most).astype(int)


def _half(intervals: pd.DataFrame, value: str) -> pd.Series:
    return (intervals["high"] - intervals["low"]) / (2 * intervals[value])


def _of_contrasts(runs: pd.DataFrame, pooling: Pooling, contrasts: Mapping[str, tuple[Any, ...]]) -> pd.Series:
    """By cell the half width of the widest interval of its contrasts; NaN where one of them has none."""
    pairs = pd.DataFrame(_pairs(runs, contrasts), columns=["to", "base"])
    if pairs.empty:
        return pd.Series(dtype=float)
    measured = pairs["to"].isin(pooling.samples) & pairs["base"].isin(pooling.samples)
    pairs["half"] = np.nan
    if measured.any():
        some = pairs[measured]
        ratios = pooling.ratios(some["to"].tolist(), some["base"].tolist())
        pairs.loc[measured, "half"] = _half(ratios, "value").to_numpy()
    both = pd.concat([pairs.set_index(end)["half"] for end in ("to", "base")])
    return both.groupby(level=0).agg(lambda half: half.max(skipna=False))


def _pairs(runs: pd.DataFrame, contrasts: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[str, str]]:
    """The pairs of cells that differ in one of these factors alone, between two of its levels."""
    cells = runs.drop_duplicates("cell")
    for name, levels in contrasts.items():
        others = [other for other in factors() if other != name]
        chosen = cells[cells[name].isin(levels)]
        for _, same in chosen.groupby(others, dropna=False, sort=False):
            yield from itertools.combinations(same["cell"], 2)
