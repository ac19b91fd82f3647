"""Table of scaling laws: the serial fraction of each series by Amdahl's law, and how well the law fits.

A series varies nodes only, devices per node only, or both in turn. Amdahl (AFIPS SJCC 1967): with p devices
an epoch takes T(p) = T(1) (f + (1 - f) / p), so speed-up stays below 1 / f. The law is fitted to the
logarithms of the runs' epoch times, because noise is a share of the time.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.optimize import OptimizeWarning, curve_fit

from analysis import conditions, tables
from analysis.cell_means import CellMeans, estimate_means
from analysis.intervals import SIGNIFICANCE_LEVEL, Estimate, columns
from analysis.level_words import combination_text, level_text, title
from analysis.records import cell_levels, successful, varying
from analysis.regression import LACK_OF_FIT, lack_of_fit
from analysis.speedup import karp_flatt, one_device_cells_by_batch_size
from common.notes import Note
from declared.factors import NODES_AND_DEVICES, SIZE_FACTORS

TITLE = "Scaling laws: serial fraction by Amdahl's law, and the largest speed-up"
SERIES_OF_EITHER = Note(
    "series-of-nodes-or-devices",
    "A series varies either the nodes or the devices per node, and p counts devices: with two devices on "
    "a node, a series over nodes begins at p = 2, and f and 1/f are relative to the fitted time of one "
    "device.",
)
NO_SERIES = "No series has three device counts, and any two fit such a law."
MIN_COUNTS = 3  # Device counts of a series; any two fit such a law.
READINGS = {
    "overhead grows": "the law does not fit, and Karp & Flatt's fraction rises with the number of devices: "
    "communication or another overhead grows with it, so 1/f is too optimistic",
    "overhead at once": "the law does not fit, and Karp & Flatt's fraction falls: most of the overhead "
    "appears as soon as devices communicate at all",
    "slower": "the fraction is above 1: more devices make the epoch longer",
    "faster than p": "the fraction is below 0: more than p times as fast on p devices, so something "
    "besides the work shrinks, such as the number of all-reduces, or data that must fit "
    "into a cache",
    "no gain seen": "the interval contains 1: the data do not show that more devices help",
    "no limit seen": "the interval contains 0: the data do not show a serial part",
    "law fits": "the test does not reject the law",
    "untested": "without replicates, or with all times equal, the law is not tested",
}


@dataclass(frozen=True)
class AmdahlFit:
    """Amdahl's law fitted to a series: time on one device, serial fraction, and p of lack of fit (or NaN)."""

    one_device_s: Estimate
    fraction: Estimate
    lack_of_fit_p: float

    @property
    def limit(self) -> Estimate:
        """Largest speed-up that the law allows on any number of devices: 1 / f, from 1 to infinity."""
        f = self.fraction
        return Estimate(_limit(f.value), _limit(f.high), _limit(f.low), f.n)


def _limit(fraction: float) -> float:
    return math.inf if fraction <= 0 else max(1, 1 / fraction)


def fit_amdahl(n_devices: np.ndarray, seconds: np.ndarray) -> AmdahlFit | None:
    """Fit the law to runs with at least two device counts; return None if the fit does not converge.

    Nonlinear least squares (scipy's curve_fit) of log seconds in log T(1) and f. Intervals are 95 % t
    intervals with n - 2 degrees of freedom by linear approximation (delta method), as in Bates & Watts,
    Nonlinear Regression Analysis and Its Applications (1988), chapter 2. Two runs have no intervals. Lack of
    fit is relative to replicates (analysis.regression).

    Args:
        n_devices: Number of devices of each run [n].
        seconds: Epoch time of each run [n].
    """
    n, log_s = len(seconds), np.log(seconds)
    inverse = 1 / n_devices

    def law(_: np.ndarray, log_one: float, fraction: float) -> np.ndarray:
        return log_one + np.log(np.maximum(fraction + (1 - fraction) * inverse, 1e-12))

    slope, intercept = np.polyfit(inverse, seconds / seconds.mean(), 1)
    one_device = max(intercept + slope, 0.01)
    start = [math.log(one_device * seconds.mean()), intercept / one_device]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)  # Two runs have no variance.
        try:
            values, covariance = curve_fit(law, inverse, log_s, start)
        except RuntimeError:
            return None
    half = np.full(2, math.nan)
    if n > 2 and np.isfinite(covariance).all():
        half = stats.t.ppf(0.975, n - 2) * np.sqrt(np.diag(covariance))
    log_one, fraction = map(float, values)
    residual = log_s - law(inverse, log_one, fraction)
    by_count = pd.DataFrame({"cell": n_devices, "measured": log_s, "residual": residual})
    slopes = np.column_stack([np.ones(n), (1 - inverse) / (fraction + (1 - fraction) * inverse)])
    return AmdahlFit(
        Estimate(math.exp(log_one), math.exp(log_one - half[0]), math.exp(log_one + half[0]), n),
        Estimate(fraction, fraction - half[1], fraction + half[1], n),
        lack_of_fit(by_count, slopes)["lack of fit: p"],
    )


