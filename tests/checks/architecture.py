"""Generate the table of stages and the picture of imports in docs/architecture.md from the code.

With `--check`, nothing is written, and the exit status is 1 if one of them is out of date.
"""

import ast
import sys
import tomllib
from pathlib import Path

import grimp

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPTS = CHECKOUT / "workflow" / "scripts"
PAGE = CHECKOUT / "docs" / "architecture.md"
START, END = "<!-- stages: made by make architecture -->\n", "<!-- end of stages -->"
PICTURE = CHECKOUT / "docs" / "images" / "architecture.svg"
CELL, LEFT, ABOVE, RIGHT = 30, 110, 95, 50  # pixels
INK, STAIR, OWN = "#222222", "#dbe7f3", "#cccccc"


def stages() -> list[str]:
    """Return the stages, lowest first, from import-linter's layers in pyproject.toml."""
    contracts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    packages = {path.parent.name for path in SCRIPTS.glob("*/*.py")}
    if outside := packages ^ set(layers):  # import-linter ignores packages outside the layers.
        raise SystemExit(
            "pyproject.toml: tool.importlinter: layers and workflow/scripts differ: "
            f"{', '.join(sorted(outside))}"
        )
    return list(reversed(layers))


def imports(names: list[str]) -> dict[tuple[str, str], int]:
    """Return the number of imports by pair of stages (importer, imported), once for each pair of modules."""
    graph = grimp.build_graph(*names, cache_dir=None)
    pairs: dict[tuple[str, str], int] = {}
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            pair = importer.partition(".")[0], imported.partition(".")[0]
            pairs[pair] = pairs.get(pair, 0) + 1
    return pairs


def drawn(names: list[str], pairs: dict[tuple[str, str], int]) -> str:
    """Return the matrix of imports as SVG: a row imports a column.

    A number above the diagonal would be an import of a later stage.
    """
    size = CELL * len(names)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-LEFT} {-ABOVE} {LEFT + size + RIGHT} '
        f'{ABOVE + size + 4}" font-family="sans-serif" font-size="13" fill="{INK}">',
        f'<rect x="{-LEFT}" y="{-ABOVE}" width="100%" height="100%" fill="white"/>',
    ]
    for row, importer in enumerate(names):
        top, middle = CELL * row, CELL * (row + 0.5)
        parts += [
            f'<rect y="{top + 1}" width="{CELL * row}" height="{CELL - 2}" fill="{STAIR}"/>',
            f'<rect x="{CELL * row}" y="{top + 1}" width="{CELL}" height="{CELL - 2}" fill="{OWN}"/>',
            f'<text x="-8" y="{middle}" text-anchor="end" dominant-baseline="central">{importer}</text>',
            f'<text transform="translate({middle},-8) rotate(-50)">{importer}</text>',
        ]
        for column, imported in enumerate(names):
            if count := pairs.get((importer, imported)):
                place = f'x="{CELL * (column + 0.5)}" y="{middle}"'
                parts.append(f'<text {place} text-anchor="middle" dominant-baseline="central">{count}</text>')
    return "\n".join([*parts, "</svg>", ""])


def table(names: list[str]) -> str:
    """Return a Markdown table of the stages with the first paragraph of the docstring of each."""
    rows = []
    for name in names:
        docstring = ast.get_docstring(ast.parse((SCRIPTS / name / "__init__.py").read_text())) or ""
        summary, _, _ = docstring.partition("\n\n")
        rows.append(f"| `{name}` | {' '.join(summary.split())} |")
    return "\n".join(["", "| stage | what it does |", "| --- | --- |", *rows, "", ""])


def main() -> int:
    """Write page and picture; with --check, return 1 if they are out of date."""
    names = stages()
    before, _, rest = PAGE.read_text().partition(START)
    page = before + START + table(names) + END + rest.partition(END)[2]
    contents = {PICTURE: drawn(names, imports(names)), PAGE: page}
    for file, text in contents.items():
        if "--check" not in sys.argv[1:]:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            print(f"{file.relative_to(CHECKOUT)} is out of date: run make architecture", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
