"""The pictures of docs/reference/figures.md, drawn from kept campaigns: an example of every kind of figure, from gallery.yaml."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from analysis.measured import curves_beside
from common.errors import InputError, exit_status
from common.files import CHECKOUT, load_yaml, shown, written_whole
from common.text import alternatives
from declared.figures import KINDS, Declared
from declared.study import load_study
from figures import draw

EXAMPLES = Path(__file__).with_name("gallery.yaml")
PICTURES = CHECKOUT / "docs" / "images" / "gallery"
KEPT = CHECKOUT / "docs" / "campaigns"
STUDIES = CHECKOUT / "config" / "studies"
KEPT_FILES = ("network", "power", "phases", "trace_steps", "simulated")
COLOURS = 256
SMALLER = 2  # than for print, in each direction


@dataclass(frozen=True)
class Example:
    """A kind of figure by an example: of which study, from which folder of kept records, the entry of its key `figures`, the picture (None
    where no kept campaign has the numbers), and what is said of the kind: question, default, shows, reading, alt."""

    study: str
    records: Path
    entry: dict[str, Any]
    asked: Declared
    picture: Path | None
    said: dict[str, str]


def examples(file: Path = EXAMPLES) -> Iterator[Example]:
    """The examples of the file in their order, checked as a study file is. InputError for what a study must not say."""
    for kind, said in load_yaml(file).items():
        study, entry = said.pop("study"), said.pop("figure")
        records = KEPT / said.pop("records", study)
        with TemporaryDirectory() as folder:
            written = Path(folder) / f"{study}.yaml"
            written.write_text(json.dumps(load_yaml(STUDIES / written.name) | {"figures": [entry]}))
            (asked,) = load_study(study, Path(folder)).figures
        yield Example(study, records, entry, asked, PICTURES / f"{kind}.png" if "alt" in said else None, said)


def make(example: Example, folder: Path) -> None:
    """Draw the picture of an example, as small as a page needs it; `folder` keeps what several examples read."""
    if example.picture is None:
        return
    kept, stem = example.records, folder / example.asked.name
    reads = {name: _made(name, kept, folder) for name in KINDS[example.asked.kind].reads}
    draw.main(
        [
            *("--asked", example.asked.to_json(), "--out", str(stem)),
            *("--runs", str(kept / "runs.csv"), "--epochs", str(kept / "epochs.csv")),
            *(part for name, file in reads.items() for part in (f"--{name.replace('_', '-')}", str(file))),
        ]
    )
    with Image.open(f"{stem}.png") as image, written_whole(example.picture) as partial:
        size = (image.width // SMALLER, image.height // SMALLER)
        small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        small.quantize(COLOURS, dither=Image.Dither.NONE).save(partial, format="png", optimize=True)


def _made(name: str, kept: Path, folder: Path) -> Path:
    """The file that a kind of figure reads beside runs and epochs, of a kept campaign; made in `folder` where it is not kept."""
    if name in KEPT_FILES:
        return kept / f"{name}.csv"
    from prediction import crossover, held_out, outlook, what_if

    stem = folder / f"{kept.name}-{name}"
    if name == "predictions":
        files = ["--runs", str(kept / "runs.csv"), "--network", str(kept / "network.csv")]
        if not (cells := Path(f"{stem}_cells.csv")).exists():
            held_out.main([*files, "--cells", str(cells), "--out", str(stem)])
        return cells
    if name == "crossover":
        crossover.main(["--runs", str(kept / "runs.csv"), "--network", str(kept / "network.csv"), "--out", str(stem)])
        return Path(f"{stem}.csv")
    if name == "what_if":
        steps = str(kept / "replay_steps.csv")
        what_if.main(
            [
                "--runs",
                str(kept / "runs.csv"),
                "--network",
                str(kept / "network.csv"),
                "--steps",
                steps,
                "--out",
                str(stem),
            ]
        )
        return Path(f"{stem}.csv")
    if not (table := Path(f"{stem}.csv")).exists():
        outlook.main(from_=kept, out=stem, curves=curves_beside(table))
    return table


def main(argv: list[str] | None = None) -> None:
    """Draw the pictures again, or those of some kinds."""
    parser = argparse.ArgumentParser(prog="make gallery", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="kinds to draw; all where none is named")
    args = parser.parse_args(argv)
    if unknown := [kind for kind in args.kinds if kind not in KINDS]:
        problem = f"'{unknown[0]}' is no kind of figure"
        raise InputError("unknown-name", problem, key="KIND", got=unknown[0], **alternatives(unknown[0], KINDS))
    with TemporaryDirectory() as folder:
        for example in examples():
            if example.picture and (not args.kinds or example.asked.kind in args.kinds):
                make(example, Path(folder))
                print(f"{shown(example.picture)}: {example.picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    sys.exit(exit_status(main))