def read_law(law: AmdahlFit, trend: float) -> list[str]:
    """Return what the fit shows, as keys of READINGS.

    Args:
        law: The fitted law.
        trend: Last of Karp & Flatt's fractions less the first.
    """
    low, high = law.fraction.low, law.fraction.high
    readings = [
        *(["slower"] if low > 1 else []),
        *(["faster than p"] if high < 0 else []),
        *(["no gain seen"] if low <= 1 <= high else []),
        *(["no limit seen"] if low <= 0 <= high else []),
    ]
    if math.isnan(law.lack_of_fit_p):
        return [*readings, "untested"]
    if law.lack_of_fit_p >= SIGNIFICANCE_LEVEL:
        return [*readings, "law fits"]
    return [*readings, "overhead grows" if trend > 0 else "overhead at once"]


def scaling_series(runs: pd.DataFrame) -> Iterator[tuple[str, dict[str, Any], pd.DataFrame]]:
    """Yield each series: its size factor, the levels of the other factors, and its successful runs.

    Runs have cell, n_devices and epoch_time_s. A series starts on one device if that was measured, even in a
    cell of other levels, because some factors have no effect on one device (analysis.speedup). Series are in
    table order. If nodes and devices vary, but not in turn (`declared.factors.is_ladder`), series over nodes
    come first.
    """
    varied, first = varying(runs), one_device_cells_by_batch_size(runs)
    ok = successful(runs)
    for size_factor in [name for name in SIZE_FACTORS if name in varied] or ["nodes"]:
        names = [name for name in varied if name != size_factor]
        other_scales = [name for name in SIZE_FACTORS if name in names]
        measured = ok[list(dict.fromkeys([*names, size_factor, "cell", "n_devices", "epoch_time_s"]))]
        if not names and len(measured):
            yield size_factor, {}, measured
        samples = dict(iter(measured.groupby(names, sort=False))) if names else {}
        for levels in cell_levels(runs)[names].drop_duplicates().itertuples(index=False, name=None):
            if levels in samples:
                series_runs = samples[levels]
                if (series_runs["n_devices"] > 1).all():
                    begins = measured[
                        measured["cell"].isin({first[cell] for cell in series_runs["cell"] if cell in first})
                    ]
                    series_runs = pd.concat(
                        [
                            begins[
                                (begins[other_scales] == series_runs[other_scales].iloc[0]).all(
                                    axis="columns"
                                )
                            ],
                            series_runs,
                        ]
                    )
                yield size_factor, dict(zip(names, levels, strict=True)), series_runs


def build_rows(runs: pd.DataFrame) -> tuple[pd.DataFrame, list[Note]]:
    """Return one row per series with MIN_COUNTS device counts or more, and sentences on the other series.

    If both nodes and devices vary, a row lists its levels of both.
    """
    fits: list[tuple[dict[str, Any], AmdahlFit, dict[int, str]]] = []
    too_few: dict[str, set[str]] = {}
    drawn: set[str] = set()
    unfitted = []
    cell_means, varied = estimate_means(runs), varying(runs)
    for size_factor, levels, sample in scaling_series(runs):
        name = combination_text(levels) or "the study"
        if sample["n_devices"].nunique() < MIN_COUNTS:
            too_few[name] = set(sample["cell"])
            continue
        drawn |= set(sample["cell"])
        if law := fit_amdahl(sample["n_devices"].to_numpy(float), sample["epoch_time_s"].to_numpy(float)):
            by_count = dict(sorted(zip(sample["n_devices"].astype(int), sample["cell"], strict=True)))
            if set(NODES_AND_DEVICES) <= set(varied):
                levels = levels | {
                    size_factor: ", ".join(map(level_text, sorted(sample[size_factor].unique())))
                }
            row = {factor: levels[factor] for factor in varied if factor in levels} | {"scaled": size_factor}
            fits.append((row, law, by_count))
        else:
            unfitted.append(name)
    fewest = [by_count[min(by_count)] for *_, by_count in fits]
    fastest = [by_count[_fastest_count(by_count, cell_means)] for *_, by_count in fits]
    # One call for all pairs, because a call per pair took most of the time.
    speedups = cell_means.ratios(numerator=fewest, denominator=fastest).to_dict("records")
    rows = [
        row | _series_row(law, by_count, cell_means, speedup)
        for (row, law, by_count), speedup in zip(fits, speedups, strict=True)
    ]
    of_few_counts = [name for name, cells in too_few.items() if not cells <= drawn]
    sentences = [
        Note(code, f"{why}: {conditions.join_names(names, '; ')}.", series=names)
        for code, why, names in (
            (
                "few-device-counts",
                "Measured at fewer than three device counts, which any such law fits",
                of_few_counts,
            ),
            ("law-not-fitted", "Amdahl's law cannot be fitted", unfitted),
        )
        if names
    ]
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["n_devices"]), sentences


def _fastest_count(by_count: dict[int, str], cell_means: CellMeans) -> int:
    """Return the device count with the shortest epoch, except the lowest count."""
    larger = sorted(by_count)[1:]
    return min(larger, key=lambda p: cell_means.cell_mean(by_count[p]).value)


