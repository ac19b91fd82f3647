"""Ask for runs to be repeated. Old attempts are kept; the next invocation makes new ones."""

import argparse
import fnmatch
import json
import sys
from pathlib import Path

from common.errors import InputError, exit_status
from common.files import CHECKOUT, load_yaml
from network.plan import TABLE, Sweeps
from plan.campaign import Campaign, load_campaign
from runs.attempts import put_aside

STATUSES = ("ok", "failed", "timeout", "invalid", "broken")


def status(record: Path) -> str:
    """The status in a record.json; broken where it cannot be read."""
    try:
        return str(json.loads(record.read_text())["status"])
    except (ValueError, TypeError, KeyError):
        return "broken"


def chosen(campaign: Campaign, wanted: str) -> dict[str, Path]:
    """The runs with a record whose status is `wanted`, or whose id matches it as a pattern (fnmatch).

    The sweeps of the network are runs, too: `sweep.<framework>.n<nodes>`.
    """
    sweeps = {f"sweep.{name}": path for name, path in Sweeps(campaign).outputs.items()}
    known = {**sweeps, **campaign.records}
    there = {run_id: Path(path) for run_id, path in known.items() if Path(path).exists()}
    if wanted in STATUSES:
        return {run_id: path for run_id, path in there.items() if status(path) == wanted}
    return {run_id: path for run_id, path in there.items() if fnmatch.fnmatchcase(run_id, wanted)}


def main(argv: list[str] | None = None) -> None:
    """Put the finished attempts of runs aside, so that they are repeated."""
    parser = argparse.ArgumentParser(prog="runs.repeat", description=main.__doc__)
    parser.add_argument(
        "--runs", required=True, help=f"a status ({', '.join(STATUSES)}) or a pattern such as '*ddp*.b32.*'"
    )
    parser.add_argument(
        "--config", nargs="*", default=[], metavar="KEY=VALUE", help="as for snakemake, such as study=NAME"
    )
    options = parser.parse_args(argv)
    config = load_yaml(CHECKOUT / "config" / "config.yaml")
    config |= dict(pair.split("=", 1) if "=" in pair else (pair, "") for pair in options.config)
    campaign = load_campaign({**config, "records": "campaign"})
    runs = chosen(campaign, options.runs)
    if not runs:
        raise InputError(
            f"RUNS={options.runs}: no run with a record matches; give a status ({', '.join(STATUSES)}) or a pattern of run_id"
        )
    for path in runs.values():
        put_aside(path)
    for table in (campaign.runs_csv, campaign.epochs_csv, campaign.results / TABLE):
        table.unlink(missing_ok=True)
    print(f"{len(runs)} runs will be repeated; their old attempts are kept")


if __name__ == "__main__":
    sys.exit(exit_status(main))
