"""Draw one figure of a study, of whichever kind, with its caption."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.records import Records
from common.errors import InputError
from common.files import write_text
from common.notes import codes
from common.options import run_program
from declared.figure_specs import from_json
from declared.products.figure_kinds import KINDS
from figures import style
from replication.reached import caption_note as interval_target_note


def main(*, figure: str, inputs: Sequence[str], out: Path) -> None:
    """Draw a figure as .pdf, .svg and .png, and write its caption and endnotes to .caption.md.

    Args:
        figure: the figure, as a study declares it, in JSON
        inputs: NAME=FILE of runs and epochs, and, if they exist, of the table `replication` and of what its
            kind also reads (declared/products/figures.yaml)
        out: files to write, without their suffix
    """
    spec, files = from_json(figure), dict(_split_input(text) for text in inputs)
    if missing := {"runs", "epochs"} - set(files):
        raise InputError("missing-argument", f"lacks {min(missing)}=FILE", file="--inputs", got=list(inputs))
    records = Records(files.pop("runs"), files.pop("epochs"), files)
    figure_drawn, caption = importlib.import_module(KINDS[spec.kind].module).draw(records, spec)
    # A caption that gives numbers of runs also says how an interval target chose them, even if it then has
    # more than MAX_CAPTION_WORDS.
    if "replication" in files and "runs-per-cell" in codes(caption.notes):
        caption = caption.with_note(interval_target_note(files["replication"]), below=True)
    style.save(figure_drawn, out)
    write_text(out.with_name(f"{out.name}.caption.md"), caption + "\n")


def _split_input(text: str) -> tuple[str, Path]:
    """Return the name and the file of an input, `NAME=FILE`."""
    name, separator, file = text.partition("=")
    if not (name and separator and file):
        raise InputError("bad-arguments", f"'{text}' is not NAME=FILE", file="--inputs", got=text)
    return name, Path(file)


if __name__ == "__main__":
    sys.exit(run_program(main))
