"""Reports of made-up campaigns, and a real browser and TeX from Debian."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from report.document import CLASSES
from support.browser import find_chromium, open_browser
from support.debian import install_packages, require_programs
from support.reports import CampaignFiles


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
    return find_chromium()


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
    """A headless Chromium that logs its console and its network requests."""
    with open_browser(chromium, tmp_path_factory.mktemp("chromium")) as opened:
        yield opened
