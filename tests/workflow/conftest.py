"""A small real campaign, run once for all tests of this folder; each test works on a copy."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from common import prefork_server
from common.files import hold_lock
from support.checkout import Checkout
from support.workers import shared_folder


@pytest.fixture(scope="session", autouse=True)
def libraries() -> None:
    """Fork Snakemake and the programs of its jobs from a process with imported libraries."""
    os.environ[prefork_server.SERVER_VARIABLE] = prefork_server.start_server()


@pytest.fixture(scope="session")
def finished_campaign(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The small study, run to its figures by the first worker of pytest that needs it."""
    shared = shared_folder(tmp_path_factory)
    with hold_lock(shared / "campaign.lock", lambda: None):
        checkout = Checkout(shared / "campaign" / "checkout")
        if not (checkout.results / "manifest.json").exists():
            done = checkout.snakemake("figures", timeout_s=1500)
            assert done.status == 0, done.output
            assert done.jobs["run"] == 3, done.output
    return checkout


@pytest.fixture
def campaign(finished_campaign: Checkout, tmp_path: Path) -> Checkout:
    """A copy of the finished campaign, for one test to change."""
    return finished_campaign.copy(tmp_path / "checkout")


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[..., Checkout]:
    """A function that makes checkouts in which nothing has run."""
    return lambda study, name="checkout": Checkout(tmp_path / name, study)
