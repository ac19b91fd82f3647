"""Write the reference pages, docs/reference/*.md, from schemas, tables, figures, Makefile and rules.

A page is the template NAME.md.jinja beside this module, filled with values from the code.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common.files import CHECKOUT, display_path, write_text
from common.options import run_program
from common.templates import render
from declared.products.tables import TABLES
from declared.records import RECORD_TABLES
from reference import commands, machinery, products, settings
from reference.markdown import block, codes, escaped, read, table

FOLDER = CHECKOUT / "docs" / "reference"
# By page: a function that returns the values that its template uses, by name.
PAGES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "configuration": lambda: {"rows": settings.rows},
    "factors": settings.factors,
    "figures": products.figures,
    "tables": lambda: {"tables": TABLES.values(), "column_rows": products.column_rows},
    "files": lambda: {"records": RECORD_TABLES, "rows": products.schema_rows},
    "models": machinery.models_and_data,
    "frameworks": machinery.frameworks,
    "commands": commands.commands,
}


def text(name: str) -> str:
    """Return the text of a page, which begins with a comment that it is generated."""
    markdown = {"block": block, "codes": codes, "escaped": escaped, "read": read, "table": table}
    page = render(Path(__file__).with_name(f"{name}.md.jinja"), **markdown, **PAGES[name]()).rstrip()
    return (
        f"<!-- Made by `make reference`: change the code that it is made of, not this page. -->\n\n{page}\n"
    )


def main() -> None:
    """Write all reference pages."""
    for name in PAGES:
        write_text(FOLDER / f"{name}.md", text(name))
        print(display_path(FOLDER / f"{name}.md"))


if __name__ == "__main__":
    sys.exit(run_program(main))
