"""Compare the levels of each factor: ratios of mean responses, and which level is best where.

A ratio is one mean response over another, with its simultaneous interval. The interval excludes 1 if and only
if the difference is significant after Holm correction (`intervals.simultaneous_ratios`). The pairs of cells
come from the table of effects; a fractional design has none, so its main effects take their place.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.anova import ERROR
from analysis.cell_means import estimate_response_means
from analysis.effects import EQUAL, factors_in_order
from analysis.intervals import ROUNDING, SIGNIFICANCE_LEVEL, Estimate, holm, simultaneous_ratios
from analysis.level_words import context_text, level_text, title, treatment_text
from analysis.records import cell_levels, levels_in_order, successful, to_float, varying
from declared.mesh import REQUIRED_AXIS
from declared.responses import EPOCH_TIME, Response

ON_AVERAGE = "on average over the other factors"


@dataclass(frozen=True)
class Contrast:
    """A change of one factor, and the ratio of mean responses that it makes.

    Attributes:
        factor: The factor that changes.
        before: Level before the change.
        after: Level after the change.
        context: Levels of the other factors, in words.
        ratio: Mean response after the change over that before it, with its simultaneous interval.
        p: p of the difference after Holm correction; NaN without a test.
        equal: Whether an equivalence test showed equality within the study's margin.
        cells: The cells before and after the change; () for a main effect.
        other_levels: Levels of the other factors; {} for a main effect.
    """

    factor: str
    before: Any
    after: Any
    context: str
    ratio: Estimate
    p: float
    equal: bool = False
    cells: tuple[str, ...] = ()
    other_levels: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def is_significant(self) -> bool:
        """Whether the two levels differ after Holm correction."""
        return self.p < SIGNIFICANCE_LEVEL

    @property
    def ends_at_one(self) -> bool:
        """Whether the interval ends at 1 to rounding, so that only p shows if the difference is significant.

        Holm's correction finds differences that Bonferroni's bounds include (`simultaneous_ratios`).
        """
        return min(abs(self.ratio.low - 1), abs(self.ratio.high - 1)) < ROUNDING

    @property
    def largest_difference(self) -> float:
        """The largest share by which one mean can exceed the other, according to the interval."""
        return max(self.ratio.high, 1 / self.ratio.low) - 1

    @property
    def change(self) -> str:
        """The change in words: `4 nodes instead of 1`."""
        after, before = (treatment_text({self.factor: level}) for level in (self.after, self.before))
        number = level_text(self.before)
        is_number = isinstance(self.before, int | float | np.number) and number in before.split()
        return f"{after} instead of {number if is_number else before}"

    def reversed(self) -> "Contrast":
        """Return the change from `after` to `before`."""
        value, low, high = (1 / end for end in (self.ratio.value, self.ratio.high, self.ratio.low))
        return replace(
            self,
            before=self.after,
            after=self.before,
            ratio=Estimate(value, low, high),
            cells=self.cells[::-1],
        )


@dataclass(frozen=True)
class Ranking:
    """The levels of a factor at one setting of the other factors, best mean first.

    Attributes:
        context: Levels of the other factors, in words.
        levels: The levels.
        cells: Their cells, in the same order.
        lead: The change to the best level from the next best level with which it was compared; None if it
            was compared with none.
        other_levels: Levels of the other factors.
    """

    context: str
    levels: Sequence[Any]
    cells: Sequence[str]
    lead: Contrast | None
    other_levels: Mapping[str, Any]


def contrasts_by_factor(
    runs: pd.DataFrame, effects: pd.DataFrame, anova: pd.DataFrame, response: Response = EPOCH_TIME
) -> dict[str, list[Contrast]]:
    """Return the contrasts of each varying factor: between pairs of cells, or else its main effect."""
    pairs = {
        name: effects[effects["factor"] == name] if len(effects) else effects
        for name in factors_in_order(runs)
    }
    main = _main_effects(runs, [name for name, rows in pairs.items() if rows.empty], anova)
    prefix = "" if response == EPOCH_TIME else "response_"  # The table of effects has the same columns.
    return {
        name: [*_contrasts(runs, name, rows, prefix), *main.get(name, [])] for name, rows in pairs.items()
    }


def rank_levels(
    runs: pd.DataFrame, factor: str, contrasts: Sequence[Contrast], response: Response = EPOCH_TIME
) -> list[Ranking]:
    """Return a ranking of a factor's levels at each setting of the others that has two or more of them."""
    means = estimate_response_means(runs, response).cell_statistics["mean"]
    rows = cell_levels(runs).set_index("cell").loc[lambda table: table.index.isin(means.index)]
    # Factors of one strategy only, such as microbatches, do not distinguish settings (`effects.cell_pairs`).
    other_factors = varying(runs, exclude=[factor, *(REQUIRED_AXIS if factor == "parallelism" else ())])
    by_cells = {contrast.cells: contrast for contrast in contrasts if contrast.cells}
    by_cells |= {contrast.cells[::-1]: contrast.reversed() for contrast in by_cells.values()}
    rankings = []
    groups = rows.groupby(other_factors, dropna=False, sort=False) if other_factors else [((), rows)]
    for _, group in groups:
        if group[factor].nunique() > 1:
            cells = _order_cells(means[group.index], by_cells, response.is_rate)
            leads = [by_cells[rival, cells[0]] for rival in cells[1:] if (rival, cells[0]) in by_cells]
            levels = group.loc[cells, factor].tolist()
            context = context_text(group.iloc[0], other_factors)
            other_levels = {name: group[name].iloc[0] for name in other_factors}
            rankings.append(Ranking(context, levels, cells, next(iter(leads), None), other_levels))
    return rankings


