"""Check a page with axe-core, which a wheel in the tools cache carries; it is never shipped."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from common.files import digest_text, hold_lock

LOCK = Path(__file__).with_name("accessibility.txt")
SCRIPT = "axe_playwright_python/axe.min.js"
STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
# axe reports what it cannot judge, such as text over a picture, apart from violations.
CHECK = """
const [standards, done] = arguments;
axe.run(document, { runOnly: standards, resultTypes: ["violations"] }).then((results) => done(
  results.violations.map(({ id, nodes }) => [id, nodes.map((node) => node.html.slice(0, 160))])
), (error) => done([["axe", [String(error)]]]));
"""


def axe() -> str:
    """Return axe-core, downloaded into the cache once for each lock."""
    cache = Path(os.environ.get("RINGSIDE_CACHE", "~/.cache/ringside")).expanduser()
    folder = cache / "accessibility" / digest_text(LOCK.read_text())[:12]
    with hold_lock(folder.with_name(f".{folder.name}.lock"), lambda: None):
        if not list(folder.glob("*.whl")):
            download = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run(
                [sys.executable, *download, "--require-hashes", "-r", LOCK, "--dest", folder], check=True
            )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return wheel.read(SCRIPT).decode()


def violations(driver: Any) -> list[Any]:
    """Return the rules of WCAG 2.2, levels A and AA, that the open page breaks, with the elements."""
    # Through the protocol, because the page's policy allows no script that is not its own.
    driver.execute_cdp_cmd("Runtime.evaluate", {"expression": axe(), "returnByValue": True})
    violations: list[Any] = driver.execute_async_script(CHECK, STANDARDS)
    return violations
