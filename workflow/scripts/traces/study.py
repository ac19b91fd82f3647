"""Write the tables of a study's traced runs."""

import sys
from pathlib import Path

from analysis import tables
from analysis.records import Records
from common.options import run_program
from traces import bottlenecks, cells, cost, exposed, path


def main(*, runs: Path, phases: Path, network: Path | None = None, out: Path) -> None:
    """Write every table as .csv, .md and .tex.

    Args:
        runs: runs.csv of the study
        phases: phases.csv of the study
        network: network.csv, if there is a collective benchmark
        out: where the tables go
    """
    records = Records(runs, runs, {"phases": phases, "network": network})
    measured = cells.select_traced(records.every_run, records.table("phases"))
    built = {
        "phases": cells.table(measured),
        "bottlenecks": bottlenecks.table(measured, records.table("network")),
        "critical_path": path.table(measured),
        "exposed": exposed.table(measured, records.every_run),
        "tracing": cost.table(records.every_run),
    }
    for name, table in built.items():
        tables.write(table, out / name)


if __name__ == "__main__":
    sys.exit(run_program(main))
