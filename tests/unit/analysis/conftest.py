"""Fixtures: the synthetic campaign as programs read it."""

import pytest

from common.tables import read_table
from support.synthetic import write_campaign


@pytest.fixture(scope="session")
def csv(tmp_path_factory):
    return write_campaign(tmp_path_factory.mktemp("campaign"))


@pytest.fixture
def runs(csv):
    return read_table(csv[0], "runs")


@pytest.fixture
def read(tmp_path):
    def read_campaign(**options):
        return read_table(write_campaign(tmp_path, **options)[0], "runs")

    return read_campaign
