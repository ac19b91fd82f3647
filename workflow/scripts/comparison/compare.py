"""Compare two campaigns: a table and a figure of what changed from one to the other."""

import argparse
import sys
from pathlib import Path

from analysis import tables
from common.errors import exit_status
from common.files import write_text
from comparison.changes import differing, not_compared, summary, table
from comparison.draw import draw
from comparison.matched import read
from figures import style


def main(argv: list[str] | None = None) -> None:
    """Write OUT.csv, .md and .tex, OUT.pdf, .svg, .png and .caption.md; say what changed."""
    parser = argparse.ArgumentParser(prog="comparison.compare", description=__doc__)
    parser.add_argument(
        "--base",
        required=True,
        metavar="FOLDER",
        help="the campaign that the other one is compared with: a folder with runs.csv",
    )
    parser.add_argument("--other", required=True, metavar="FOLDER", help="the other campaign")
    parser.add_argument("--out", required=True, type=Path, metavar="STEM", help="files to write, without their suffix")
    options = parser.parse_args(argv)
    compared = read(options.base, options.other)
    made = table(compared)
    tables.write(made, options.out)
    drawn, caption = draw(compared, made.data)
    style.save(drawn, options.out)
    write_text(options.out.with_name(f"{options.out.name}.caption.md"), caption + "\n")
    for line in (summary(compared, made.data), compared.algorithms, differing(compared), not_compared(compared)):
        if line:
            print(line)


if __name__ == "__main__":
    sys.exit(exit_status(main))
