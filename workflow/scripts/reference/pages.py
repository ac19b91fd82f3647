"""Write the reference pages: docs/reference/*.md, from what the code says of itself."""

import sys
from collections.abc import Callable, Mapping

from common.files import CHECKOUT, display_path, write_text
from common.options import run_program
from reference import commands, machinery, products, settings

FOLDER = CHECKOUT / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "configuration": settings.configuration,
    "factors": settings.factors,
    "figures": products.figures_page,
    "tables": products.tables_page,
    "files": products.files_page,
    "models": machinery.models_page,
    "frameworks": machinery.frameworks_page,
    "commands": commands.page,
}


def text(name: str) -> str:
    """Return the text of a page, with the comment that it is generated."""
    return (
        "<!-- Made by `make reference`: change the code that it is made of, not this page. "
        f"-->\n\n{PAGES[name]()}\n"
    )


def main() -> None:
    """Write all reference pages."""
    for name in PAGES:
        write_text(FOLDER / f"{name}.md", text(name))
        print(display_path(FOLDER / f"{name}.md"))


if __name__ == "__main__":
    sys.exit(run_program(main))
