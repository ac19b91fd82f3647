"""Draw one figure of a study, of whichever kind, with its caption."""

import argparse
import importlib
import sys
from pathlib import Path

from analysis import conditions
from analysis.measured import Records
from common.errors import exit_status
from common.files import write_text
from declared.figures import from_json
from declared.products.figures import KINDS
from figures import style
from precision import reached


def main(argv: list[str] | None = None) -> None:
    """Write the figure as .pdf, .svg and .png, and .caption.md, a paragraph."""
    parser = argparse.ArgumentParser(prog="figures.draw", description=__doc__)
    parser.add_argument("--figure", required=True, metavar="JSON", help="the figure, as a study declares it")
    parser.add_argument(
        "--inputs",
        required=True,
        nargs="+",
        type=_named_file,
        metavar="NAME=FILE",
        help="runs, epochs, and what else its kind reads (declared/products/figures.yaml), as far as it exists",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="STEM", help="files to write, without their suffix")
    args = parser.parse_args(argv)
    figure, files = from_json(args.figure), dict(args.inputs)
    records = Records(files.pop("runs"), files.pop("epochs"), files)
    drawn, caption = importlib.import_module(KINDS[figure.kind].module).draw(records, figure)
    if "precision" in files and conditions.RUN_COUNT_PREFIX in caption:
        caption += f" {reached.caption_note(files['precision'])}"
    style.save(drawn, args.out)
    write_text(args.out.with_name(f"{args.out.name}.caption.md"), caption + "\n")


def _named_file(text: str) -> tuple[str, Path]:
    name, file = text.split("=", 1)
    return name, Path(file)


if __name__ == "__main__":
    sys.exit(exit_status(main))
