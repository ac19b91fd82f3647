"""Simulate how often intervals cover the true value, by the weight of the typical variance."""

import itertools
from unittest import mock

import numpy as np

from analysis.cell_means import estimate_means
from document import section, table
from support.simulated import DEPENDENCES, SPREADS, Coverage, coverage_of_means, simulated

CELLS, RUNS = (4, 8, 20, 60), (3, 5)
WEIGHTS = (0.0, 2.0, 3.0, 4.0, 6.0, np.inf)
Coverages = dict[tuple[int, float], dict[str, list[Coverage]]]


def measure(studies: int) -> Coverages:
    """Return the coverage in `studies` studies of every kind, by runs per cell and weight, then by spreads.

    All weights have the same studies.
    """
    coverages: Coverages = {(n, weight): {name: [] for name in SPREADS} for n in RUNS for weight in WEIGHTS}
    for number, (n, cells, spreads, dependence) in enumerate(
        itertools.product(RUNS, CELLS, SPREADS, DEPENDENCES)
    ):
        rng = np.random.default_rng(number)
        for _ in range(studies):
            runs, spread = simulated(rng, cells, n, spreads, *dependence)
            for weight in WEIGHTS:
                with mock.patch("analysis.cell_means.MAX_PRIOR_DF", weight):
                    cell_means = estimate_means.__wrapped__(runs)  # the last one is kept
                    coverages[n, weight][spreads].append(coverage_of_means(cell_means, spread))
    return coverages


def report(coverages: Coverages, command: str) -> str:
    """Return the part of docs/measurements.md."""
    rows = []
    for (n, weight), by_spread in coverages.items():
        studies, unpooled = (
            list(itertools.chain(*coverages[n, prior_weight].values())) for prior_weight in (weight, 0.0)
        )
        shares = [
            np.mean([study.cells for study in studies]),
            np.mean([study.ratios for study in studies]),
            *(
                np.mean([study.noisiest for study in by_spread[name]])
                for name in ("5 to 20 %", "one with three times")
            ),
        ]
        width = np.mean(
            [
                study.width_of_ratios / unpooled_study.width_of_ratios
                for study, unpooled_study in zip(studies, unpooled, strict=True)
            ]
        )
        rows.append([str(n), f"{weight:g}", *(f"{100 * share:.1f}" for share in shares), f"{width:.2f}"])
    header = [
        "runs a cell",
        "weight",
        "means (%)",
        "ratios (%)",
        "noisiest of 5 to 20 % (%)",
        "one with three times (%)",
        "width",
    ]
    return section(
        "Coverage of 95 % intervals",
        command,
        table(header, rows),
        "Weight: degrees of freedom of the variance that is typical of all cells, at most; 0: each cell's "
        "own variance; inf: as many as are estimated, as in limma. Means and ratios are over "
        f"{', '.join(map(str, CELLS))} cells with standard deviations that are {'; '.join(SPREADS)} (of the "
        "others'); without, and with blocks of 10 % and an autocorrelation of 0.5. Then the mean of the "
        "noisiest cell, where spreads are 5 to 20 %, and where one has three times that of the others. "
        "Width: of the intervals of ratios, beside those with own variances.",
    )
