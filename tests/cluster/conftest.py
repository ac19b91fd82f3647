"""Fixtures of tests on the virtual cluster: the machine's cluster, sandboxes, and folders that nodes can access."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from common import prefork_server
from common.errors import InputError
from common.files import CHECKOUT, hold_lock
from declared.virtual import parse
from environments import image as images
from sites import virtual
from support.sandbox import Sandbox, sandbox
from support.workers import shared_folder as shared_by_workers
from virtual_cluster import control, slurm

NEEDED = parse(nodes="3", bandwidth="1gbit", cpu="0.6", memory="6G", accounting=False)


@pytest.fixture(scope="session", autouse=True)
def libraries() -> None:
    """Fork the programs that tests call from a process with imported libraries.

    Programs of jobs on nodes cannot reach it.
    """
    os.environ[prefork_server.SERVER_VARIABLE] = prefork_server.start_server()


@pytest.fixture(scope="session")
def root() -> None:
    """Fail without root: these tests are never skipped."""
    if os.geteuid() != 0:
        pytest.fail(
            "tests/cluster needs root: the virtual cluster makes network namespaces and control groups", False
        )


INSTALLING = "packages.lock"


@pytest.fixture(scope="session")
def virtual_cluster(installed: None) -> Iterator[None]:
    """The virtual cluster of this machine: 3 nodes, 1 Gbit/s, 0.6 core.

    It is stopped afterwards if it was started here.
    """
    cluster = virtual.running_cluster()
    if cluster == NEEDED and not virtual.ended_programs():
        yield
        return
    if cluster is not None and cluster != NEEDED:
        pytest.fail(
            (
                f"another virtual cluster is up ({cluster.described()}); take it down first: ./ringside "
                "cluster down"
            ),
            False,
        )
    control.down()  # a cluster that has lost a daemon
    try:
        control.up(NEEDED)
    except InputError as error:
        pytest.fail(str(error), False)
    yield
    control.down()


@pytest.fixture(scope="session")
def installed(root: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Install Slurm with its accounting from Debian's packages, in one pytest worker at a time."""
    packages = [*control.PACKAGES, *slurm.PACKAGES, *slurm.ACCOUNTING]
    with hold_lock(shared_by_workers(tmp_path_factory) / INSTALLING, lambda: None):
        subprocess.run([control.INSTALL, *packages], check=True)


@pytest.fixture(scope="session")
def apptainer(root: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Install Apptainer the same way as the project, in one pytest worker at a time."""
    with hold_lock(shared_by_workers(tmp_path_factory) / INSTALLING, lambda: None):
        subprocess.run([Path(images.__file__).with_name("install-apptainer")], check=True)


@pytest.fixture(scope="module")
def corners(installed: None) -> Iterator[Callable[[], Sandbox]]:
    """A function that opens sandboxes in which a test can start and break its own virtual cluster."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(sandbox())


@pytest.fixture(scope="module")
def corner(corners: Callable[[], Sandbox]) -> Sandbox:
    """A sandbox for all tests of a module."""
    return corners()


@contextmanager
def shared() -> Iterator[Path]:
    """Create a folder that all nodes can access, outside of /tmp, which each node has for itself."""
    for folder in (CHECKOUT, Path(os.environ.get("RINGSIDE_CACHE", "~/.cache/ringside")).expanduser()):
        if folder.resolve().is_relative_to("/tmp"):  # noqa: S108 (each node has a /tmp of its own)
            pytest.fail(
                (
                    f"{folder}: nodes of the virtual cluster do not see /tmp; clone, and set RINGSIDE_CACHE, "
                    "elsewhere"
                ),
                False,
            )
    folder = Path(tempfile.mkdtemp(prefix="ringside-test-", dir="/var/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A shared folder of one test."""
    with shared() as folder:
        yield folder


@pytest.fixture(scope="module")
def shared_folder_of_module() -> Iterator[Path]:
    """A shared folder of all tests of a module."""
    with shared() as folder:
        yield folder
