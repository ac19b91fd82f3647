"""Fit latency and bandwidth of each collective, framework and number of nodes: network.csv -> tables/network.

The model is seconds = latency + bytes x seconds_per_byte (Hockney, Parallel Computing 20, 1994). In each
round, the medians of the repetitions of all sizes are fitted by least absolute relative errors |seconds -
model| / t, where t is the median of the size over all rounds. Small messages thus determine the latency and
large ones the bandwidth. Sizes in between, at which libraries change their algorithm and links let bursts
through, have little influence. Latency is the mean over rounds, bandwidth the harmonic mean, each with a 95 %
t interval. The unit of the interval is the round, because noise lasts longer than one repetition. The
interval covers further rounds of the same processes on the same nodes, but not other processes, nodes or
days. `deviation` is the distance of the times from a straight line.
"""

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions, intervals, tables
from analysis.intervals import Estimate, columns
from analysis.level_words import combination_text
from analysis.records import one_line
from common.notes import Note
from common.options import run_program
from common.run_status import RunStatus
from common.tables import read_table
from common.text import number_of
from common.units import DATA_RATES, LINK_RATES, TIMES, Unit, choose_unit, in_one_unit
from models.collectives import ALL_REDUCE, COLLECTIVES, titles
from network.bus import bus_bandwidth
from plan.collective_benchmarks import KEYS

PLACEMENTS = {
    "distinct-nodes": "Each node is a separate machine.",
    "virtual": "Nodes are those of a virtual cluster on one machine.",
    "emulated": (
        "Nodes are groups of processes on one machine, so the numbers say nothing about a real network."
    ),
}
MIN_SIZES = 2  # A line needs two points.
# Largest share by which a measured time may deviate from the fit. Nothing uses or prints the numbers of a
# worse fit.
MAX_FIT_DEVIATION = 0.2
ROUGH_FITS = Note(
    "rough-fits",
    f"{tables.DASH}: times deviate from the line by more than {100 * MAX_FIT_DEVIATION:g} %, so they have no "
    "latency and bandwidth.",
)
NO_BENCHMARK = Note("no-collective-benchmark", "The study has no distributed framework on two nodes or more.")


@dataclass(frozen=True)
class BenchmarkFit:
    """The model of one collective benchmark, with intervals.

    Attributes:
        latency_s: Latency, s.
        seconds_per_byte: Slope of the line.
        deviation: Largest relative difference between the line and the median of a size over rounds.
        ranks: Number of ranks.
        collective: Name of the collective.
    """

    latency_s: Estimate
    seconds_per_byte: Estimate
    deviation: float
    ranks: int
    collective: str

    @property
    def bandwidth_bytes_s(self) -> Estimate:
        """Asymptotic bus bandwidth of large messages in bytes/s, NaN if time does not grow with size."""
        b = self.seconds_per_byte
        if not b.value > 0:
            return Estimate(math.nan, n=b.n)
        value = bus_bandwidth(1, b.value, self.ranks, self.collective)
        if not b.low > 0:
            return Estimate(value, n=b.n)
        low, high = (bus_bandwidth(1, per_byte, self.ranks, self.collective) for per_byte in (b.high, b.low))
        return Estimate(value, low, high, b.n)

    def seconds(self, message_bytes: np.ndarray) -> np.ndarray:
        """Return the modelled times of messages."""
        return self.latency_s.value + self.seconds_per_byte.value * message_bytes


def round_medians(benchmark: pd.DataFrame) -> pd.DataFrame:
    """Return medians of repetitions, with shape [rounds, sizes], from one benchmark's rows of network.csv."""
    medians = benchmark.groupby(["round", "bytes"])["seconds"].median().unstack("bytes").dropna(axis=1)
    return medians.astype(float)


def fit_line(size: np.ndarray, seconds: np.ndarray, scale: np.ndarray) -> tuple[float, float]:
    """Return intercept and slope of the line with the smallest sum of |seconds - line| / scale.

    Such a line passes through two of the points (Bloomfield & Steiger, Least Absolute Deviations, 1983), so
    all pairs are tried.

    Args:
        size: Message sizes in bytes, distinct; all arrays have shape [n] with n > 1.
        seconds: Times.
        scale: Divisors of the residuals.
    """
    first, second = np.triu_indices(len(size), k=1)
    slopes = (seconds[second] - seconds[first]) / (size[second] - size[first])
    intercepts = seconds[first] - slopes * size[first]
    errors = np.abs(intercepts[:, None] + slopes[:, None] * size - seconds) / scale
    best = int(np.argmin(errors.sum(axis=1)))
    return float(intercepts[best]), float(slopes[best])


