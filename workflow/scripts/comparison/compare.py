"""Compare two campaigns in a table and a figure."""

import sys
from pathlib import Path

from analysis import tables
from common.files import write_text
from common.options import run_program
from comparison.changes import differing, not_compared, summary, table
from comparison.draw import draw
from comparison.matched import read
from figures import style


def main(*, base: str, contender: str, out: Path) -> None:
    """Write OUT.csv, .md, .tex, .pdf, .svg, .png and .caption.md, and print what changed.

    Args:
        base: campaign to compare with: a folder with runs.csv
        contender: campaign that is compared with the base
        out: files to write, without their suffix
    """
    compared = read(base, contender)
    result = table(compared)
    tables.write(result, out)
    figure, caption = draw(compared, result.data)
    style.save(figure, out)
    write_text(out.with_name(f"{out.name}.caption.md"), caption + "\n")
    for line in (
        summary(compared, result.data),
        compared.algorithms,
        differing(compared),
        not_compared(compared),
    ):
        if line:
            print(line)


if __name__ == "__main__":
    sys.exit(run_program(main))
