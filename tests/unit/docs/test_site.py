"""The built site, opened from its folder: the search finds pages, and a phone shows them whole."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.files import CHECKOUT
from support.browser import find_chromium, open_browser

PHONE = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
COMMAND = "./ringside run tf-strategies-unshaped --site virtual-unshaped --records docs/campaigns/tf-strategies-unshaped"
PAGES = {
    "index.md": f"# Home\n\n```sh\n{COMMAND}\n```\n\n| key | meaning | default | more |\n| --- | --- | --- | --- |\n"
    "| `time_to_accuracy` | time until an accuracy is reached | `resnet34-devices-small` | a text of many words |\n",
    "second.md": "# Second\n\nA quagga is a zebra.\n",
    "development/decisions/0001-quagga.md": "# Third\n\nA quagga is a quagga.\n",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of two pages, with the configuration, styles and scripts of the real one."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    docs = folder / "docs"
    docs.mkdir()
    for name, text in PAGES.items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text(text)
    meta = Path("development", "decisions", ".meta.yml")
    shutil.copy(CHECKOUT / "docs" / meta, docs / meta)
    shutil.copy(CHECKOUT / "docs" / "site.css", docs)
    shutil.copytree(CHECKOUT / "docs" / "javascripts", docs / "javascripts")
    real = yaml.safe_load((CHECKOUT / "mkdocs.yml").read_text())
    own = {"docs_dir": str(docs), "site_dir": str(folder / "site"), "nav": None}
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(real | own))
    build(load_config(str(folder / "mkdocs.yml")))
    return folder / "site"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_browser(find_chromium(), tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


def test_search_finds_a_page_from_the_folder_without_a_network(site: Path, driver: Any) -> None:
    from selenium.webdriver.common.by import By

    driver.get((site / "index.html").as_uri())
    field = driver.find_element(By.CSS_SELECTOR, "input.md-search__input")
    field.click()
    field.send_keys("quagga")
    deadline = time.monotonic() + 20
    hrefs: list[str] = []
    while not hrefs and time.monotonic() < deadline:
        links = driver.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
        hrefs = [link.get_attribute("href") for link in links]
        time.sleep(0.05)
    assert hrefs and hrefs[0].startswith((site / "second.html").as_uri())
    assert "https://" not in "".join(
        event["message"] for event in driver.get_log("performance") if "requestWillBeSent" in event["message"]
    )


def test_records_of_decisions_are_ranked_low(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    boosts = {entry["location"].partition("#")[0]: entry.get("boost") for entry in index["docs"]}
    assert boosts == {"index.html": None, "second.html": None, "development/decisions/0001-quagga.html": 0.3}


def test_stacked_cells_are_named_by_their_headings(site: Path, driver: Any) -> None:
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    driver.get((site / "index.html").as_uri())
    labels = driver.execute_script(
        "return [...document.querySelectorAll('td')].map((cell) => getComputedStyle(cell, '::before').content)"
    )
    assert labels[0] == "none" and ["meaning" in labels[1], "default" in labels[2]] == [True, True]


@pytest.mark.parametrize(
    ("defect", "expression"),
    [
        ("page scrolls sideways", "document.documentElement.scrollWidth > innerWidth"),
        (
            "name is broken",
            "[...document.querySelectorAll('td code')].some((code) => code.getClientRects().length > 1)",
        ),
        (
            "column is cut",
            "[...document.querySelectorAll('table')].some((table) => table.getBoundingClientRect().right > innerWidth"
            " || table.scrollWidth > table.clientWidth)",
        ),
        (
            "command is cut",
            "[...document.querySelectorAll('pre > code')].some((code) => code.scrollWidth > code.clientWidth)",
        ),
    ],
    ids=lambda value: value if " is " in value or " scrolls " in value else "",
)
def test_a_phone_shows_a_page_whole(site: Path, driver: Any, defect: str, expression: str) -> None:
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    driver.get((site / "index.html").as_uri())
    assert driver.execute_script("return document.querySelectorAll('td code, pre > code').length") == 3
    assert not driver.execute_script(f"return {expression}"), defect
