"""Draw the pictures of docs/reference/figures.md from kept campaigns: one example of every kind of figure."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from common.errors import InputError
from common.files import CHECKOUT, display_path, load_yaml, stored_file, written_whole
from common.options import run_program
from common.program_sources import SCRIPTS
from common.tables import read_table, write_table
from common.text import alternatives
from declared.figure_specs import FigureSpec
from declared.products.figure_kinds import KINDS, FigureKind
from declared.products.tables import PROGRAM_OF
from declared.study import load_study
from figures import draw

PICTURES = CHECKOUT / "docs" / "images" / "gallery"
CAMPAIGNS = CHECKOUT / "docs" / "campaigns"
STUDIES = CHECKOUT / "config" / "studies"
COLOURS = 256
SHRINK_FACTOR = 2  # divisor of the print resolution


@dataclass(frozen=True)
class Example:
    """An example of a kind of figure.

    Attributes:
        kind: The kind.
        study: The study that it is drawn from.
        records: Folder of the kept records.
        entry: The figure as a study declares it.
        spec: The same, checked.
        picture: The file of its picture; None if no kept campaign has the data.
    """

    kind: FigureKind
    study: str
    records: Path
    entry: dict[str, Any]
    spec: FigureSpec
    picture: Path | None


def examples(kinds: Mapping[str, FigureKind] = KINDS) -> Iterator[Example]:
    """Yield the example of each kind, checked as in a study file.

    Raises:
        InputError: If an example is not valid.
    """
    for name, kind in kinds.items():
        study, entry = kind.example["study"], {"kind": name, **kind.example["figure"]}
        records = CAMPAIGNS / kind.example.get("records", study)
        with TemporaryDirectory() as folder:
            written = Path(folder) / f"{study}.yaml"
            written.write_text(json.dumps(load_yaml(STUDIES / written.name) | {"figures": [entry]}))
            (spec,) = load_study(study, Path(folder)).figures
        yield Example(kind, study, records, entry, spec, PICTURES / f"{name}.png" if kind.alt else None)


def make(example: Example, folder: Path) -> None:
    """Draw the picture of an example for a web page; `folder` caches tables that several examples read."""
    if example.picture is None:
        return
    stem = folder / example.spec.name
    inputs = [f"{name}={file}" for name, file in input_files(example, folder).items()]
    draw.main(figure=example.spec.to_json(), inputs=inputs, out=stem)
    with Image.open(f"{stem}.png") as image, written_whole(example.picture) as partial:
        size = (image.width // SHRINK_FACTOR, image.height // SHRINK_FACTOR)
        small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        small.quantize(COLOURS, dither=Image.Dither.NONE).save(partial, format="png", optimize=True)


def input_files(example: Example, folder: Path) -> dict[str, Path]:
    """Return the tables that an example reads, by name. Tables that are not kept are computed in `folder`."""
    files = {
        name: _input_file(name, example.records, folder) for name in ("runs", "epochs", *example.kind.inputs)
    }
    if stated := example.kind.example.get("stated"):
        runs = read_table(files["runs"], "runs").assign(**stated)
        files["runs"] = folder / f"{example.kind.name}.runs.csv"
        write_table(runs, "runs", files["runs"])
    return files


def _input_file(name: str, campaign: Path, folder: Path) -> Path:
    """Return a kept table of a campaign, or compute it in `folder`."""
    if (file := stored_file(campaign / f"{name}.csv")).exists():
        return file
    program, tables = PROGRAM_OF[name.removesuffix(".md")], folder / campaign.name
    if not (file := tables / (name if name.endswith(".md") else f"{name}.csv")).exists():
        tables.mkdir(exist_ok=True)
        inputs = [
            part
            for read in program.inputs
            if stored_file(campaign / f"{read}.csv").exists()
            for part in (f"--{read.replace('_', '-')}", f"{campaign}/{read}.csv")
        ]
        command = [sys.executable, "-m", program.name, *inputs, "--out", str(tables / program.tables[0].name)]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": str(SCRIPTS)}, check=True)
    return file


def main(kinds: Sequence[str] = ()) -> None:
    """Draw the pictures of all kinds, or of some.

    Args:
        kinds: kinds to draw; default: all
    """
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        problem = f"'{unknown[0]}' is not a kind of figure"
        raise InputError(
            "unknown-name", problem, key="KIND", got=unknown[0], **alternatives(unknown[0], KINDS)
        )
    with TemporaryDirectory() as folder:
        for example in examples():
            if example.picture and (not kinds or example.kind.name in kinds):
                make(example, Path(folder))
                print(f"{display_path(example.picture)}: {example.picture.stat().st_size / 1000:.0f} kB")
                print((Path(folder) / f"{example.spec.name}.caption.md").read_text())


if __name__ == "__main__":
    sys.exit(run_program(main))
