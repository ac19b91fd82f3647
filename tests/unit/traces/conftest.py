"""A made-up campaign with traced runs, gathered."""

from types import SimpleNamespace

import pytest

from common.tables import read_table
from traces import cells, gather
from traces_made import read_runs, write_traced


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Its folder, all its runs, its two tables of traces, and what tables read of them."""
    folder = write_traced(tmp_path_factory.mktemp("traced"))
    names = {"phases": "phases.csv", "steps": "trace_steps.csv"}
    files = [argument for option, name in names.items() for argument in (f"--{option}", str(folder / name))]
    gather.main(["--runs", str(folder / "runs.csv"), "--records", str(folder / "runs"), *files])
    runs, phases = read_runs(folder), read_table(folder / "phases.csv", "phases")
    steps = read_table(folder / "trace_steps.csv", "trace_steps")
    return SimpleNamespace(folder=folder, runs=runs, phases=phases, steps=steps, measured=cells.of(runs, phases))
