"""Records to tables: one row of runs.csv for every run of the design, whether or not it succeeded, and one of epochs.csv per epoch.

Only the current keys count: a record that was made of other software, code, data or settings is not taken, and said so.
"""

import argparse
import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from common.errors import InputError, exit_status
from common.files import CHECKOUT, load_yaml
from common.schemas import check, schema
from common.tables import write_table
from plan.campaign import Campaign, load_campaign
from plan.design import Run
from plan.identity import digests, lacks, links, run_key
from plan.study import load_framework
from runs.attempts import unfinished
from runs.epochs import read_epochs
from runs.worker.meter import COLUMNS

MEASURED = (
    "transport", "startup_s", "import_s", "first_step_s", "memory_peak_bytes", "device_memory_peak_bytes", "throttled_s",
    "sent_bytes", "energy_j",
    "foreign_cpu_share", "steal_share", "python_version", "library_version",
)  # fmt: skip
RECORDED = (
    "site", "session", "status", "reason", "attempt", "started_at", "ended_at", "placement", "timing_scope",
    "cores_per_rank", "oversubscribed", "max_foreign_cpu_share", "wall_s",
)  # fmt: skip
LAST_EPOCH = (
    "train_loss",
    "train_accuracy",
    "validation_loss",
    "validation_accuracy",
    "samples_trained",
    "steps",
    "exchanges",
)


def planned_row(campaign: Campaign, run: Run) -> dict[str, Any]:
    """What is known of a run before it ran."""
    geometry = vars(run.geometry)
    return {
        "run_id": run.run_id,
        "study": campaign.study.name,
        "cell": run.cell,
        "replicate": run.replicate,
        "block": run.block,
        "order_key": run.order_key,
        "seed": run.seed,
        **run.levels,
        **{
            name: geometry[name]
            for name in ("ranks", "replicas", "local_batch", "effective_batch", "samples_per_epoch")
        },
        "cpu_share": campaign.site.cpu_share,
        **links(campaign.site, run.levels),
        "base": load_framework(run.levels["framework"]).base,
    }


def missing(run: Run, folder: Path) -> dict[str, Any]:
    """Status and reason of a run without a record under its current key."""
    if any(folder.parent.glob("*/record.json")):
        reason = "old: measured with other software, code, data or settings only"
    elif left := unfinished(folder):
        reason = f"absent: attempt {left[-1]['attempt']} {left[-1]['reason']}"
    else:
        reason = "absent: has not run"
    return {"status": "missing", "reason": reason}


