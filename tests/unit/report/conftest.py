"""Reports of made-up campaigns, a real browser to open them in, and TeX: both as Debian has them."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from report.document import CLASSES
from support.debian import install_packages, require_programs
from support.reports import CampaignFiles

BROWSER = {"chromium": "chromium", "chromedriver": "chromium-driver"}  # program -> Debian package


@pytest.fixture(scope="module")
def in_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., CampaignFiles]]:
    """A maker of campaigns, each in a folder of its own, which becomes the working directory."""
    with pytest.MonkeyPatch.context() as patch:

        def make_campaign(runs: pd.DataFrame, epochs: pd.DataFrame, **options: Any) -> CampaignFiles:
            folder = tmp_path_factory.mktemp("campaign")
            patch.chdir(folder)
            return CampaignFiles(folder, runs, epochs, **options)

        yield make_campaign


@pytest.fixture(scope="session")
def chromium() -> Path:
    """Chromium, installed where it can be."""
    require_programs(BROWSER, [*BROWSER.values(), "fonts-dejavu-core"])
    return Path(shutil.which("chromium") or "")


@pytest.fixture(scope="session")
def tex() -> None:
    """pdfLaTeX and the class article, installed where they can be."""
    require_programs(["pdflatex", "bibtex"], CLASSES["article"].debian)


@pytest.fixture(scope="session")
def tex_classes(tex: None) -> None:
    """All classes of papers, installed where they can be."""
    if not all(map(has_tex_file, [f"{name}.cls" for name in CLASSES] + ["hyperxmp.sty"])):
        install_packages(dict.fromkeys(name for entry in CLASSES.values() for name in entry.debian))


def has_tex_file(name: str) -> bool:
    """Return whether TeX finds a file."""
    return not subprocess.run(["kpsewhich", name], stdout=subprocess.DEVNULL, check=False).returncode


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
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    opened = webdriver.Chrome(options=options, service=service)
    opened.set_window_size(1280, 900)
    yield opened
    opened.quit()
