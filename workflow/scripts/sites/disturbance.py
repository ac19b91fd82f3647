"""Measure CPU steal and CPU time of other processes, and their cost in additional runs."""

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.notes import Note
from common.renamed import rename_columns
from common.run_status import RunStatus
from declared.site import Site
from sites import node_report
from sites.findings import Finding, ok, warn
from sites.slurm import join_hosts

MIN_REPORTED_SHARE = 0.05  # share of the CPU time
MIN_DEGREES_OF_FREEDOM = 6  # needed in disturbed runs and in other runs to compare their spreads
MIN_INTERVAL_S = 0.5  # shortest interval over which shares are measured

# steal: CPU steal as share of the time that programs requested; others: share of all CPUs; None if unknown.
Shares = Mapping[str, float | None]


def share_meter(site: Site) -> Callable[[bool], Shares | None]:
    """Return a function that measures the shares since its last call, given whether runs are active.

    The share of other processes is None while runs are active, because it would include their processes. The
    function returns None if runs use other machines. It waits until MIN_INTERVAL_S have passed since the last
    call.
    """
    if site.placement == "distinct-nodes":
        return lambda _: None
    since = [node_report.read_cpu_times()]

    def measure(running: bool) -> Shares:
        node_report.work_until(since[0]["at"] + MIN_INTERVAL_S)
        shares = node_report.disturbance_shares(since[0], now := node_report.read_cpu_times())
        since[0] = now
        return {**shares, "others": None if running else shares["others"]}

    return measure


def describe(shares: Shares | None, site: Site, runs_csv: Path) -> Note | None:
    """Return a sentence about the disturbance of this machine, None if it is quiet.

    It includes what disturbances have cost the campaign of `runs_csv`.
    """
    notes = list(_disturbances(shares or {}, site))
    if not notes:
        return None
    cost = _cost(runs_csv)
    text = f"this machine is disturbed: {' and '.join(notes)}{cost}"
    return Note(
        "disturbed", text, invalid=[key for note in notes for key in note.facts["invalid"]], **cost.facts
    )


def node_finding(reports: Sequence[Mapping[str, Any]], site: Site, runs_csv: Path) -> Finding:
    """Return the doctor's finding about the disturbance of all nodes.

    All nodes of a virtual cluster measure at the same time on one machine, so CPU time of other processes is
    ignored.
    """
    hosts_by_text: dict[str, list[str]] = defaultdict(list)
    for report in reports:
        shares = report["disturbed"] | ({"others": None} if site.placement == "virtual" else {})
        if text := " and ".join(_disturbances(shares, site)):
            hosts_by_text[text].append(report["host"])
    if not hosts_by_text:
        return ok("quiet", f"CPU steal and other processes take at most {MIN_REPORTED_SHARE:.0%} of CPU time")
    text = "; ".join(f"{join_hosts(names)}: {text}" for text, names in hosts_by_text.items())
    return warn("quiet", "disturbed", text + _cost(runs_csv))


def _disturbances(shares: Shares, site: Site) -> Iterator[Note]:
    """Yield a note for each share above MIN_REPORTED_SHARE or above the site's limit."""
    for name, clause, limit, key in (
        ("steal", "the hypervisor takes", site.max_steal_share, "max_steal_share"),
        ("others", "other programs use", site.max_other_cpu_share, "max_other_cpu_share"),
    ):
        share = shares.get(name) or 0.0
        if share > min(MIN_REPORTED_SHARE, limit):
            invalid = f" (runs with more than {limit:.0%} are invalid: {key})" if share > limit else ""
            text = f"{clause} {share:.0%} of the CPU time{invalid}"
            yield Note(name, text, share=share, invalid=[key] * (share > limit))


def _cost(runs_csv: Path) -> Note:
    """Return the cost of disturbed runs as the end of a sentence, "" if the campaign shows none."""
    times = spread_ratio(_rows(runs_csv))
    if times is None or times < 1.05:
        return Note("no-cost", "", times=None)
    text = (
        f"; in this campaign disturbed runs vary {times:.1f} times as much as others: their intervals are as "
        f"many times wider, or need {times**2:.1f} times the runs"
    )
    return Note("cost", text, times=times)


def spread_ratio(rows: Iterable[Mapping[str, str]]) -> float | None:
    """Return the standard deviation of log epoch times of disturbed runs over that of other runs.

    Both are pooled over cells: squared deviations from the mean of a cell's runs of the same kind, over
    degrees of freedom. Except for the quantile of t, the half-width of an interval is proportional to the
    standard deviation and to 1 / sqrt(runs). Intervals of equal width therefore need ratio ** 2 times the
    runs. `rows` are those of runs.csv.

    Returns:
        The ratio, or None with less than MIN_DEGREES_OF_FREEDOM degrees of freedom of either kind.
    """
    times: dict[bool, dict[str, list[float]]] = {True: defaultdict(list), False: defaultdict(list)}
    for row in rows:
        if row["status"] == RunStatus.OK and row["epoch_time_s"] and row["steal_share"]:
            share = float(row["steal_share"]) + float(row["other_cpu_share"] or 0)
            times[share > MIN_REPORTED_SHARE][row["cell"]].append(math.log(float(row["epoch_time_s"])))
    variances = []
    for by_cell in times.values():
        freedom = sum(len(values) - 1 for values in by_cell.values())
        squares = sum(
            (x - math.fsum(values) / len(values)) ** 2 for values in by_cell.values() for x in values
        )
        if freedom < MIN_DEGREES_OF_FREEDOM or not squares:
            return None
        variances.append(squares / freedom)
    return math.sqrt(variances[0] / variances[1])


def _rows(runs_csv: Path) -> list[dict[str, str]]:
    """Return the rows of a runs.csv, or [] if it does not exist or is unusable."""
    try:
        with open(runs_csv, newline="", encoding="utf-8") as file:
            header, *lines = csv.reader(file)
        names = rename_columns(header)
        rows = [dict(zip(names, line, strict=True)) for line in lines]
    except (OSError, ValueError, csv.Error):
        return []
    required = {"status", "cell", "epoch_time_s", "steal_share", "other_cpu_share"}
    return rows if required <= set(names) else []