def fit_benchmark(benchmark: pd.DataFrame) -> BenchmarkFit | None:
    """Return the model of one benchmark from its rows of network.csv, or None for fewer than two sizes."""
    medians = round_medians(benchmark)
    if len(medians.columns) < MIN_SIZES:
        return None
    size = medians.columns.to_numpy(float)
    typical = np.median(medians.to_numpy(), axis=0)
    latency, per_byte = np.transpose([fit_line(size, seconds, typical) for seconds in medians.to_numpy()])
    first = benchmark.iloc[0]
    means = intervals.mean(latency, minimum=0), intervals.mean(per_byte, minimum=0)
    model = BenchmarkFit(*means, 0.0, int(first["ranks"]), first["collective"])
    return replace(model, deviation=float(np.abs(model.seconds(size) / typical - 1).max()))


def fit_token_buckets(benchmark: pd.DataFrame) -> BenchmarkFit | None:
    """Return the model of a benchmark on links that are token buckets, or None for fewer than two sizes.

    Buckets refill during the latency, so a message takes the maximum of latency and transmission time. Both
    are fitted to medians over rounds and have no interval.
    """
    medians = round_medians(benchmark).median()
    size, seconds = medians.index.to_numpy(float), medians.to_numpy()
    if len(size) < MIN_SIZES:
        return None
    latency, per_byte = (grid.ravel() for grid in np.meshgrid(seconds, seconds / size))
    errors = np.abs(np.maximum(latency[:, None], per_byte[:, None] * size) / seconds - 1)
    best = int(np.argmin(errors.sum(axis=1)))
    first = benchmark.iloc[0]
    estimates = Estimate(float(latency[best])), Estimate(float(per_byte[best]))
    return BenchmarkFit(*estimates, float(errors[best].max()), int(first["ranks"]), first["collective"])


def bus_bandwidths(benchmark: pd.DataFrame) -> dict[int, Estimate]:
    """Return the bus bandwidth of each size in bytes: the harmonic mean over rounds, with its interval."""
    ranks, collective = int(benchmark["ranks"].iloc[0]), benchmark["collective"].iloc[0]
    return {
        int(size): intervals.harmonic_mean(
            [bus_bandwidth(size, seconds, ranks, collective) for seconds in times]
        )
        for size, times in round_medians(benchmark).items()
    }


def bandwidth_bound(link_bytes_s: float, nodes: int, ranks: int, collective: str) -> float:
    """Return the upper bound of bus bandwidth in bytes/s for links of this rate, NaN if the rate is unknown.

    All traffic that leaves a node shares the node's link. With one rank per node the bound is the rate of
    that link, and on a single node it is the rate of the link of a device. Sources: models.collectives.
    """
    if nodes == 1:
        return float(link_bytes_s)
    kind = COLLECTIVES[collective]
    return float(link_bytes_s * kind.sent(ranks) / kind.leaves(nodes, ranks / nodes))


