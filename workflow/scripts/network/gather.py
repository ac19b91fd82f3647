"""Gather collective benchmarks in network.csv: a row per repetition, or one row with the reason why not."""

import sys
from pathlib import Path
from typing import Any

import pandas as pd

from common.notes import Note
from common.options import run_program
from common.run_status import RunStatus
from common.schemas import schema
from common.tables import write_table
from common.text import number_of
from models.collectives import COLLECTIVES
from network.bus import bus_bandwidth
from network.measure import KIND
from plan.campaign import Campaign, load_campaign
from plan.collective_benchmarks import KEYS, CollectiveBenchmark, required_benchmarks
from plan.site_limits import unsupported_reason
from plan.site_resources import link_rate
from records.missing import MissingRecord, Situation, describe_missing
from records.next_commands import CONFIGURED, CampaignArguments, arguments_for, repeat_notes


def planned_columns(campaign: Campaign, benchmark: CollectiveBenchmark) -> dict[str, Any]:
    """Return the columns of a benchmark that are known before it is run."""
    return {
        "study": campaign.study.name,
        "site": campaign.site.name,
        "collective": benchmark.collective,
        "framework": benchmark.framework,
        "nodes": benchmark.nodes,
        "ranks": benchmark.geometry.ranks,
        **{name: benchmark.run.levels[name] for name in ("device", "bandwidth")},
        "placement": campaign.site.placement,
        "link_bytes_s": link_rate(campaign.site, benchmark.run.levels),
    }


def repetition_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the measured columns of each repetition in a record, ordered by size, round and repetition."""
    head = {name: record[name] for name in ("status", "reason", "transport")}
    rows = [
        {
            **head,
            "bytes": size["bytes"],
            "round": round_number,
            "repetition": repetition,
            "seconds": seconds,
            "bus_bandwidth_bytes_s": bus_bandwidth(
                size["bytes"], seconds, record["ranks"], record["collective"]
            ),
        }
        for size in record["sizes"]
        for round_number, times in enumerate(size["rounds"], start=1)
        for repetition, seconds in enumerate(times, start=1)
    ]
    return rows or [head]


def gather(campaign: Campaign) -> pd.DataFrame:
    """Return network.csv, ordered by framework and nodes.

    Raises:
        InputError: If a collective_benchmark.json is broken.
    """
    rows: list[dict[str, Any]] = []
    for benchmark in required_benchmarks(campaign.runs):
        head = planned_columns(campaign, benchmark)
        if reason := unsupported_reason(campaign.site, benchmark.run.levels):
            rows.append(head | MissingRecord(Situation.NOT_EXECUTABLE, reason).columns)
            continue
        head["key"] = benchmark.key(campaign.site)
        file = benchmark.final_record_path(campaign.results, campaign.site)
        if file.exists():
            rows += [head | row for row in repetition_rows(KIND.read(file))]
        else:
            rows.append(head | describe_missing(file).columns)
    return pd.DataFrame(rows, columns=list(schema("network")["properties"]))


def summary(table: pd.DataFrame, arguments: CampaignArguments = CONFIGURED) -> list[Note]:
    """Return how many benchmarks are ok, a line for each of the others, and the command that repeats them.

    `arguments` are the study and the site that the command has to name.
    """
    benchmarks = table.drop_duplicates(KEYS)
    bad = benchmarks[benchmarks["status"] != RunStatus.OK]
    ok = len(benchmarks) - len(bad)
    text = f"{number_of(len(benchmarks), 'collective benchmark')}, {ok} ok"
    lines = [Note("collective-benchmarks", text, benchmarks=len(benchmarks), ok=ok)]
    for row in bad.itertuples():
        text = (
            f"  {COLLECTIVES[row.collective].title} of {row.framework} on {row.nodes} nodes: {row.status}: "
            f"{row.reason}"
        )
        facts = {
            name: getattr(row, name) for name in ("collective", "framework", "nodes", "status", "reason")
        }
        lines.append(Note("benchmark-not-ok", text, **facts))
    return [*lines, *repeat_notes(bad["status"], arguments)]


def main(*, study: str, site: str, out: Path) -> None:
    """Gather the collective benchmarks of a study in network.csv.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        out: network.csv
    """
    campaign = load_campaign({"study": study, "site": site, "records": "available"})
    table = gather(campaign)
    write_table(table, "network", out)
    print("\n".join(summary(table, arguments_for(study, site))))


if __name__ == "__main__":
    sys.exit(run_program(main))
