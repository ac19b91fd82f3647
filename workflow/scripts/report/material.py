"""What a report is made of: the study, its runs and epochs, and the figures and tables that earlier stages made."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import tables
from analysis.measured import successful
from analysis.pooling import Pooling, pooled
from analysis.tables import Table
from common.errors import InputError
from common.files import shown
from common.schemas import schema
from declared.site import Site
from declared.study import Study
from report.text import clean

LARGE_SVG = 300_000  # bytes, from which on the PNG is taken where it is smaller
POINTS_IN = 72
PIXELS_PER_IN = 140  # of the screen's, so that letters of 6.5 points are read without a lens
# The figures' font, and what has letters of the same width where a reader's machine lacks it.
FONT, FONTS = "'DejaVu Sans'", "'DejaVu Sans', 'Bitstream Vera Sans', Verdana, sans-serif"


@dataclass(frozen=True)
class Picture:
    """A figure for the page: its image as an address with the data in it, its size in pixels of the screen, its caption, and the
    notes that are printed apart."""

    name: str
    image: str
    width: int
    height: int
    caption: str
    notes: str = ""

    @cached_property
    def first_sentence(self) -> str:
        """What the figure shows."""
        end = self.caption.find(". ")
        return self.caption[: end + 1] if end >= 0 else self.caption

    @property
    def heading(self) -> str:
        """The first sentence as far as its colon."""
        return self.first_sentence.split(": ")[0].rstrip(".:")


@dataclass(frozen=True)
class Made:
    """A table that an earlier stage made, and its two sources: CSV and LaTeX."""

    name: str
    table: Table
    csv: str
    latex: str


@dataclass(frozen=True)
class Material:
    """All that a report says is made of this. `every_run`: of the design, with those that were traced beside others; `epochs`: those of them; `phases`: phases.csv, without rows where nothing was traced; `site`: where they ran, if known.

    `pictures` and `tables` are those with content; `left_out`: name -> why the others have none.
    """

    study: Study
    site: Site | None
    runs: pd.DataFrame
    every_run: pd.DataFrame
    epochs: pd.DataFrame
    pictures: Sequence[Picture]
    tables: Mapping[str, Made]
    left_out: Mapping[str, str] = field(default_factory=dict)
    phases: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(schema("phases")["properties"])))

    @cached_property
    def ok(self) -> pd.DataFrame:
        """The runs that numbers are made of."""
        return successful(self.runs)

    @cached_property
    def pooling(self) -> Pooling:
        """The spread of the runs' epoch times."""
        return pooled(self.runs)

    def data(self, name: str) -> pd.DataFrame:
        """The numbers of a table; an empty frame where the study has no such table."""
        return self.tables[name].table.data if name in self.tables else pd.DataFrame()

    def picture_of(self, kind: str) -> str | None:
        """The name of the first figure of this kind that the report shows: the kind's name, and maybe what it is drawn over."""
        names = [picture.name for picture in self.pictures]
        return next((name for name in names if name == kind or name.startswith(f"{kind}-")), None)


def column(data: pd.DataFrame, name: str) -> pd.Series:
    """A column of a table as numbers; missing ones where the table has none, since empty columns are not written."""
    if name not in data:
        return pd.Series(np.nan, index=data.index, dtype=float)
    return pd.to_numeric(data[name], errors="coerce").astype(float)


def current(epochs: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The epochs (or the phases) of `runs`, whatever became of them; those of other keys are left out."""
    known = runs.set_index("run_id")["key"]
    place = known.index.get_indexer(epochs["run_id"])
    return epochs[(place >= 0) & (known.to_numpy()[place] == epochs["key"].to_numpy())]


def made(stem: Path) -> Made:
    """The table that lies at `stem`.csv, .md and .tex. InputError where a file is absent or is none of ours."""
    csv, latex = (_read(Path(f"{stem}.{suffix}")) for suffix in ("csv", "tex"))
    return Made(stem.name, tables.read(stem), csv, latex)


def picture(stem: Path) -> Picture:
    """The figure that lies at `stem`.svg, .png and .caption.md: its SVG, or the PNG where that is smaller and the SVG large."""
    caption, _, notes = clean(_read(Path(f"{stem}.caption.md")).strip()).partition("\n\n")
    vector, raster = Path(f"{stem}.svg"), Path(f"{stem}.png")
    text = _read(vector).replace(FONT, FONTS)
    width_in, height_in = _inches(text, vector)
    kind, raw = "svg+xml", text.encode()
    if len(raw) > LARGE_SVG and raster.stat().st_size < len(raw):
        kind, raw = "png", raster.read_bytes()
    image = f"data:image/{kind};base64,{base64.b64encode(raw).decode('ascii')}"
    return Picture(stem.name, image, round(width_in * PIXELS_PER_IN), round(height_in * PIXELS_PER_IN), caption, notes)


def _inches(svg: str, file: Path) -> tuple[float, float]:
    """Width and height as the first lines of an SVG of Matplotlib's say them."""
    found = [part.split('"')[0] for name in ("width", "height") for part in svg[:2000].split(f' {name}="')[1:2]]
    try:
        width, height = (float(length.removesuffix("pt")) / POINTS_IN for length in found)
    except ValueError:
        raise InputError(
            "broken-file", "does not say its size", file=shown(file), hint="remove it, then run the command again"
        ) from None
    return width, height


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        code = "missing-file" if isinstance(error, FileNotFoundError) else "broken-file"
        problem = error.strerror or str(error)
        raise InputError(code, problem, file=shown(file), hint="make it: ./ringside run") from None
