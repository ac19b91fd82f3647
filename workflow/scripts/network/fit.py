"""Latency and bandwidth of each collective, framework and number of nodes: network.csv -> tables/network.

The model is seconds = latency + bytes x seconds_per_byte (Hockney, Parallel Computing 20, 1994). In each round of a sweep
the medians of the repetitions of all sizes are fitted by least absolute relative errors, |seconds - model| / t, where t is
the size's median over all rounds. So small messages decide the latency and large ones the bandwidth, and the sizes between,
where libraries change their algorithm and links let bursts through, pull little at either. Latency and bandwidth are the means over rounds (of the bandwidth the harmonic mean), and their intervals the 95 % t intervals of those
means. A round is the unit, since noise lasts longer than one repetition. The interval says where the mean of many more
rounds in the same processes on the same nodes would lie. It says nothing of other processes, nodes or days, nor of how far
the network is from a straight line; that is what `deviation` is for.
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
from analysis.measured import combination_text, one_line
from common.notes import Note
from common.options import run_program
from common.tables import read_table
from models.collectives import ALL_REDUCE, COLLECTIVES, titles
from network.bus import bus_bandwidth
from plan.sweeps import KEYS

PLACEMENTS = {
    "distinct-nodes": "Each node is a machine of its own.",
    "virtual": "Nodes are those of a virtual cluster on one machine.",
    "emulated": "Nodes are groups of processes on one machine, so the numbers say nothing about a real network.",
}
FEWEST_SIZES = 2  # of which a model is made
NO_SWEEP = Note("no-sweep", "The study has no distributed framework on two nodes or more.")


@dataclass(frozen=True)
class Fit:
    """The model of one sweep. `latency_s` and `seconds_per_byte` with intervals; `deviation`: see `fit`."""

    latency_s: Estimate
    seconds_per_byte: Estimate
    deviation: float
    ranks: int
    collective: str

    @property
    def bandwidth_bytes_s(self) -> Estimate:
        """Bus bandwidth of a message without end, bytes/s; NaN where time does not grow with size."""
        b = self.seconds_per_byte
        if not b.value > 0:
            return Estimate(math.nan, n=b.n)
        value = bus_bandwidth(1, b.value, self.ranks, self.collective)
        if not b.low > 0:
            return Estimate(value, n=b.n)
        low, high = (bus_bandwidth(1, per_byte, self.ranks, self.collective) for per_byte in (b.high, b.low))
        return Estimate(value, low, high, b.n)

    def seconds(self, message_bytes: np.ndarray) -> np.ndarray:
        """The model's time of messages of these sizes."""
        return self.latency_s.value + self.seconds_per_byte.value * message_bytes


def round_medians(sweep: pd.DataFrame) -> pd.DataFrame:
    """Median seconds of the repetitions, rounds in rows, message sizes in columns. `sweep`: its rows of network.csv."""
    medians = sweep.groupby(["round", "bytes"])["seconds"].median().unstack("bytes").dropna(axis=1)
    return medians.astype(float)


def line(size: np.ndarray, seconds: np.ndarray, scale: np.ndarray) -> tuple[float, float]:
    """Intercept and slope of the line with the least sum of |seconds - line| / scale. All arrays [n], n > 1, sizes distinct.

    Such a line goes through two of the points (Bloomfield & Steiger, Least Absolute Deviations, 1983), so that all pairs
    are tried.
    """
    first, second = np.triu_indices(len(size), k=1)
    slopes = (seconds[second] - seconds[first]) / (size[second] - size[first])
    intercepts = seconds[first] - slopes * size[first]
    errors = np.abs(intercepts[:, None] + slopes[:, None] * size - seconds) / scale
    best = int(np.argmin(errors.sum(axis=1)))
    return float(intercepts[best]), float(slopes[best])


