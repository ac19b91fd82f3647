"""Draw one figure of a study, of any kind, with its caption."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis import conditions
from analysis.measured import Records
from common.errors import InputError
from common.files import write_text
from common.options import run_program
from declared.figures import from_json
from declared.products.figures import KINDS
from figures import style
from precision import reached


def main(argv: list[str] | None = None) -> None:
    """Write the figure as .pdf, .svg and .png, and .caption.md."""
    parser = argparse.ArgumentParser(prog="figures.draw", description=__doc__)
    parser.add_argument("--figure", required=True, metavar="JSON", help="the figure, as a study declares it")
    parser.add_argument(
        "--inputs",
        required=True,
        nargs="+",
        type=_named_file,
        metavar="NAME=FILE",
        help="runs, epochs, and the other inputs of its kind (declared/products/figures.yaml) that exist",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="STEM", help="files to write, without their suffix")
    args = parser.parse_args(argv)
    figure, files = from_json(args.figure), dict(args.inputs)
    records = Records(files.pop("runs"), files.pop("epochs"), files)
    picture, caption = importlib.import_module(KINDS[figure.kind].module).draw(records, figure)
    if "precision" in files and conditions.COUNTED in caption:
        caption += f" {reached.caption_note(files['precision'])}"
    style.save(picture, args.out)
    write_text(args.out.with_name(f"{args.out.name}.caption.md"), caption + "\n")


def _split_input(text: str) -> tuple[str, Path]:
    """Return the name and the file of an input, `NAME=FILE`."""
    name, separator, file = text.partition("=")
    if not (name and separator and file):
        raise InputError("bad-arguments", f"'{text}' is not NAME=FILE", file="--inputs", got=text)
    return name, Path(file)


if __name__ == "__main__":
    sys.exit(run_program(main))
