"""A made-up campaign with traced runs, gathered."""

from types import SimpleNamespace

import pytest

from support.traces_made import gathered
from traces import cells


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Its folder, all its runs, the phases of the traced ones, and what tables read of them."""
    folder = tmp_path_factory.mktemp("traced")
    runs, phases = gathered(folder)
    return SimpleNamespace(
        folder=folder, runs=runs, phases=phases, measured=cells.select_traced(runs, phases)
    )
