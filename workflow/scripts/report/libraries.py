"""Load the JavaScript that the page embeds, from locked packages of the controller, without downloads.

Tables: DataTables with jQuery, in the offline bundle of itables (a module, MIT). Charts: BokehJS (two
scripts, BSD-3-Clause). The files contain their own notices of copyright and licence.
"""

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError

TABLES = "html/dt_bundle.js"
TABLES_STYLE = "html/dt_bundle.css"
CHARTS = ("server/static/js/bokeh.min.js", "server/static/js/bokeh-api.min.js")


@dataclass(frozen=True)
class Libraries:
    """The scripts of tables and charts, the style sheet of tables, and versions by package."""

    tables: str
    tables_style: str
    charts: tuple[str, ...]
    versions: dict[str, str]


def load() -> Libraries:
    """Return the libraries.

    Raises:
        InputError: If a package is not installed, or no longer contains its file.
    """
    return Libraries(
        tables=_text("itables", TABLES),
        tables_style=_text("itables", TABLES_STYLE),
        charts=tuple(_text("bokeh", name) for name in CHARTS),
        versions={name: importlib.metadata.version(name) for name in ("itables", "bokeh")},
    )


def _text(package: str, name: str) -> str:
    try:
        file = importlib.metadata.distribution(package).locate_file(f"{package}/{name}")
        return Path(str(file)).read_text(encoding="utf-8")
    except (importlib.metadata.PackageNotFoundError, OSError):
        hint = "remove .venv and call make again"
        raise InputError("missing-file", f"has no {name}", file=package, got=name, hint=hint) from None