def fit(sweep: pd.DataFrame) -> Fit | None:
    """The model of one sweep from its rows of network.csv; None where there are fewer than two sizes.

    `deviation` is the largest share by which a size's median over rounds is off the model, which is its misfit.
    """
    medians = round_medians(sweep)
    if len(medians.columns) < FEWEST_SIZES:
        return None
    size = medians.columns.to_numpy(float)
    typical = np.median(medians.to_numpy(), axis=0)
    latency, per_byte = np.transpose([line(size, seconds, typical) for seconds in medians.to_numpy()])
    first = sweep.iloc[0]
    means = intervals.mean(latency, minimum=0), intervals.mean(per_byte, minimum=0)
    made = Fit(*means, 0.0, int(first["ranks"]), first["collective"])
    return replace(made, deviation=float(np.abs(made.seconds(size) / typical - 1).max()))


def fit_token_buckets(sweep: pd.DataFrame) -> Fit | None:
    """As `fit`, for links that are token buckets, where a latency is time in which they fill: of messages without pauses each takes the longer
    of its latency and of what its bytes take. Both go through medians over rounds, and have no interval."""
    medians = round_medians(sweep).median()
    size, seconds = medians.index.to_numpy(float), medians.to_numpy()
    if len(size) < FEWEST_SIZES:
        return None
    latency, per_byte = (found.ravel() for found in np.meshgrid(seconds, seconds / size))
    off = np.abs(np.maximum(latency[:, None], per_byte[:, None] * size) / seconds - 1)
    best = int(np.argmin(off.sum(axis=1)))
    first = sweep.iloc[0]
    estimates = Estimate(float(latency[best])), Estimate(float(per_byte[best]))
    return Fit(*estimates, float(off[best].max()), int(first["ranks"]), first["collective"])


def achieved(sweep: pd.DataFrame) -> dict[int, Estimate]:
    """Size in bytes -> bus bandwidth of the mean over rounds of the rounds' median times, with its 95 % t interval."""
    ranks, collective = int(sweep["ranks"].iloc[0]), sweep["collective"].iloc[0]
    return {
        int(size): intervals.harmonic_mean([bus_bandwidth(size, seconds, ranks, collective) for seconds in times])
        for size, times in round_medians(sweep).items()
    }


def bound(link_bytes_s: float, nodes: int, ranks: int, collective: str) -> float:
    """The largest bus bandwidth that links of this rate allow, bytes/s; NaN where the rate is not known.

    What leaves a node takes its time on the node's link, however many ranks it has; with one rank a node this is the link's
    rate itself. Sources: `models.collectives`.
    """
    kind = COLLECTIVES[collective]
    return float(link_bytes_s * kind.sent(ranks) / kind.leaves(nodes, ranks / nodes))


def measured(network: pd.DataFrame) -> pd.DataFrame:
    """The rows of network.csv that numbers are made of: repetitions of sweeps that are ok."""
    return network[(network["status"] == "ok") & network["seconds"].notna()]


def shortfall(network: pd.DataFrame) -> Note:
    """Return the sweeps that did not succeed, by name and with the reason, in one sentence."""
    sweeps = network.drop_duplicates(KEYS)
    if sweeps.empty:
        return NO_SWEEP
    bad = {_name(row): (row.status, one_line(row.reason)) for row in sweeps[sweeps["status"] != "ok"].itertuples()}
    if not bad:
        return Note("no-missing-sweep", "No sweep is missing.")
    each = "; ".join(f"{name} ({status}: {reason})" for name, (status, reason) in bad.items())
    return Note("missing-sweeps", f"Missing sweeps: {each}.", sweeps=bad)


def circumstances(network: pd.DataFrame) -> str:
    """Return placement, and how many rounds and repetitions stand behind a number; nothing where no sweep succeeded."""
    ok = measured(network)
    if ok.empty:
        return ""
    placements = sorted(set(ok["placement"].dropna()))
    said = [f"Placement: {name}. {PLACEMENTS[name]}" for name in placements]
    counts = sorted({*ok.groupby([*KEYS, "bytes"]).size()})
    repetitions = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    said.append(f"{repetitions} repetitions of a size in a round; the time of a repetition is the slowest rank's.")
    rounds = rounds_text(network)
    text = " ".join([rounds, *said])
    return Note("circumstances", text, **rounds.facts, placements=placements, repetitions=counts)


