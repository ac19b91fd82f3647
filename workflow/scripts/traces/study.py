"""Make the tables of a study's traced runs: phases, what limits each cell, the critical path, and how traces and times agree."""

import sys
from pathlib import Path

from analysis import tables
from analysis.measured import Records
from common.options import run_program
from traces import bottlenecks, cells, cost, exposed, path


def main(*, runs: Path, phases: Path, network: Path | None = None, out: Path) -> None:
    """Write every table as .csv, .md and .tex.

    Args:
        runs: runs.csv of the study
        phases: phases.csv of the study
        network: network.csv, where the network was swept
        out: where the tables go
    """
    read = Records(runs, runs, {"phases": phases, "network": network})
    measured = cells.of(read.every_run, read.table("phases"))
    made = {
        "phases": cells.table(measured),
        "bottlenecks": bottlenecks.table(measured, read.table("network")),
        "critical_path": path.table(measured),
        "exposed": exposed.table(measured, read.every_run),
        "tracing": cost.table(read.every_run),
    }
    for name, table in made.items():
        tables.write(table, out / name)


if __name__ == "__main__":
    sys.exit(run_program(main))
