"""Make the tables of a study's traced runs: phases, what limits each cell, the critical path, and how traces and times agree."""

import argparse
import sys
from pathlib import Path

from analysis import tables
from analysis.measured import Records
from common.errors import exit_status
from traces import bottlenecks, cells, cost, exposed, path


def main(argv: list[str] | None = None) -> None:
    """Write every table as .csv, .md and .tex."""
    parser = argparse.ArgumentParser(prog="traces.study", description=main.__doc__)
    parser.add_argument("--runs", type=Path, required=True, metavar="CSV", help="runs.csv of the study")
    parser.add_argument("--phases", type=Path, required=True, metavar="CSV", help="phases.csv of the study")
    parser.add_argument(
        "--network", type=Path, nargs="?", metavar="CSV", help="network.csv, where the network was swept"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the tables go")
    args = parser.parse_args(argv)
    read = Records(args.runs, args.runs, {"phases": args.phases, "network": args.network})
    measured = cells.of(read.every_run, read.table("phases"))
    made = {
        "phases": cells.table(measured),
        "bottlenecks": bottlenecks.table(measured, read.table("network")),
        "critical_path": path.table(measured),
        "exposed": exposed.table(measured, read.every_run),
        "tracing": cost.table(read.every_run),
    }
    for name, table in made.items():
        tables.write(table, args.out / name)


if __name__ == "__main__":
    sys.exit(exit_status(main))