def _order_cells(
    means: "pd.Series[float]", by_cells: Mapping[tuple[str, ...], Contrast], is_rate: bool
) -> list[str]:
    """Return cells from the best to the worst mean, by the runs that their ratios compare.

    A ratio is of the blocks that both cells share, so it can contradict their means over all runs. Means only
    order cells that are not compared with the best one.
    """

    def lead_over(cell: str, rival: str) -> float:
        contrast = by_cells.get((rival, cell))
        log_ratio = math.log(contrast.ratio.value if contrast else means[cell] / means[rival])
        return log_ratio if is_rate else -log_ratio

    order = [str(cell) for cell in means.sort_values(kind="stable", ascending=not is_rate).index]
    undefeated = (cell for cell in order if all(lead_over(cell, rival) >= 0 for rival in order))
    best = next(undefeated, order[0])
    return [best, *sorted((cell for cell in order if cell != best), key=lambda cell: lead_over(best, cell))]


def group_by_other_level(contrasts: Iterable[Contrast], factor: str) -> dict[Any, list[Contrast]]:
    """Return contrasts by the level of another factor."""
    groups: dict[Any, list[Contrast]] = {}
    for contrast in contrasts:
        groups.setdefault(contrast.other_levels[factor], []).append(contrast)
    return groups


def shared_levels(contrasts: Sequence[Contrast]) -> dict[str, Any]:
    """Return the levels of other factors that are the same in all contrasts."""
    first, *later = contrasts
    return {
        name: level
        for name, level in first.other_levels.items()
        if all(contrast.other_levels.get(name) == level for contrast in later)
    }


def select_tested(contrasts: Iterable[Contrast]) -> list[Contrast]:
    """Return the contrasts that have a test."""
    return [contrast for contrast in contrasts if not math.isnan(contrast.p)]


def select_significant(contrasts: Iterable[Contrast]) -> list[Contrast]:
    """Return the contrasts that differ after Holm correction."""
    return [contrast for contrast in contrasts if contrast.is_significant]


def _contrasts(runs: pd.DataFrame, factor: str, pairs: pd.DataFrame, prefix: str) -> Iterator[Contrast]:
    """Yield a contrast for each pair of cells that differ in this factor only and have a ratio.

    Columns of the ratio and of its p begin with `prefix`.
    """
    ratio_column = f"{prefix}ratio"
    if ratio_column not in pairs:
        return
    levels, other_factors = (
        cell_levels(runs).set_index("cell").astype(object),
        varying(runs, exclude=[factor]),
    )
    for row in pairs[pairs[ratio_column].notna()].to_dict("records"):
        before, after = str(row["from_cell"]), str(row["to_cell"])
        low, high = (to_float(row.get(f"{ratio_column}_{end}_simultaneous")) for end in ("low", "high"))
        yield Contrast(
            factor,
            levels.at[before, factor],
            levels.at[after, factor],
            context_text(levels.loc[after], other_factors),
            Estimate(to_float(row[ratio_column]), low, high),
            to_float(row.get(f"{prefix}p_holm")),
            row.get("verdict") == EQUAL,
            (before, after),
            {name: levels.at[after, name] for name in other_factors if not pd.isna(levels.at[after, name])},
        )


def _main_effects(
    runs: pd.DataFrame, factors: Sequence[str], anova: pd.DataFrame
) -> dict[str, list[Contrast]]:
    """Return the main effects of factors with two levels that can be separated from all other effects.

    Fractional designs need them, because no two of their cells differ in one factor only.
    """
    titles = {title(name): name for name in factors if _crossed(runs, name)}
    rows = anova[anova["q"].notna() & anova["term"].isin(titles)] if "q" in anova else anova[:0]
    if rows.empty:
        return {}
    ratios = np.exp(2 * rows.reindex(columns=["q", "q_low", "q_high"]).astype(float))
    ratios = ratios.set_axis(["value", "low", "high"], axis="columns").assign(
        df=float(anova.loc[anova["term"] == ERROR, "df"].iloc[0]), p=rows["p"].astype(float)
    )
    ratios[["low", "high"]] = simultaneous_ratios(ratios)
    main_effects = {}
    for term, ratio, p in zip(
        rows["term"], ratios.itertuples(index=False), holm(ratios["p"].tolist()), strict=True
    ):
        factor, estimate = titles[term], Estimate(ratio.value, ratio.low, ratio.high)
        before, after = levels_in_order(runs, factor)
        main_effects[factor] = [Contrast(factor, before, after, ON_AVERAGE, estimate, p)]
    return main_effects


def _crossed(runs: pd.DataFrame, factor: str) -> bool:
    """Return whether successful runs have each level of `factor` with each level of every other factor."""
    ok = successful(runs)
    other_factors = varying(runs, exclude=[factor])
    counts = {name: ok[name].nunique() for name in [factor, *other_factors]}
    return all(
        len(ok[[factor, name]].drop_duplicates()) == counts[factor] * counts[name] for name in other_factors
    )
