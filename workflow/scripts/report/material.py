"""Read the material of a report: study, runs, epochs, figures and tables."""

import base64
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import tables
from analysis.cell_means import CellMeans, estimate_means, estimate_response_means, measured_response
from analysis.records import one_line, successful
from analysis.responses import with_response
from analysis.tables import Table
from common.errors import InputError
from common.schemas import schema
from common.text import first_sentence
from declared.figure_specs import FigureSpec
from declared.responses import RESPONSES, Response
from declared.site import Site
from declared.study import Study
from figures.captions import read_caption
from report.text import clean

LARGE_SVG_BYTES = 300_000  # The PNG replaces a larger SVG if it is smaller.
POINTS_PER_INCH = 72
PIXELS_PER_INCH = 140  # on screens, at which text of 6.5 pt is legible
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*[A-Za-z_])")
# The figures' font, and fallbacks of the same width.
FONT, FONTS = "'DejaVu Sans'", "'DejaVu Sans', 'Bitstream Vera Sans', Verdana, sans-serif"


@dataclass(frozen=True)
class Picture:
    """A figure of a study, prepared for the page: its image, caption and files.

    Attributes:
        name: Its name.
        image: The image as a data URL.
        width: Its width in CSS pixels.
        height: Its height in CSS pixels.
        caption: Its caption.
        endnotes: Notes that are folded below the figure.
        files: Contents of its files by suffix (svg, png, pdf), for readers to save.
    """

    name: str
    image: str
    width: int
    height: int
    caption: str
    endnotes: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def alternative(self) -> str:
        """Return what readers who do not see the picture get instead: the first sentence of its caption."""
        return f"{first_sentence(self.caption)}."

    @property
    def heading(self) -> str:
        """Return the first sentence of the caption up to its colon."""
        return first_sentence(self.caption).split(": ")[0]


@dataclass(frozen=True)
class StageTable:
    """A table of an earlier stage, with its CSV file."""

    name: str
    table: Table
    csv: str


@dataclass(frozen=True)
class Material:
    """Everything that a report is based on.

    Attributes:
        study: The study.
        site: The site of the runs; None if it is unknown.
        runs: The runs that tables and figures use, which leave out traced ones if untraced ones exist.
        every_run: All runs of the design, including traced ones.
        epochs: The epochs of `every_run`.
        pictures: Figures with content.
        tables: Tables with content, by name.
        specs: Specs of all figures of the study, in its order.
        left_out: The reason why a figure or table has no content, by what the page calls it.
        phases: Rows of phases.csv; empty without traced runs.
        network: Rows of network.csv; empty without a collective benchmark.
        runs_csv: The text of runs.csv.
    """

    study: Study
    site: Site | None
    runs: pd.DataFrame
    every_run: pd.DataFrame
    epochs: pd.DataFrame
    pictures: Sequence[Picture]
    tables: Mapping[str, StageTable]
    specs: Sequence[FigureSpec] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    phases: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=list(schema("phases")["properties"]))
    )
    network: pd.DataFrame = field(default_factory=pd.DataFrame)
    runs_csv: str = ""

    @cached_property
    def figure_specs(self) -> list[FigureSpec]:
        """Return the specs of the pictures, in the order of the study."""
        names = {picture.name for picture in self.pictures}
        return [spec for spec in self.specs if spec.name in names]

    @cached_property
    def ok(self) -> pd.DataFrame:
        """Return the successful runs."""
        return successful(self.runs)

    @cached_property
    def cell_means(self) -> CellMeans:
        """Return the mean epoch time of each cell, with its spread."""
        return estimate_means(self.runs)

    @cached_property
    def runs_with_response(self) -> pd.DataFrame:
        """Return the runs with the column of the study's response."""
        target = self.study.target_accuracy
        return with_response(self.runs, RESPONSES[self.study.response], lambda: self.epochs, target)

    @cached_property
    def response(self) -> Response:
        """Return the response of the answer: the study's, or epoch time if no run has it."""
        return measured_response(self.runs_with_response, RESPONSES[self.study.response])

    @cached_property
    def response_means(self) -> CellMeans:
        """Return the mean of the response of the answer in each cell, with its spread."""
        return estimate_response_means(self.runs_with_response, self.response)

    def data(self, name: str) -> pd.DataFrame:
        """Return the numbers of a table; an empty frame if the study has no such table."""
        return self.tables[name].table.data if name in self.tables else pd.DataFrame()

    def picture_of(self, kind: str, x: Collection[str] = ()) -> str | None:
        """Return the name of the first picture of a kind, if `x` is given with one of them on its x axis."""
        specs = (spec for spec in self.figure_specs if spec.kind == kind and (not x or spec.x in x))
        return next((spec.name for spec in specs), None)


