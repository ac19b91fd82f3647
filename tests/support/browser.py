"""A headless Chromium, installed where it can be."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.debian import require_programs

PROGRAMS = {"chromium": "chromium", "chromedriver": "chromium-driver"}  # program -> Debian package


def find_chromium() -> Path:
    """Return Chromium's path; skip the test where it is neither present nor can be installed."""
    require_programs(PROGRAMS, [*PROGRAMS.values(), "fonts-dejavu-core"])
    return Path(shutil.which("chromium") or "")


@contextmanager
def open_browser(chromium: Path, profile: Path) -> Iterator[Any]:
    """Yield a driver that logs what the console says and what pages ask the network for."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(chromium)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.set_window_size(1280, 900)
        yield driver
    finally:
        driver.quit()
