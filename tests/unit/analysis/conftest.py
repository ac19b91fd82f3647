"""Fixtures: the synthetic campaign as programs read it."""

import pytest

from analysis.records import read_runs
from support.synthetic import write_campaign


@pytest.fixture(scope="session")
def csv(tmp_path_factory):
    return write_campaign(tmp_path_factory.mktemp("campaign"))


@pytest.fixture
def runs(csv):
    return read_runs(csv[0])


@pytest.fixture
def read(tmp_path):
    def read_campaign(**options):
        return read_runs(write_campaign(tmp_path, **options)[0])

    return read_campaign
