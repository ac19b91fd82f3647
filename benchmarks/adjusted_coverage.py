"""Simulate how much adjusting means by the reference benchmark helps, by its correlation with epoch time."""

import itertools

import numpy as np

from document import section, table
from support.simulated import SPREADS, ReferencedCoverage, beside_reference, referenced_coverage

STUDIES = ((4, 3), (12, 3), (2, 8), (12, 5))  # cells, blocks
Correlations = tuple[
    float, float, float | None
]  # with the reference; blocks' part in it alone; with the CPU time lost
CORRELATIONS: tuple[Correlations, ...] = (
    (0.0, 0.0, None),
    (0.5, 0.0, None),
    (0.7, 0.0, None),
    (0.9, 0.0, None),
    (0.95, 0.0, None),
    (0.9, 0.1, None),
    (0.0, 0.0, 0.0),
    (0.9, 0.0, 0.0),
    (0.0, 0.0, 0.9),
    (0.6, 0.0, 0.7),
)
OF_BLOCKS = 0.03
Coverages = dict[tuple[int, int, Correlations], list[ReferencedCoverage]]


def measure(studies: int) -> Coverages:
    """Simulate `studies` studies of every kind, half of them with equal and half with unequal spreads."""
    coverages: Coverages = {}
    for number, (cells, blocks) in enumerate(STUDIES):
        for correlations in CORRELATIONS:
            rng = np.random.default_rng(number)
            spreads = itertools.islice(itertools.cycle(list(SPREADS)[:2]), studies)
            coverages[cells, blocks, correlations] = [
                referenced_coverage(*beside_reference(rng, cells, blocks, name, OF_BLOCKS, *correlations))
                for name in spreads
            ]
    return coverages


def report(coverages: Coverages, command: str) -> str:
    """Return the part of docs/measurements.md."""
    rows = []
    for (cells, blocks, correlations), studies in coverages.items():
        statistics = np.array(
            [[*study.plain[::2], *study.reported[::2]] for study in studies]
        )  # coverage of cells and of ratios, width of ratios
        means, ratios, width_of_ratios, shown_means, shown_ratios, shown_width_of_ratios = statistics.mean(
            axis=0
        )
        width = np.mean([study.reported.width for study in studies]) / np.mean(
            [study.plain.width for study in studies]
        )
        rows.append(
            [
                f"{cells} x {blocks}",
                _named(*correlations),
                f"{100 * np.mean([study.chosen for study in studies]):.0f}",
                *(f"{100 * share:.1f}" for share in (means, shown_means, ratios, shown_ratios)),
                f"{width:.2f}",
                f"{shown_width_of_ratios / width_of_ratios:.2f}",
                *(
                    f"{100 * np.mean(bias):+.2f}".replace("-", "−")
                    for bias in zip(*(study[:2:-1] for study in studies), strict=True)
                ),
            ]
        )
    header = [
        "cells x blocks",
        "correlation",
        "adjusted (%)",
        "means, plain (%)",
        "means (%)",
        "ratios, plain (%)",
        "ratios (%)",
    ]
    header += ["width of means", "of ratios", "bias, plain (%)", "bias (%)"]
    return section(
        "What a reference benchmark gains",
        command,
        table(header, rows),
        f"{len(next(iter(coverages.values())))} simulated studies a row; a study that is not adjusted counts "
        "with its plain intervals. Noise within blocks has a standard deviation of 10 %, in half of the "
        f"studies of 5 to 20 % by cell; blocks have {100 * OF_BLOCKS:.0f} %. Correlation: of log epoch time "
        "with the log reference benchmark within blocks. Blocks apart: a block also changes the benchmark "
        f"by {100 * max(apart for _, apart, _ in CORRELATIONS):.0f} %, and no epoch time. A and B: with the "
        "benchmark and with the CPU time lost, which vary independently. Adjusted: share of studies "
        "whose ratios or means are adjusted. Means, ratios: coverage of 95 % intervals, plain and as shown "
        "(adjusted means: of the value at the campaign's mean machine speed). Width: relative to plain "
        "intervals. Bias: of the mean of all cells (logarithms).",
    )


def _named(correlation: float, apart: float, lost: float | None) -> str:
    return (
        f"{correlation:g}" + (", blocks apart" if apart else "") + ("" if lost is None else f" and {lost:g}")
    )
