"""Collect a study's timings: costs.csv, one row per configuration of a layer; messages.csv, one per size.

A timing without a result has one row with the reason.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from common.notes import Note
from common.options import run_program
from common.run_status import RunStatus
from common.schemas import schema
from common.tables import write_table
from common.text import number_of
from models.soap import divide
from plan.campaign import Campaign, load_campaign
from plan.site_limits import unsupported_reason
from plan.timings import MESSAGES, PART_FACTORS, PARTS, Timing, required_timings
from records.missing import MissingRecord, Situation, describe_missing
from records.next_commands import CONFIGURED, CampaignArguments, arguments_for, repeat_notes
from strategies.measure import KIND


def timing_columns(campaign: Campaign, timing: Timing) -> dict[str, Any]:
    """Return the columns of a timing that are known before it is made."""
    columns = {"study": campaign.study.name, "site": campaign.site.name, "framework": timing.framework}
    if timing.kind == MESSAGES:
        return {**columns, "device": timing.run.levels["device"]}
    levels = {name: timing.run.levels[name] for name in PART_FACTORS}
    return {**columns, **levels, "devices": timing.devices}


def median_and_spread(times: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the interquartile range over it; 0 and 0 without times."""
    if not times:
        return 0.0, 0.0
    low, median, high = np.quantile(times, [0.25, 0.5, 0.75])
    return float(median), float((high - low) / median) if median else 0.0


def part_rows(record: Mapping[str, Any], timing: Timing, ranks_on_a_node: int) -> list[dict[str, Any]]:
    """Return the rows of a timing of parts."""
    space = divide(timing.run.graph, timing.run.geometry.local_batch)
    divides = {layer.name: layer.divides for layer in space.layers}
    updates = {
        (update["layer"], update["shares"]): median_and_spread(update["seconds"])
        for update in record["updates"]
    }
    empty, _ = median_and_spread(record["empty_update"])
    memory = max(0, (record["node_memory_bytes"] or 0) // ranks_on_a_node - (record["resident_bytes"] or 0))
    rows = []
    for configuration in record["layers"]:
        degrees, times = configuration["degrees"], record["parts"][configuration["part"]]
        dimension = divides[configuration["layer"]]
        shares = 1 if dimension is None else degrees[dimension]
        step, spread = updates.get((configuration["layer"], shares), (empty, 0.0))
        (forward, of_forward), (backward, of_backward) = (
            median_and_spread(times["forward"]),
            median_and_spread(times["backward"]),
        )
        rows.append(
            {
                "layer": configuration["layer"],
                "degrees": "x".join(map(str, degrees)),
                "parts": math.prod(degrees),
                "forward_s": forward,
                "forward_spread": of_forward,
                "backward_s": backward,
                "backward_spread": of_backward,
                "update_s": max(0.0, step - empty),
                "update_spread": spread,
                "n": len(times["forward"]),
                "memory_bytes": memory,
                "environment_digest": record["environment_digest"],
            }
        )
    return rows


def message_rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a timing of messages."""
    return [
        {
            "transport": record["transport"],
            "bytes": size["bytes"],
            "send_s": median_and_spread(size["send"])[0],
            "receive_s": median_and_spread(size["receive"])[0],
            "seconds": median_and_spread(size["seconds"])[0],
            "n": len(size["seconds"]),
            "environment_digest": record["environment_digest"],
        }
        for size in record["messages"]
    ]


def gather(campaign: Campaign) -> dict[str, pd.DataFrame]:
    """Return both tables, by their schema.

    Raises:
        InputError: If a timing.json is broken.
    """
    site = campaign.site
    on_a_node = site.ranks_per_node * (site.nodes if site.placement == "emulated" else 1)
    rows: dict[str, list[dict[str, Any]]] = {"costs": [], "messages": []}
    for timing in required_timings(campaign.runs):
        table_rows, shared_columns = (
            rows["costs" if timing.kind == PARTS else "messages"],
            timing_columns(campaign, timing),
        )
        if reason := unsupported_reason(site, timing.run.levels):
            table_rows.append(shared_columns | MissingRecord(Situation.NOT_EXECUTABLE, reason).columns)
            continue
        shared_columns["key"] = timing.key(site)
        file = timing.final_record_path(campaign.results, site)
        if not file.exists():
            table_rows.append(shared_columns | describe_missing(file).columns)
            continue
        record = KIND.read(file)
        shared_columns |= {name: record[name] for name in ("status", "reason")}
        if record["status"] == RunStatus.OK:
            measured_rows = (
                part_rows(record, timing, on_a_node) if timing.kind == PARTS else message_rows(record)
            )
        else:
            measured_rows = [{}]
        table_rows += [shared_columns | row for row in measured_rows]
    return {name: pd.DataFrame(rows[name], columns=list(schema(name)["properties"])) for name in rows}


def summary(tables: Mapping[str, pd.DataFrame], arguments: CampaignArguments = CONFIGURED) -> list[str]:
    """Return notes on which timings are not ok and why; `arguments` as in `records.aggregate.summarize`."""
    keys = ["framework", "model", "dataset", "batch_size", "device", "optimizer"]
    models, messages = (
        tables["costs"].drop_duplicates(keys),
        tables["messages"].drop_duplicates(["framework", "device"]),
    )
    timings = [(f"parts of {row.model}", row) for row in models.itertuples()]
    timings += [(f"messages of {row.framework}", row) for row in messages.itertuples()]
    not_ok = [(name, row) for name, row in timings if row.status != RunStatus.OK]
    text = f"{number_of(len(timings), 'timing')}, {len(timings) - len(not_ok)} ok"
    lines: list[str] = [Note("timings", text, timings=len(timings), ok=len(timings) - len(not_ok))]
    for name, row in not_ok:
        text = f"  {name}: {row.status}: {row.reason}"
        lines.append(Note("timing-not-ok", text, timing=name, status=row.status, reason=row.reason))
    return [*lines, *repeat_notes([row.status for _, row in not_ok], arguments)]


def main(*, study: str, site: str, costs: Path, messages: Path) -> None:
    """Gather the timings of a study into costs.csv and messages.csv.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        costs: costs.csv
        messages: messages.csv
    """
    campaign = load_campaign({"study": study, "site": site, "records": "available"})
    tables = gather(campaign)
    for name, file in (("costs", costs), ("messages", messages)):
        write_table(tables[name], name, file)
    print("\n".join(summary(tables, arguments_for(study, site))))


if __name__ == "__main__":
    sys.exit(run_program(main))