def _series_row(
    law: AmdahlFit, by_count: dict[int, str], cell_means: CellMeans, ratio: Mapping[str, float]
) -> dict[str, Any]:
    """Return the columns of a series after its levels.

    Args:
        law: The fitted law.
        by_count: Number of devices -> cell, ascending.
        cell_means: Mean epoch times of the cells.
        ratio: Ratio of the time on the fewest devices to the shortest time, with bounds and within_blocks.
    """
    times = {count: cell_means.cell_mean(cell) for count, cell in by_count.items()}
    fewest, fastest = min(times), _fastest_count(by_count, cell_means)
    device_ratio = fewest / fastest
    speedup = Estimate(ratio["value"], ratio["low"], ratio["high"])
    one_s = times[1].value if fewest == 1 else law.one_device_s.value
    fractions = [karp_flatt(Estimate(one_s / times[p].value), p).value for p in times if p > 1]
    return {
        "n_devices": ", ".join(map(str, times)),
        "n": law.fraction.n,
        "baseline_n_devices": fewest,
        **columns("baseline_epoch_time_s", times[fewest]),
        **columns("one_device_fitted_s", law.one_device_s),
        **columns("serial_fraction", law.fraction),
        **columns("limit", law.limit),
        **columns("speedup", speedup),
        "speedup_n_devices": fastest,
        "within_blocks": ratio["within_blocks"],
        **columns(
            "efficiency",
            Estimate(device_ratio * speedup.value, device_ratio * speedup.low, device_ratio * speedup.high),
        ),
        "karp_flatt_first": fractions[0],
        "karp_flatt_last": fractions[-1],
        "lack_of_fit_p": law.lack_of_fit_p,
        "reads_as": "; ".join(read_law(law, fractions[-1] - fractions[0])),
    }


def table(runs: pd.DataFrame) -> tables.Table:
    """Return the table of scaling laws of a study."""
    data, sentences = build_rows(runs)
    if data.empty:
        series = [name for note in sentences for name in note.facts["series"]]
        notes = (
            [Note("few-device-counts", NO_SERIES, series=series)]
            if series
            else [conditions.run_counts_note(runs)]
        )
        notes = [*notes, conditions.measurement_note(runs)]
        return tables.Table(TITLE, data, pd.DataFrame(columns=["n_devices"]), notes)
    names = [name for name in varying(runs) if name in data]
    both_scales_vary = set(NODES_AND_DEVICES) <= set(names)
    display: dict[str, Any] = {title(name): data[name].map(level_text) for name in names}
    display["devices"] = data["n_devices"]
    display["n"] = data["n"].map(str)
    display["baseline (s)"] = tables.interval_texts(data, "baseline_epoch_time_s")
    display["serial fraction f"] = tables.interval_texts(data, "serial_fraction")
    display["limit 1/f"] = [text.replace("inf", "∞") for text in tables.interval_texts(data, "limit")]
    display["largest speed-up"] = tables.interval_texts(data, "speedup")
    display["on devices"] = data["speedup_n_devices"].map(str)
    display["efficiency"] = tables.interval_texts(data, "efficiency")
    display["Karp–Flatt"] = [
        " → ".join(tables.number(value, 2) for value in dict.fromkeys(fractions))
        for fractions in data[["karp_flatt_first", "karp_flatt_last"]].itertuples(index=False, name=None)
    ]
    display["lack of fit p"] = data["lack_of_fit_p"].map(tables.p_value)
    display["reads as"] = data["reads_as"]
    read = dict.fromkeys(word for words in data["reads_as"] for word in words.split("; "))
    notes = [
        "Amdahl's law T(p) = T(1) (f + (1 − f)/p), fitted to the logarithm of the epoch times of a series' "
        "n runs by least squares, without blocks; 95 % t intervals by linear approximation, valid if the "
        "law holds. Limit: the largest speed-up over one device that the law allows on any number of "
        "devices. f includes everything that more devices do not shorten.",
        "Baseline: the mean epoch time of the series itself on its fewest devices (the first in `devices`), "
        "not a single-device baseline (see table `speedup`). Largest speed-up: that of the fastest of "
        "the other device counts; its interval is not corrected for this choice. Efficiency: that speed-up "
        "divided by the ratio of the numbers of devices. "
        f"{conditions.comparison_note(data['within_blocks'])}",
        "Karp–Flatt: serial fraction of Karp & Flatt (1990) on the fewest and on the most devices above "
        "one, relative to the fitted T(1) if one device was not measured. If the law holds, it stays the "
        "same.",
        LACK_OF_FIT.format("the law"),
        Note(
            "reads-as",
            f"Reads as: {'; '.join(f'“{word}”: {READINGS[word]}' for word in read)}.",
            readings=list(read),
        ),
        SERIES_OF_EITHER if both_scales_vary else "",
        conditions.device_count_note(runs),
        *sentences,
        conditions.measurement_note(runs),
    ]
    return tables.Table(
        TITLE,
        data,
        pd.DataFrame(display),
        notes,
        left_aligned=[title("training_loop"), "devices", "reads as"],
        rules_above=data.index[data["scaled"] != data["scaled"].shift()].tolist()[1:],
    )