def rounds_text(network: pd.DataFrame) -> Note:
    """Return how many rounds stand behind a number."""
    rounds = sorted(set(measured(network).groupby(KEYS)["round"].nunique()))
    return Note("rounds", f"n = {' or '.join(map(str, rounds))} rounds in the same processes.", rounds=rounds)


def several(network: pd.DataFrame) -> bool:
    """Whether anything but all-reduce was swept."""
    return bool((network["collective"] != ALL_REDUCE).any())


def collectives_text(network: pd.DataFrame) -> str:
    """What was swept, in words."""
    return titles(network["collective"]) or COLLECTIVES[ALL_REDUCE].title


def factors_text(network: pd.DataFrame) -> Note:
    """Return what bus bandwidth is, of each collective that was swept, in one sentence."""
    factors: dict[str, list[str]] = {}
    for name, one in COLLECTIVES.items():
        if name in {ALL_REDUCE, *network["collective"]}:
            factors.setdefault(one.factor, []).append(name)
    text = f"Bandwidth is bus bandwidth, {next(iter(factors))} × bytes / seconds with n ranks."
    if len(factors) > 1:
        of_each = "; ".join(f"{factor} of {titles(names)}" for factor, names in factors.items())
        text = f"Bandwidth is bus bandwidth, factor × bytes / seconds; the factor with n ranks is {of_each}."
    return Note("bus-bandwidth", text, factors=factors)


def link_rates_text(network: pd.DataFrame) -> Note:
    """Return the rate that the site gives for its links, in a sentence."""
    rates = sorted(set(measured(network)["link_bytes_s"].dropna()))
    if not rates:
        return Note("no-link-rate", "The site names no rate of its links.")
    shown = ", ".join(tables.number(rate / 1e6) for rate in rates)
    return Note("link-rates", f"Rate of the links, as the site states it: {shown} MB/s.", bytes_s=rates)