def column(data: pd.DataFrame, name: str) -> pd.Series:
    """Return a column as numbers; NaN if the table lacks it, since empty columns are not written."""
    if name not in data:
        return pd.Series(np.nan, index=data.index, dtype=float)
    return pd.to_numeric(data[name], errors="coerce").astype(float)


def current_rows(epochs: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the epochs or phases of `runs` with their current key."""
    keys = runs.set_index("run_id")["key"].fillna("")
    positions = keys.index.get_indexer(epochs["run_id"])
    return epochs[(positions >= 0) & (keys.to_numpy()[positions] == epochs["key"].fillna("").to_numpy())]


def group_failures(failed: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """Return status, reason and runs of each kind of failure, the most frequent first.

    Reasons that differ only in numbers are merged into one, with the range of each number.
    """
    reasons = failed["reason"].map(one_line).replace("", "no reason is given")
    patterns = reasons.str.replace(_NUMBER, "#", regex=True)
    groups = failed.assign(reason=reasons).groupby(["status", patterns.rename("pattern")], sort=False)
    kinds = [(str(status), _merge_numbers(runs["reason"]), runs) for (status, _), runs in groups]
    return sorted(kinds, key=lambda kind: -len(kind[2]))


def _merge_numbers(texts: pd.Series) -> str:
    """Return one text for texts that differ only in their numbers, with the range of each number."""
    columns = iter(list(zip(*map(_NUMBER.findall, texts), strict=True)))

    def span(_: re.Match[str]) -> str:
        numbers = sorted(set(next(columns)), key=float)
        return " to ".join(dict.fromkeys((numbers[0], numbers[-1])))

    return _NUMBER.sub(span, texts.iloc[0])


def read_table_files(stem: Path) -> StageTable:
    """Read the table in `stem`.csv and .md.

    Raises:
        InputError: If a file is missing or broken.
    """
    csv = _read(Path(f"{stem}.csv"))
    return StageTable(stem.name, tables.read(stem), csv)


def read_picture(stem: Path, scrub: Callable[[str], str] = str) -> Picture:
    """Read the figure in `stem`.svg, .png, .pdf and .caption.md.

    The image is the PNG if the SVG is large and the PNG smaller. If `scrub` changes the SVG, PNG and PDF are
    left out, because they contain the same text.
    """
    caption = read_caption(stem)
    vector = Path(f"{stem}.svg")
    original = _read(vector)
    scrubbed = scrub(original)
    text = scrubbed.replace(FONT, FONTS)
    width_in, height_in = _svg_size(text, vector)
    files = {"svg": scrubbed.encode()}
    if scrubbed == original:
        files |= {suffix: _read_bytes(Path(f"{stem}.{suffix}")) for suffix in ("png", "pdf")}
    kind, raw = "svg+xml", text.encode()
    if len(raw) > LARGE_SVG_BYTES and len(files.get("png", raw)) < len(raw):
        kind, raw = "png", files["png"]
    image = f"data:image/{kind};base64,{base64.b64encode(raw).decode('ascii')}"
    return Picture(
        stem.name,
        image,
        round(width_in * PIXELS_PER_INCH),
        round(height_in * PIXELS_PER_INCH),
        clean(" ".join(caption.below)),
        clean(" ".join(caption.endnotes)),
        files,
    )


def _svg_size(svg: str, file: Path) -> tuple[float, float]:
    """Return width and height in inches from the first lines of an SVG that Matplotlib wrote."""
    lengths = [
        part.split('"')[0] for name in ("width", "height") for part in svg[:2000].split(f' {name}="')[1:2]
    ]
    try:
        width, height = (float(length.removesuffix("pt")) / POINTS_PER_INCH for length in lengths)
    except ValueError:
        raise InputError(
            "broken-file",
            "does not say its size",
            file=file,
            hint="remove it, then run the command again",
        ) from None
    return width, height


def _read(file: Path) -> str:
    return _read_bytes(file).decode("utf-8", errors="replace")


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        code = "missing-file" if isinstance(error, FileNotFoundError) else "broken-file"
        problem = error.strerror or str(error)
        raise InputError(code, problem, file=file, hint="create it: ./ringside run") from None
