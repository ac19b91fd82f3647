"""Make the tables of a study, from its runs alone.

One program for all of them: each by itself would spend most of its time on reading the runs and on its libraries.
"""

import argparse
import sys
from pathlib import Path

from analysis import anova, cells, checks, decomposition, effects, missing, regression, scaling, speedup, tables
from common.errors import exit_status
from common.tables import read_table


def main(argv: list[str] | None = None) -> None:
    """Write every table as .csv, .md and .tex; the residuals of the runs, and the regression's predictions of all cells, as .csv."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True, metavar="CSV", help="runs.csv of the study")
    parser.add_argument(
        "--network", type=Path, nargs="?", metavar="CSV", help="network.csv, where the network was swept"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the tables go")
    args = parser.parse_args(argv)
    runs = read_table(args.runs, "runs")
    network = read_table(args.network, "network") if args.network else None
    residuals, fits = checks.residuals(runs), regression.fit_all(runs)
    tables.write_csv(checks.listed(residuals), args.out / "residuals.csv")
    tables.write_csv(regression.by_cell(fits), args.out / "regression_cells.csv")
    tables.write(cells.table(runs), args.out / "cells")
    tables.write(speedup.table(runs), args.out / "speedup")
    tables.write(effects.table(runs), args.out / "effects")
    tables.write(anova.table(runs), args.out / "anova")
    tables.write(scaling.table(runs), args.out / "scaling")
    tables.write(missing.table(runs), args.out / "missing")
    tables.write(checks.table(runs, residuals), args.out / "checks")
    tables.write(decomposition.table(runs, network), args.out / "decomposition")
    tables.write(regression.table(runs, fits), args.out / "regression")


if __name__ == "__main__":
    sys.exit(exit_status(main))
