"""The pictures of docs/gallery.md, drawn from kept campaigns by the lines of study files that stand there."""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from analysis.measured import curves_beside
from common.errors import InputError, exit_status
from common.files import CHECKOUT, load_yaml, shown, written_whole
from declared.figures import KINDS, Declared
from declared.study import load_study
from figures import draw

PAGE = CHECKOUT / "docs" / "gallery.md"
KEPT = CHECKOUT / "docs" / "campaigns"
STUDIES = CHECKOUT / "config" / "studies"
COLOURS = 256
SMALLER = 2  # than for print, in each direction
LINES = re.compile(
    r"^```yaml\n# config/studies/(?P<study>[a-z0-9-]+)\.yaml\n(?P<lines>.*?)^```$"
    r"(?:\n+!\[[^\]]*\]\((?P<picture>[^)]+)\))?",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Example:
    """What the page shows of a kind: the figure, the study that it is of, the picture (None where no campaign fills it)."""

    study: str
    asked: Declared
    picture: Path | None


def examples(page: Path = PAGE) -> Iterator[Example]:
    """The examples of the page in their order, checked as a study file is. InputError for what a study must not say."""
    for found in LINES.finditer(page.read_text()):
        with TemporaryDirectory() as folder:
            file = Path(folder) / f"{found['study']}.yaml"
            lines = file.with_suffix(".lines")
            lines.write_text(found["lines"])
            file.write_text(json.dumps(load_yaml(STUDIES / file.name) | load_yaml(lines)))
            (asked,) = load_study(found["study"], Path(folder)).figures
        yield Example(found["study"], asked, page.parent / found["picture"] if found["picture"] else None)


def make(example: Example, folder: Path) -> None:
    """Draw the picture of an example, as small as a page needs it; `folder` keeps what several examples read."""
    if example.picture is None:
        return
    kept, stem = KEPT / example.study, folder / example.asked.name
    reads = {name: _made(name, kept, folder) for name in KINDS[example.asked.kind].reads}
    draw.main(
        [
            *("--asked", example.asked.to_json(), "--out", str(stem)),
            *("--runs", str(kept / "runs.csv"), "--epochs", str(kept / "epochs.csv")),
            *(part for name, file in reads.items() for part in (f"--{name}", str(file))),
        ]
    )
    with Image.open(f"{stem}.png") as image, written_whole(example.picture) as partial:
        size = (image.width // SMALLER, image.height // SMALLER)
        small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        small.quantize(COLOURS, dither=Image.Dither.NONE).save(partial, format="png", optimize=True)


def _made(name: str, kept: Path, folder: Path) -> Path:
    """The file that a kind of figure reads beside runs and epochs, of a kept campaign; made in `folder` where it is not kept."""
    if name == "network":
        return kept / "network.csv"
    from prediction import held_out, outlook

    stem = folder / f"{kept.name}-{name}"
    if name == "predictions":
        files = ["--runs", str(kept / "runs.csv"), "--network", str(kept / "network.csv")]
        if not (cells := Path(f"{stem}_cells.csv")).exists():
            held_out.main([*files, "--cells", str(cells), "--out", str(stem)])
        return cells
    if not (table := Path(f"{stem}.csv")).exists():
        outlook.main(["--from", str(kept), "--out", str(stem), "--curves", str(curves_beside(table))])
    return table


def main(argv: list[str] | None = None) -> None:
    """Draw the pictures again, or those of some kinds."""
    parser = argparse.ArgumentParser(prog="make gallery", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="kinds to draw; all where none is named")
    args = parser.parse_args(argv)
    if unknown := [kind for kind in args.kinds if kind not in KINDS]:
        raise InputError(f"'{unknown[0]}' is no kind of figure; expected one of {', '.join(KINDS)}")
    with TemporaryDirectory() as folder:
        for example in examples():
            if example.picture and (not args.kinds or example.asked.kind in args.kinds):
                make(example, Path(folder))
                print(f"{shown(example.picture)}: {example.picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    sys.exit(exit_status(main))
