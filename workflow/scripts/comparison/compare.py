"""Compare two campaigns: a table and a figure of what changed from one to the other."""

import sys
from pathlib import Path

from analysis import tables
from common.files import write_text
from common.options import run_program
from comparison.changes import differing, not_compared, summary, table
from comparison.draw import draw
from comparison.matched import read
from figures import style


def main(*, base: str, other: str, out: Path) -> None:
    """Write OUT.csv, .md and .tex, OUT.pdf, .svg, .png and .caption.md; say what changed.

    Args:
        base: the campaign that the other one is compared with: a folder with runs.csv
        other: the other campaign
        out: files to write, without their suffix
    """
    compared = read(base, other)
    made = table(compared)
    tables.write(made, out)
    drawn, caption = draw(compared, made.data)
    style.save(drawn, out)
    write_text(out.with_name(f"{out.name}.caption.md"), caption + "\n")
    for line in (summary(compared, made.data), compared.algorithms, differing(compared), not_compared(compared)):
        if line:
            print(line)


if __name__ == "__main__":
    sys.exit(run_program(main))
