"""Simulate coverage of 95 % intervals and number of runs with an interval target, by stopping rule."""

import itertools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from analysis.cell_means import MIN_SHARED_BLOCKS
from analysis.intervals import CONFIDENCE
from declared.replicates import MIN_POOLED_DF
from document import section, table
from replication.stopping import MIN_CELL_DF
from support.adaptive import Report, Rule, campaign, chosen, chosen_of_pairs, naive
from support.simulated import SPREADS

SPREAD, LIMITS, OF_ALL = 0.1, ((3, 6), (3, 12), (3, 30), (5, 30)), ((3, 12), (3, 30))
CELLS, NEEDED = (1, 2, 4, 12, 30), (2, 5, 12, 24)  # runs that a cell needs if its spread is known
OF_CHOSEN = 4  # times as many studies
CASES = (("equal, 10 %", 0.0), ("5 to 20 %", 0.0), ("equal, 10 %", 0.1), ("5 to 20 %", 0.1))
Z = 1.96


class CampaignCoverage(NamedTuple):
    """Results for a kind of campaign.

    Attributes:
        covered: Share of intervals of means that cover the true value.
        runs: Runs per cell, relative to those needed.
        wide: Share of cells that are not precise at the end.
        ratios: Share of intervals of ratios that cover the true value, NaN for one cell.
        differ: Share of ratios with p below 0.05, NaN for one cell.
    """

    covered: float
    runs: float
    wide: float
    ratios: float
    differ: float


def twice(until: float) -> Rule:
    """Return the rule that stops when the interval is narrow in two consecutive blocks."""

    def refine(report: Report) -> np.ndarray:
        before = report.log[:, :, :-1]
        if before.shape[2] < MIN_SHARED_BLOCKS:
            return np.ones(report.n.shape, dtype=bool)
        return (report.half() > until) | (Report(before).half() > until)

    return refine


RULES: dict[str, Callable[[float], Rule]] = {
    "interval narrow": naive,
    "the same by a 98 % interval": lambda until: lambda report: report.half(0.98) > until,
    "the same at two looks in turn": twice,
    "by all cells' pooled spread": lambda until: lambda report: report.pooled_half_widths > until,
    "chosen": chosen,
}


def simulated(
    seed: int, cells: int, case: tuple[str, float], needed: float, limits: tuple[int, int],
    rule: Callable[[float], Rule], studies: int, correlation: float = 0.0,
) -> CampaignCoverage:  # fmt: skip
    """Simulate `studies` campaigns of a kind."""
    spreads, of_blocks = case
    rng = np.random.default_rng(seed)
    spread = np.stack([SPREADS[spreads](rng, cells) for _ in range(studies)])
    until = math.sinh(Z * math.hypot(SPREAD, of_blocks) / math.sqrt(needed))
    report = campaign(rng, spread, *limits, rule(until), of_blocks, correlation)
    best = np.clip((Z / math.asinh(until)) ** 2 * (spread**2 + of_blocks**2), *limits)
    ratios = differ = math.nan
    if cells > 1:
        pairs = report.ratios(np.arange(0, cells, 2), np.arange(1, cells, 2))
        ratios, differ = float(pairs.covered.mean()), float(pairs.differ.mean())
    wide = float((report.half() > until).mean())
    return CampaignCoverage(
        float(report.covered.mean()), float(report.n.mean() / best.mean()), wide, ratios, differ
    )


def measure(cells: int) -> dict[str, dict[tuple, CampaignCoverage]]:
    """Simulate all rules; return results by rule, then by cells, case, runs needed and limits.

    `correlated` is the chosen rule with an autocorrelation of 0.5, `contrasts` the one for ratios, `fixed`
    has as many runs as needed. Each kind has `cells` cells, OF_CHOSEN times as many with the chosen rule.
    """
    kinds = [
        kind
        for kind in itertools.product(CELLS, CASES, NEEDED, LIMITS)
        if kind[2] < 1.5 * kind[3][1] and (kind[0] > 1 or kind[1][0] == CASES[0][0])
    ]
    compared = [kind for kind in kinds if kind[3] in OF_ALL]
    results = {
        name: _simulate_each(compared, rule, cells) for name, rule in RULES.items() if name != "chosen"
    }
    results["chosen"] = _simulate_each(kinds, chosen, OF_CHOSEN * cells)
    results["correlated"] = _simulate_each(compared, chosen, cells, 0.5)
    fixed = [(*kind[:3], (max(kind[2], 3),) * 2) for kind in compared if kind[3] == OF_ALL[-1]]
    results["fixed"] = _simulate_each(fixed, naive, cells)
    results["fixed, correlated"] = _simulate_each(fixed, naive, cells, 0.5)
    results["contrasts"] = _simulate_each([kind for kind in compared if kind[0] > 1], chosen_of_pairs, cells)
    return results


