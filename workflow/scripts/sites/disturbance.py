"""Whether a machine is disturbed: what a hypervisor withholds of its processor time, what other programs use, and what that costs in runs."""

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.notes import Note
from declared.site import Site
from sites import node_report
from sites.slurm import hosts
from sites.verdicts import Finding, ok, warn

WORTH_SAYING = 0.05  # of the processor time
LEAST_FREEDOM = 6  # degrees, of disturbed runs and of others, before their spreads are compared
LEAST_S = 0.5  # of time that shares are told of

# withheld: share of the processor time that programs wanted; others: of all processors; None where that is not known.
Shares = Mapping[str, float | None]


def looks(site: Site) -> Callable[[bool], Shares | None]:
    """What tells the shares since it was made or last asked, told whether runs are under way, whose programs are not others.

    None where runs are on other machines than this one. Costs nothing, or up to LEAST_S when asked earlier.
    """
    if site.placement == "distinct-nodes":
        return lambda running: None
    since = [node_report.used()]

    def look(running: bool) -> Shares:
        node_report.work_until(since[0]["at"] + LEAST_S)
        found = node_report.shares(since[0], now := node_report.used())
        since[0] = now
        return {**found, "others": None if running else found["others"]}

    return look


def told(shares: Shares | None, site: Site, runs_csv: Path) -> Note | None:
    """One sentence on a machine that is disturbed now, and what it costs by a campaign's runs.csv; None where it is not."""
    said = list(_said(shares or {}, site))
    if not said:
        return None
    cost = _costs(runs_csv)
    text = f"this machine is disturbed: {' and '.join(said)}{cost}"
    return Note("disturbed", text, invalid=[key for one in said for key in one.facts["invalid"]], **cost.facts)


def finding(reports: Sequence[Mapping[str, Any]], site: Site, runs_csv: Path) -> Finding:
    """The doctor's verdict on what all nodes said of themselves. Nodes of one machine, asked at once, are the others of each other."""
    found: dict[str, list[str]] = defaultdict(list)
    disturbed: dict[str, Shares] = {}
    for report in reports:
        shares = report["disturbed"]
        if site.placement == "virtual":
            shares = {**shares, "others": None}
        if said := " and ".join(_said(shares, site)):
            found[said].append(report["host"])
            disturbed[report["host"]] = shares
    if not found:
        return ok("quiet", f"nothing withholds or uses more than {WORTH_SAYING:.0%} of the processor time now")
    cost = _costs(runs_csv)
    text = "; ".join(f"{hosts(names)}: {said}" for said, names in found.items()) + cost
    return warn("quiet", "disturbed", text, shares=disturbed, **cost.facts)


def _said(shares: Shares, site: Site) -> Iterator[Note]:
    for name, what, most, key in (
        ("withheld", "a hypervisor withholds", site.max_steal_share, "max_steal_share"),
        ("others", "other programs use", site.max_foreign_cpu_share, "max_foreign_cpu_share"),
    ):
        share = shares.get(name) or 0.0
        if share > min(WORTH_SAYING, most):
            invalid = f" (runs with more than {most:.0%} are invalid: {key})" if share > most else ""
            text = f"{what} {share:.0%} of the processor time{invalid}"
            yield Note(name, text, share=share, invalid=[key] * (share > most))


def _costs(runs_csv: Path) -> Note:
    """What runs that were disturbed cost in this campaign, as the end of a sentence; empty where its runs do not tell."""
    times = wider(_rows(runs_csv))
    if times is None or times < 1.05:
        return Note("no-cost", "", times=None)
    text = (
        f"; in this campaign disturbed runs vary {times:.1f} times as much as others: intervals of such runs are about as many times "
        f"as wide, or take {times**2:.1f} times the runs"
    )
    return Note("cost", text, times=times)


def wider(rows: Iterable[Mapping[str, str]]) -> float | None:
    """How many times as much disturbed runs vary as others: the ratio of the two standard deviations of log epoch times.

    Each is pooled over cells: squared deviations from the mean of a cell's runs of the same sort, over the degrees of freedom. The
    half-width of an interval is proportional to it, and to 1 / sqrt(runs), but for the quantile of t; so equal intervals take the square of
    it in runs. `rows` are rows of runs.csv as they are written. None where one of the two has less than LEAST_FREEDOM degrees.
    """
    times: dict[bool, dict[str, list[float]]] = {True: defaultdict(list), False: defaultdict(list)}
    for row in rows:
        if row["status"] == "ok" and row["epoch_time_s"] and row["steal_share"]:
            withheld = float(row["steal_share"]) + float(row["foreign_cpu_share"] or 0)
            times[withheld > WORTH_SAYING][row["cell"]].append(math.log(float(row["epoch_time_s"])))
    variances = []
    for of_cells in times.values():
        freedom = sum(len(values) - 1 for values in of_cells.values())
        squares = sum((x - math.fsum(values) / len(values)) ** 2 for values in of_cells.values() for x in values)
        if freedom < LEAST_FREEDOM or not squares:
            return None
        variances.append(squares / freedom)
    return math.sqrt(variances[0] / variances[1])


def _rows(runs_csv: Path) -> list[dict[str, str]]:
    """The rows of a runs.csv; none where there is none, or it is none."""
    try:
        with open(runs_csv, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error):
        return []
    wanted = {"status", "cell", "epoch_time_s", "steal_share", "foreign_cpu_share"}
    return rows if rows and wanted <= set(rows[0]) else []