def bytes_text(size: float) -> str:
    """A size in bytes as a person writes it: 64 KiB."""
    exponent = min(3, max(0, int(math.log2(size)) // 10))
    return f"{size / 1024**exponent:g} {('B', 'KiB', 'MiB', 'GiB')[exponent]}"


def compare(network: pd.DataFrame) -> pd.DataFrame:
    """One row per sweep: latency, bandwidth, share of what the link allows, what the largest message achieved."""
    rows = []
    place = network["collective"].map(list(COLLECTIVES).index)
    for (_, collective, framework, nodes, ranks, device, bandwidth), sweep in network.groupby(
        [place.rename("place"), *KEYS], sort=True
    ):
        first = sweep.iloc[0]
        ok = measured(sweep)
        made = fit(ok) if len(ok) else None
        by_size = achieved(ok) if len(ok) else {}
        largest = max(by_size, default=None)
        limit = bound(first["link_bytes_s"], nodes, ranks, collective)
        nothing = Estimate(math.nan)
        reached = by_size[largest] if largest else nothing
        rows.append(
            {
                "collective": collective,
                "framework": framework,
                "nodes": nodes,
                "ranks": ranks,
                "device": device,
                "bandwidth": bandwidth,
                "status": first["status"],
                "reason": first["reason"],
                "transport": first["transport"],
                "n": ok["round"].nunique(),
                "repetitions": len(ok),
                **columns("latency_s", made.latency_s if made else nothing),
                **columns("bandwidth_bytes_s", made.bandwidth_bytes_s if made else nothing),
                "link_bytes_s": first["link_bytes_s"],
                "bound_bytes_s": limit,
                "largest_bytes": largest,
                **columns("achieved_bytes_s", reached),
                **columns("share", Estimate(reached.value / limit, reached.low / limit, reached.high / limit)),
                "deviation": made.deviation if made else math.nan,
            }
        )
    made = pd.DataFrame(rows, columns=list(rows[0]) if rows else KEYS)
    return made if several(network) else made.drop(columns="collective")


def table(network: pd.DataFrame) -> tables.Table:
    """The table of the network as the frameworks see it."""
    title = f"Latency and bus bandwidth of {'collectives' if several(network) else 'all-reduce'}"
    words = ["collective", "framework", "link", "device", "transport", "status"]
    data = compare(network)
    if data.empty:
        return tables.Table(title, data, pd.DataFrame(columns=["framework"]), [NO_SWEEP], words)
    shown: dict[str, Any] = {"framework": data["framework"], "nodes": data["nodes"].map(str)}
    if "collective" in data:
        shown = {"collective": [COLLECTIVES[name].title for name in data["collective"]], **shown}
    if (data["ranks"] != data["nodes"]).any():
        shown["ranks"] = data["ranks"].map(str)
    if data["bandwidth"].nunique() > 1:
        shown["link"] = [combination_text({"bandwidth": level}) for level in data["bandwidth"]]
    if data["device"].nunique() > 1:
        shown["device"] = data["device"]
    if (data["status"] != "ok").any():
        shown["status"] = data["status"]
    shown["transport"] = data["transport"].where(data["transport"].notna(), tables.DASH)
    shown["latency (ms)"] = _shown(data, "latency_s", 1e3)
    shown["bandwidth (MB/s)"] = _shown(data, "bandwidth_bytes_s", 1e-6)
    largest = data["largest_bytes"].dropna()
    at = f"at {bytes_text(largest.iloc[0])}" if largest.nunique() == 1 else "at the largest message"
    shown[f"{at} (MB/s)"] = _shown(data, "achieved_bytes_s", 1e-6)
    if data["link_bytes_s"].notna().any():
        shown["share of the link (%)"] = _shown(data, "share", 100)
    shown["deviation (%)"] = [tables.percent(share, 0) for share in data["deviation"]]
    shown["n"] = data["n"].map(str)
    notes = [
        circumstances(network),
        _how_fitted(network),
        _too_fast(data),
        Note("latency-of-start", "Latency includes how far apart the ranks start after the opening barrier."),
        link_rates_text(network) if len(measured(network)) else "",
        shortfall(network),
    ]
    return tables.Table(title, data, pd.DataFrame(shown), [note for note in notes if note], words)


def _name(sweep: Any) -> str:
    """A row of a sweep in words."""
    told = {"device": sweep.device, "bandwidth": sweep.bandwidth}
    more = [combination_text({name: level}) for name, level in told.items() if level != conditions.THE_SITES[name]]
    of = "" if sweep.collective == ALL_REDUCE else f"{COLLECTIVES[sweep.collective].title} of "
    return ", ".join([f"{of}{sweep.framework} on {sweep.nodes} nodes", *more])


def _how_fitted(network: pd.DataFrame) -> Note:
    factors = factors_text(network)
    text = (
        "Latency and bandwidth are from the line seconds = latency + bytes / bandwidth, fitted in every round by least "
        f"absolute relative errors. {factors} Intervals are 95 % t intervals "
        "of the mean over rounds (n); they do not cover other processes, nodes or days. Deviation is the largest difference between "
        "the median of a message size and the line. The share of the link is that of the largest message."
    )
    return Note("how-fitted", text, **factors.facts)


def _too_fast(data: pd.DataFrame) -> str:
    """Return a sentence about the sweeps whose fit promises more than the link allows; nothing where there is none."""
    every = data if "collective" in data else data.assign(collective=ALL_REDUCE)
    rows = every[every["bandwidth_bytes_s"] > every["bound_bytes_s"]]
    names = [_name(row) for row in rows.itertuples()]
    why = "their times do not follow a line, for example because links let bursts through: read their bandwidth with their deviation"
    text = f"The fitted bandwidth is more than the link allows for {', '.join(names)}; {why}."
    return Note("faster-than-link", text, sweeps=names) if names else ""


def _shown(data: pd.DataFrame, name: str, factor: float) -> list[str]:
    bounds = factor * data[[name, f"{name}_low", f"{name}_high"]].astype(float)
    return [tables.interval(Estimate(*row)) for row in bounds.itertuples(index=False)]


def main(*, network: Path, out: Path) -> None:
    """Fit latency and bandwidth to the sweeps of a study.

    Args:
        network: network.csv of the study
        out: files to write, without their suffix
    """
    tables.write(table(read_table(network, "network")), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