def valid_repetitions(network: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of network.csv that have a time: the repetitions of successful benchmarks."""
    return network[(network["status"] == RunStatus.OK) & network["seconds"].notna()]


def missing_benchmarks_note(network: pd.DataFrame) -> Note:
    """Return a note on the benchmarks that did not succeed, with their reasons."""
    benchmarks = network.drop_duplicates(KEYS)
    if benchmarks.empty:
        return NO_BENCHMARK
    bad = {
        _describe_benchmark(row): (row.status, one_line(row.reason))
        for row in benchmarks[benchmarks["status"] != RunStatus.OK].itertuples()
    }
    if not bad:
        return Note("no-missing-benchmark", "No collective benchmark is missing.")
    details = "; ".join(f"{name} ({status}: {reason})" for name, (status, reason) in bad.items())
    return Note("missing-benchmarks", f"Missing collective benchmarks: {details}.", benchmarks=bad)


def setup_note(network: pd.DataFrame) -> str:
    """Return a note on placement, rounds and repetitions; "" if no benchmark succeeded."""
    ok = valid_repetitions(network)
    if ok.empty:
        return ""
    placements = sorted(set(ok["placement"].dropna()))
    sentences = [] if ok["key"].notna().any() else ["Measured elsewhere."]
    sentences += [f"Placement: {name}. {PLACEMENTS[name]}" for name in placements]
    counts = sorted({*ok.groupby([*KEYS, "bytes"]).size()})
    repetitions = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    text = (
        f"Each benchmark has {rounds_text(network)} in the same processes, and a round {repetitions} "
        "repetitions of a size; the time of a repetition is the slowest rank's."
    )
    facts = {"rounds": count_rounds(network), "placements": placements, "repetitions": counts}
    return Note("circumstances", " ".join([text, *sentences]), **facts)


def count_rounds(network: pd.DataFrame) -> list[int]:
    """Return the different numbers of rounds that benchmarks have, the smallest first."""
    return sorted(set(valid_repetitions(network).groupby(KEYS)["round"].nunique()))


def rounds_text(network: pd.DataFrame) -> str:
    """Return the numbers of rounds of the benchmarks, such as `4 or 5 rounds`."""
    return f"{' or '.join(map(str, count_rounds(network)))} rounds"


def has_other_collectives(network: pd.DataFrame) -> bool:
    """Return whether collectives other than all-reduce were benchmarked."""
    return bool((network["collective"] != ALL_REDUCE).any())


def collectives_text(network: pd.DataFrame) -> str:
    """Return the titles of the benchmarked collectives."""
    return titles(network["collective"]) or COLLECTIVES[ALL_REDUCE].title


def factors_text(network: pd.DataFrame) -> Note:
    """Return a note that defines bus bandwidth for each benchmarked collective."""
    factors: dict[str, list[str]] = {}
    for name, collective in COLLECTIVES.items():
        if name in {ALL_REDUCE, *network["collective"]}:
            factors.setdefault(collective.factor, []).append(name)
    text = f"Bandwidth is bus bandwidth, {next(iter(factors))} × bytes / seconds with n ranks."
    if len(factors) > 1:
        definitions = "; ".join(f"{factor} of {titles(names)}" for factor, names in factors.items())
        text = (
            f"Bandwidth is bus bandwidth, factor × bytes / seconds; the factor with n ranks is {definitions}."
        )
    return Note("bus-bandwidth", text, factors=factors)


def link_rates_text(network: pd.DataFrame) -> Note:
    """Return a note on the link rates that the site declares."""
    rates = sorted(set(valid_repetitions(network)["link_bytes_s"].dropna()))
    if not rates:
        return Note("no-link-rate", "The site names no rate of its links.")
    rates_text = in_one_unit(rates, LINK_RATES, between=", ")
    return Note("link-rates", f"Rate of the links, as the site states it: {rates_text}.", bytes_s=rates)


def deviation_note(deviations: pd.Series) -> Note:
    """Return a note on how far measured times are from the lines; `deviations` has one for each benchmark."""
    largest = float(deviations.max())
    text = f"Measured times differ from the fitted line by up to {100 * largest:.0f} %."
    return Note("deviation-from-fit", text, deviation=largest)


def deviation_text(deviation: float) -> str:
    """Return a deviation in percent, with a decimal if it would otherwise read as the limit of poor fits."""
    percent = 100 * deviation
    is_near_limit = round(percent) == round(100 * MAX_FIT_DEVIATION) and percent > 100 * MAX_FIT_DEVIATION
    return f"{percent:.1f}" if is_near_limit else f"{percent:.0f}"


def bytes_text(size: float) -> str:
    """Return a size in bytes with a binary unit, such as 64 KiB."""
    exponent = min(3, max(0, int(math.log2(size)) // 10))
    return f"{size / 1024**exponent:g} {('B', 'KiB', 'MiB', 'GiB')[exponent]}"


def summarize(network: pd.DataFrame) -> pd.DataFrame:
    """Return a row per benchmark: latency, bandwidth, and the bandwidth of its largest message."""
    rows = []
    order = network["collective"].map(list(COLLECTIVES).index)
    for _, benchmark in network.groupby([order.rename("order"), *KEYS], sort=True):
        first = benchmark.iloc[0]
        ok = valid_repetitions(benchmark)
        model = fit_benchmark(ok) if len(ok) else None
        by_size = bus_bandwidths(ok) if len(ok) else {}
        largest = max(by_size, default=None)
        limit = bandwidth_bound(*first[["link_bytes_s", "nodes", "ranks", "collective"]])
        missing = Estimate(math.nan)
        reached = by_size[largest] if largest else missing
        rows.append(
            {
                **{name: first[name] for name in (*KEYS, "status", "reason", "transport")},
                "n": ok["round"].nunique(),
                "repetitions": len(ok),
                **columns("latency_s", model.latency_s if model else missing),
                **columns("bandwidth_bytes_s", model.bandwidth_bytes_s if model else missing),
                "link_bytes_s": first["link_bytes_s"],
                "bound_bytes_s": limit,
                "largest_bytes": largest,
                **columns("achieved_bytes_s", reached),
                **columns(
                    "share", Estimate(reached.value / limit, reached.low / limit, reached.high / limit)
                ),
                "deviation": model.deviation if model else math.nan,
            }
        )
    data = pd.DataFrame(rows, columns=list(rows[0]) if rows else KEYS)
    return data if has_other_collectives(network) else data.drop(columns="collective")


def table(network: pd.DataFrame) -> tables.Table:
    """Return the table of the collective benchmark."""
    title = (
        f"Latency and bus bandwidth of {'collectives' if has_other_collectives(network) else 'all-reduce'}"
    )
    words = ["collective", "framework", "link", "device", "transport", "status"]
    data = summarize(network)
    if data.empty:
        return tables.Table(title, data, pd.DataFrame(columns=["framework"]), [NO_BENCHMARK], words)
    columns_shown: dict[str, Any] = {}
    if "collective" in data:
        columns_shown["collective"] = [COLLECTIVES[name].title for name in data["collective"]]
    columns_shown |= {"framework": data["framework"], "nodes": data["nodes"].map(str)}
    if (data["ranks"] != data["nodes"]).any():
        columns_shown["ranks"] = data["ranks"].map(str)
    if data["bandwidth"].nunique() > 1:
        columns_shown["link"] = [combination_text({"bandwidth": level}) for level in data["bandwidth"]]
    if data["device"].nunique() > 1:
        columns_shown["device"] = data["device"]
    if (data["status"] != RunStatus.OK).any():
        columns_shown["status"] = data["status"]
    columns_shown["transport"] = data["transport"].where(data["transport"].notna(), tables.DASH)
    fitted = _interval_column(data, "latency_s", "latency", TIMES)
    fitted |= _interval_column(data, "bandwidth_bytes_s", "bandwidth", DATA_RATES)
    is_rough = data["deviation"] > MAX_FIT_DEVIATION
    columns_shown |= {name: np.where(is_rough, tables.DASH, texts) for name, texts in fitted.items()}
    largest = data["largest_bytes"].dropna()
    position = f"at {bytes_text(largest.iloc[0])}" if largest.nunique() == 1 else "at the largest message"
    columns_shown |= _interval_column(data, "achieved_bytes_s", position, DATA_RATES)
    if data["link_bytes_s"].notna().any():
        columns_shown["share of the link (%)"] = tables.interval_texts(data, "share", 100)
    columns_shown["deviation (%)"] = [tables.percent(share) for share in data["deviation"]]
    columns_shown["n"] = data["n"].map(str)
    notes = [
        setup_note(network),
        _how_fitted(network),
        ROUGH_FITS if is_rough.any() else "",
        _too_fast(data),
        Note("latency-of-start", "Latency includes how far apart the ranks start after the opening barrier."),
        link_rates_text(network) if len(valid_repetitions(network)) else "",
        missing_benchmarks_note(network),
    ]
    return tables.Table(title, data, pd.DataFrame(columns_shown), notes, words)


def _describe_benchmark(benchmark: Any) -> str:
    """Return a description of a benchmark from its row."""
    levels = {"device": benchmark.device, "bandwidth": benchmark.bandwidth}
    deviating = [
        combination_text({name: level})
        for name, level in levels.items()
        if level != conditions.SITE_DEFAULTS[name]
    ]
    prefix = "" if benchmark.collective == ALL_REDUCE else f"{COLLECTIVES[benchmark.collective].title} of "
    nodes = number_of(int(benchmark.nodes), "node")
    return ", ".join([f"{prefix}{benchmark.framework} on {nodes}", *deviating])


def _how_fitted(network: pd.DataFrame) -> Note:
    """Return a note on how latency and bandwidth were fitted."""
    factors = factors_text(network)
    text = (
        "Latency and bandwidth are from the line seconds = latency + bytes / bandwidth, fitted in every "
        f"round by least absolute relative errors. {factors} Intervals are 95 % t intervals of the mean over "
        "rounds (n); they do not cover other processes, nodes or days. Deviation is the largest difference "
        "between the median of a message size and the line."
    )
    if network["link_bytes_s"].notna().any():
        text += " The share of the link is that of the largest message."
    return Note("how-fitted", text, **factors.facts)


def _too_fast(data: pd.DataFrame) -> str:
    """Return a note on benchmarks with a fitted bandwidth above the bound of the link, "" without any."""
    every = data if "collective" in data else data.assign(collective=ALL_REDUCE)
    rows = every[every["bandwidth_bytes_s"] > every["bound_bytes_s"]]
    names = [_describe_benchmark(row) for row in rows.itertuples()]
    explanation = (
        "their times do not follow a line, for example because links let bursts through, or the stated rate "
        "is not that of a node: read their bandwidth with their deviation"
    )
    text = f"The fitted bandwidth is more than the link allows for {', '.join(names)}; {explanation}."
    return Note("faster-than-link", text, benchmarks=names) if names else ""


def _interval_column(
    data: pd.DataFrame, name: str, heading: str, units: tuple[Unit, ...]
) -> dict[str, list[str]]:
    """Return a column of estimates in the unit that suits the largest, with its heading."""
    unit = choose_unit(data[name], units)
    return {f"{heading} ({unit.name})": tables.interval_texts(data, name, 1 / unit.size)}


def main(*, network: Path, out: Path) -> None:
    """Fit latency and bandwidth to the collective benchmark of a study.

    Args:
        network: network.csv of the study
        out: files to write, without their suffix
    """
    tables.write(table(read_table(network, "network")), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
