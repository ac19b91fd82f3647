"""Fixtures of several stages, marks of tests, and how workers of pytest share a machine."""

import gc
import os
from pathlib import Path

import pytest

from declared.environments import read
from environments.build import build
from support import long_tests
from support.installed_site import SITE
from support.workers import WORKER


@pytest.fixture(scope="session", autouse=True)
def machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give each worker of pytest a machine lock of its own, so that campaigns do not wait for each other."""
    if WORKER in os.environ:
        os.environ["RINGSIDE_LOCK"] = str(tmp_path_factory.getbasetemp() / "machine.lock")


LONGEST = ("workflow", "runs", "models")  # stages whose tests train
MARKED = {  # mark -> fixtures of the tests that get it
    "training": {"real", "trainings", "logits"},
    "slow": {"driver", "tex", "filled", "tiny", "fake"},  # a browser, LaTeX, builds, benchmarks
}
DRAWN = ("figures", "report")  # stages whose tests draw figures or build pages: slow, too
SLOW_FILES = (  # that take 10 s of CPU time or more
    "test_kept_campaigns",
    "test_checks",
    "test_adjusted",
    "test_answers",
    "test_lbann",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a call run one part of the long tests."""
    help_text = f"run only this part of the long tests, 1 to {long_tests.N_PARTS}"
    parser.addoption("--long-part", type=int, choices=range(1, long_tests.N_PARTS + 1), help=help_text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their fixtures and folders, and put files whose tests train first.

    Then both of two workers end at about the same time.
    """
    if number := config.option.long_part:
        files = set(long_tests.split()[number - 1])
        items[:] = [item for item in items if item.nodeid.partition("::")[0] in files]
    for item in items:
        if long_tests.is_long(item.nodeid):
            item.add_marker("long")
        for name, fixtures in MARKED.items():
            if fixtures & set(getattr(item, "fixturenames", ())):
                item.add_marker(name)
        if item.path.parent.name == "workflow":
            item.add_marker("workflow")
        if item.path.parent.name in DRAWN or item.path.stem in SLOW_FILES:
            item.add_marker("slow")
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.parent.name, len(place)))


def pytest_collection_finish() -> None:
    """Exempt modules and tests from garbage collection: they are a million objects that live to the end."""
    gc.freeze()


@pytest.fixture(scope="session")
def real():
    """A function that returns environment.json of a shipped environment.

    The environment is built in the user's cache if it is missing.
    """
    cache = Path(os.environ.get("RINGSIDE_CACHE", "~/.cache/ringside")).expanduser().resolve()
    indexes = {"torch_index": SITE.torch_index or ""}
    return lambda name: build(read(name), cache, indexes, SITE.realization)