def _simulate_each(
    kinds: list[tuple], rule: Callable[[float], Rule], cells: int, correlation: float = 0.0
) -> dict[tuple, CampaignCoverage]:
    return {
        kind: simulated(number, *kind, rule, max(cells // kind[0], cells // 12), correlation)
        for number, kind in enumerate(kinds)
    }


def report(results: dict[str, dict[tuple, CampaignCoverage]], command: str) -> str:
    """Return the part of docs/measurements.md."""
    rows = []
    for name, (min_runs, max_runs) in itertools.product(RULES, LIMITS):
        selected = {kind: result for kind, result in results[name].items() if kind[3] == (min_runs, max_runs)}
        if selected:
            rows.append([name, f"{min_runs} to {max_runs}", *_summary(selected)])
    chosen_ones = results["chosen"]
    by_cells = [
        [f"{cells}"]
        + [
            f"{100 * np.mean(covered):.1f} ({np.mean(runs):.2f})"
            for needed in NEEDED
            for covered, runs in [_apart(chosen_ones, cells, needed)]
        ]
        for cells in CELLS
    ]
    of_pairs = [result for kind, result in chosen_ones.items() if kind[0] > 1]
    contrasts = list(results["contrasts"].values())
    correlated = results["correlated"].values()
    worst = min(chosen_ones, key=lambda kind: chosen_ones[kind].covered)
    return section(
        "Coverage of 95 % intervals with an interval target",
        command,
        table(
            ["stops when", "runs", "mean (%)", "least (%)", "most (%)", "runs / needed", "not precise (%)"],
            rows,
        ),
        "How often intervals of mean epoch times cover the true value, over studies of "
        f"{', '.join(map(str, CELLS))} cells that spread by 10 %, or by 5 to 20 %, without blocks and with "
        f"blocks of 10 %, with targets that need {', '.join(f'{n:g}' for n in NEEDED)} runs per cell if its "
        "spread is known. Mean, least and most: over these kinds of studies. Runs / needed: relative to "
        "that number, within at_least and at_most. Not precise: at the end, mostly after at_most.",
        table(["cells", *(f"{n:g} needed" for n in NEEDED)], by_cells),
        f"Coverage (%) of {100 * CONFIDENCE:g} % intervals under the chosen rule (a cell's spread known by "
        f"{MIN_CELL_DF:g} degrees of freedom, that of all by {MIN_POOLED_DF:g}), 3 to 30 runs; in "
        "parentheses, runs relative to those needed. Least of all kinds of studies: "
        f"{100 * chosen_ones[worst].covered:.1f} % ({worst[0]} cells, {worst[1][0]}, blocks of "
        f"{100 * worst[1][1]:g} %, {worst[2]:g} runs needed, {worst[3][0]} to {worst[3][1]} runs). Ratios "
        f"of two cells: {100 * np.mean([result.ratios for result in of_pairs]):.1f} % (least "
        f"{100 * min(result.ratios for result in of_pairs):.1f} %); of equal cells "
        f"{100 * np.mean([result.differ for result in of_pairs]):.1f} % have p < 0.05 (most "
        f"{100 * max(result.differ for result in of_pairs):.1f} %). If the target is for ratios "
        f"(`contrasts`): {100 * np.mean([result.ratios for result in contrasts]):.1f} % (least "
        f"{100 * min(result.ratios for result in contrasts):.1f} %) and "
        f"{100 * np.mean([result.differ for result in contrasts]):.1f} % (most "
        f"{100 * max(result.differ for result in contrasts):.1f} %). With a correlation of 0.5 between "
        f"consecutive runs, which no interval here models: {_share(correlated)} of means; with a fixed "
        f"number of runs {_share(results['fixed, correlated'].values())}, and without correlation "
        f"{_share(results['fixed'].values())}.",
    )


def _share(results: Iterable[CampaignCoverage]) -> str:
    shares = [100 * result.covered for result in results]
    return f"{np.mean(shares):.1f} % (least {min(shares):.1f} %)"


def _summary(results: dict[tuple, CampaignCoverage]) -> list[str]:
    covered: dict[tuple, list[float]] = {}
    for kind, result in results.items():
        covered.setdefault((kind[0], kind[2]), []).append(100 * result.covered)
    means = [np.mean(shares) for shares in covered.values()]
    runs, wide = (
        np.mean([getattr(result, name) for result in results.values()]) for name in ("runs", "wide")
    )
    return [
        f"{np.mean(means):.1f}",
        f"{min(means):.1f}",
        f"{max(means):.1f}",
        f"{runs:.2f}",
        f"{100 * wide:.0f}",
    ]


def _apart(
    results: dict[tuple, CampaignCoverage], cells: int, needed: float
) -> tuple[list[float], list[float]]:
    selected = [
        result for kind, result in results.items() if (kind[0], kind[2], kind[3]) == (cells, needed, (3, 30))
    ]
    return [result.covered for result in selected], [result.runs for result in selected]
