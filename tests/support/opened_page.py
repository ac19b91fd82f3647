"""Open a report in a headless Chromium, and read what it shows."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def wait(driver: Any, expression: str, limit_s: float = 60) -> Any:
    """The value of a JavaScript expression once it is true; its failure says what the page complains of."""
    end = time.monotonic() + limit_s
    while not (value := driver.execute_script(f"return {expression}")):
        trouble = driver.execute_script("return document.getElementById('trouble')?.textContent")
        assert time.monotonic() < end and not trouble, f"{expression}: {trouble}"
        time.sleep(0.02)
    return value


def open_page(driver: Any, page: Path) -> float:
    """Open a page; seconds until table and chart stand."""
    driver.get("about:blank")
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    start = time.monotonic()
    driver.get(page.as_uri())
    wait(driver, "document.documentElement.dataset.ready === 'all'")
    return time.monotonic() - start


def texts(driver: Any, selector: str) -> list[str]:
    return driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector
    )


def element(driver: Any, selector: str) -> Any:
    from selenium.webdriver.common.by import By

    return driver.find_element(By.CSS_SELECTOR, selector)


def painted(driver: Any, inside: str) -> int:
    """How many points of the canvases in an element are neither white nor empty."""
    return driver.execute_script(
        """
        const found = [];
        const look = (node) => {
          if (node.tagName === "CANVAS") found.push(node);
          for (const child of [...(node.shadowRoot?.children ?? []), ...node.children]) look(child);
        };
        look(document.querySelector(arguments[0]));
        return found.filter((canvas) => canvas.width && canvas.height).reduce((sum, canvas) => {
          const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
          const context = copy.getContext("2d", { willReadFrequently: true });
          context.drawImage(canvas, 0, 0);
          const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
          let count = 0;
          for (let i = 0; i < data.length; i += 4) count += data[i + 3] > 0 && data[i] + data[i + 1] + data[i + 2] < 700;
          return sum + count;
        }, 0);
        """,
        inside,
    )


@contextmanager
def undisturbed(driver: Any, page: Path) -> Iterator[Any]:
    """Open a page anew; afterwards its console has no error, and nothing was asked of the network."""
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    open_page(driver, page)
    yield driver
    errors = [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert not errors, errors
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert {url for url in urls if not url.startswith(("data:", "blob:", page.as_uri(), "about:"))} == set()


def resize(driver: Any, width: int, height: int = 1000) -> None:
    """Show the page at a width in CSS pixels."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wait(driver, f"innerWidth === {width}")
