"""Fixtures for tests of the plan."""

from dataclasses import replace

import pytest

from declared.site import Site, load_site


@pytest.fixture
def site() -> Site:
    """A site of four nodes, one rank on each."""
    return replace(load_site("local"), cores=4, nodes=4, ranks_per_node=1)