def read_record(folder: Path, epochs_wanted: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The published record of a run and the epochs of its attempt, as numbers. InputError when a file is broken."""
    file = folder / "record.json"
    advice = f"repeat it: make repeat RUNS='{folder.parent.name}'"
    try:
        record = json.loads(file.read_text())
    except ValueError as error:
        raise InputError(f"{file}: is broken ({error}); {advice}") from None
    check(record, "record", file)
    table = folder / f"attempt-{record['attempt']}" / "epochs.csv"
    try:
        epochs = read_epochs(table) if table.exists() else []
    except ValueError as error:
        raise InputError(f"{table}: is broken ({error}); {advice}") from None
    if record["status"] == "ok" and len(epochs) != epochs_wanted:
        raise InputError(f"{table}: has {len(epochs)} of {epochs_wanted} epochs; {advice}")
    return record, [{name: _finite(value) for name, value in row.items()} for row in epochs]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def measured_row(record: dict[str, Any], epochs: list[dict[str, Any]], samples: int) -> dict[str, Any]:
    """What a record and its epochs add to a row. A run's epoch time is the arithmetic mean of its epochs that are not warm-up."""
    measured = record["measured"] or {}
    row = {name: record[name] for name in RECORDED} | {name: measured.get(name) for name in MEASURED}
    job = record["job"] or {}
    row |= {"job": job.get("number"), "submitted_at": job.get("submitted_at"), "job_started_at": job.get("started_at")}
    row["unfinished_attempts"] = (
        "; ".join(f"{a['attempt']}: {a['reason']}" for a in record["unfinished_attempts"]) or None
    )
    row["hosts"] = " ".join(measured.get("hosts", [])) or None
    row["devices"] = " ".join(measured.get("devices", [])) or None
    timed = pd.DataFrame([epoch for epoch in epochs if not epoch["warm_up"]], columns=COLUMNS)
    if len(timed):
        mean = timed.epoch_time_s.mean()
        row |= {
            "epoch_time_s": mean,
            "epoch_time_median_s": timed.epoch_time_s.median(),
            "imbalance_s": timed.imbalance_s.mean(),
            "validation_time_s": timed.validation_time_s.mean(),
            "throughput_samples_s": samples / mean,
        }
    if epochs:
        row |= {name: epochs[-1][name] for name in LAST_EPOCH}
    return row


def aggregate(campaign: Campaign) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The two tables, rows in planned order."""
    rows, epoch_rows = [], []
    for run in campaign.runs:
        row = planned_row(campaign, run)
        if reason := lacks(campaign.site, run.levels):
            rows.append({**row, "status": "missing", "reason": reason})
            continue
        row |= {"key": run_key(campaign.study, campaign.site, run), **digests(campaign.site, run)}
        folder = campaign.results / "runs" / run.run_id / row["key"]
        if (folder / "record.json").exists():
            record, epochs = read_record(folder, run.levels["epochs"])
            row |= measured_row(record, epochs, run.geometry.samples_per_epoch)
            epoch_rows += [{"run_id": run.run_id, "key": row["key"], **epoch} for epoch in epochs]
        else:
            row |= missing(run, folder)
        rows.append(row)
    return pd.DataFrame(rows, columns=list(schema("runs")["properties"])), pd.DataFrame(
        epoch_rows, columns=["run_id", "key", *COLUMNS]
    )


def summary(runs: pd.DataFrame, arguments: str = "", way: str = "") -> str:
    """What a person should know: how many rows are ok, which are not and why, and the command that repeats them.

    `arguments` is what a command needs to find this study again, such as STUDY=NAME; `way` the command
    that runs what is missing, where it is not make figures.
    """
    counts = Counter(runs.status)
    text = f"{len(runs)} runs: " + ", ".join(f"{counts[status]} {status}" for status in counts)
    not_ok = runs[runs.status != "ok"]
    lines = [f"  {row.run_id}: {row.status}: {row.reason}" for row in not_ok.head(20).itertuples()]
    if len(not_ok) > len(lines):
        lines.append(f"  and {len(not_ok) - len(lines)} more, in runs.csv")
    again = [status for status in ("failed", "timeout", "invalid") if counts[status]]
    if again:
        other = "".join(f", or RUNS={status}" for status in again[1:])
        lines.append(f"to repeat them: make repeat RUNS={again[0]}{other} {arguments}".rstrip())
    if (not_ok.status == "missing").any() and not not_ok.reason.str.startswith("site ").all():
        lines.append(f"to run what is missing: {way or f'make figures {arguments}'}".rstrip())
    return "\n".join([text, *lines])


def arguments_for(study: str, site: str) -> str:
    """make's STUDY=... and SITE=... where they are not the configured ones, otherwise nothing."""
    configured = load_yaml(CHECKOUT / "config" / "config.yaml")
    named = {"study": study, "site": site}
    return " ".join(f"{key.upper()}={value}" for key, value in named.items() if configured.get(key) != value)


def ways_to_run(launcher: str, study: str, site: str) -> str:
    """The commands that run a study at a site of a cluster; nothing for this machine."""
    config = f"--config study={study} site={site}"
    return {
        "slurm": f"make submit STUDY={study} SITE={site}, or snakemake figures --profile slurm {config}",
        "oar": f"snakemake figures --profile oar {config}",
    }.get(launcher, "")


def main(argv: list[str] | None = None) -> None:
    """Aggregate the records of a study into runs.csv and epochs.csv."""
    parser = argparse.ArgumentParser(prog="records.aggregate", description=main.__doc__)
    parser.add_argument("--study", required=True, help="name of a file in config/studies/")
    parser.add_argument("--site", required=True, help="name of a file in config/sites/")
    parser.add_argument("--runs", required=True, type=Path, help="runs.csv")
    parser.add_argument("--epochs", required=True, type=Path, help="epochs.csv")
    options = parser.parse_args(argv)
    campaign = load_campaign({"study": options.study, "site": options.site, "records": "available"})
    runs, epochs = aggregate(campaign)
    write_table(epochs, "epochs", options.epochs)
    write_table(runs, "runs", options.runs)
    way = ways_to_run(campaign.site.launcher, options.study, options.site)
    print(summary(runs, arguments_for(options.study, options.site), way))


if __name__ == "__main__":
    sys.exit(exit_status(main))
