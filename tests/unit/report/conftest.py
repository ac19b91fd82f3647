"""Reports of made-up campaigns, and a real browser to open them in."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from reports import Made

INSTALL = Path(__file__).with_name("install-chromium")
PROGRAMS = ("chromium", "chromedriver")


@pytest.fixture(scope="module")
def in_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Made]]:
    """A maker of campaigns, each in a folder of its own, which becomes the working directory."""
    with pytest.MonkeyPatch.context() as patch:

        def made(runs: pd.DataFrame, epochs: pd.DataFrame, **options: Any) -> Made:
            folder = tmp_path_factory.mktemp("campaign")
            patch.chdir(folder)
            return Made(folder, runs, epochs, **options)

        yield made


@pytest.fixture(scope="session")
def chromium() -> Path:
    """Chromium, installed from Debian's packages where it can be; where it cannot, the test is skipped and says why."""
    if not all(map(shutil.which, PROGRAMS)):
        done = subprocess.run([INSTALL], capture_output=True, text=True, check=False)
        if done.returncode or not all(map(shutil.which, PROGRAMS)):
            pytest.skip(f"needs Chromium and its driver: {INSTALL.name}: {' '.join(done.stderr.split())}")
    return Path(shutil.which(PROGRAMS[0]) or "")


@pytest.fixture(scope="module")
def driver(chromium: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium that logs what its console says and what it asks the network for."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(chromium)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which(PROGRAMS[1]))
    opened = webdriver.Chrome(options=options, service=service)
    opened.set_window_size(1280, 900)
    yield opened
    opened.quit()
