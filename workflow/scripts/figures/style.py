"""Define print sizes, fonts, and a fixed colour and marker for each framework and treatment.

Files depend only on the figure: they contain no dates and no random identifiers.
"""

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from common.files import written_whole

COLUMN_INCHES = 3.35
PAGE_INCHES = 6.9
DPI = 300
LAYOUT_PASSES = 2
INK = "#222222"
MUTED = "#777777"
GRID = "#dddddd"
LEVEL_BAND = "#f3f3f3"  # band behind the markers of one level
MARKER_SIZE = 3.2
REPLICATE_SIZE = 2.2
BAND_ALPHA = 0.16


@dataclass(frozen=True)
class SeriesStyle:
    """Colour, marker and line of a framework or treatment, distinct for colour-blind readers and in grey."""

    colour: str
    marker: str
    line: str | tuple[int, tuple[float, ...]]
    filled: bool = True


# PyTorch has warm colours, TensorFlow cold ones; single-device baselines have muted ones with open markers.
FRAMEWORK_STYLES = {
    "pytorch-single": SeriesStyle("#7d6b5d", "o", ":", filled=False),
    "tensorflow-single": SeriesStyle("#5b6b7d", "^", (0, (3, 1.5, 1, 1.5)), filled=False),
    "pytorch-ddp": SeriesStyle("#c8420a", "o", "-"),
    "horovod-pytorch": SeriesStyle("#e69f00", "s", "--"),
    "pytorch-fsdp": SeriesStyle("#7f2704", "h", "-."),
    "deepspeed": SeriesStyle("#d55e9b", "*", (0, (5, 2))),
    "tensorflow-multiworker": SeriesStyle("#00518c", "^", "-"),
    "horovod-tensorflow": SeriesStyle("#56b4e9", "D", "--"),
    "tensorflow-mirrored": SeriesStyle("#332288", "v", "-."),
    "jax-single": SeriesStyle("#6b6f4d", "d", ":", filled=False),
    "jax": SeriesStyle("#7a8b00", "d", "-"),
    "lbann": SeriesStyle("#009e73", "P", "-"),
    "tarantella": SeriesStyle("#b8528f", "X", (0, (5, 1, 1, 1))),
    "flexflow": SeriesStyle("#117733", "p", "-."),
}
# Combinations of treatments, in the order of the study. The first ones go from dark to light, so that they
# also differ in grey (Tol's high-contrast and medium-contrast schemes, SRON/EPS/TN/09-002).
TREATMENT_STYLES = [
    SeriesStyle("#004488", "o", "-"),
    SeriesStyle("#bb5566", "s", "--"),
    SeriesStyle("#ddaa33", "^", "-."),
    SeriesStyle("#000000", "D", ":", filled=False),
    SeriesStyle("#6699cc", "v", (0, (5, 1, 1, 1))),
    SeriesStyle("#997700", "P", (0, (5, 2))),
    SeriesStyle("#ee99aa", "X", (0, (3, 1, 1, 1, 1, 1))),
    SeriesStyle("#994455", "p", (0, (1, 1)), filled=False),
]
# Line and marker filling of several series of one framework, which share its colour and marker.
VARIANTS: list[tuple[str, bool]] = [("-", True), ("--", False), (":", True), ("-.", False)]
_FALLBACK_STYLES = [
    SeriesStyle("#882255", "h", "-"),
    SeriesStyle("#999933", "<", "--"),
    SeriesStyle("#44aa99", ">", "-."),
    SeriesStyle("#aa4499", "*", (0, (3, 1, 1, 1, 1, 1))),
    SeriesStyle("#661100", "d", (0, (5, 2))),
    SeriesStyle("#6699cc", "8", (0, (1, 1))),
]

FONT_SIZE = 7.5  # points
SMALL_FONT_SIZE = 7  # size of ticks, legends and remarks, the smallest text at column width

_RC_PARAMS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": FONT_SIZE,
    "axes.titlesize": FONT_SIZE,
    "axes.labelsize": FONT_SIZE,
    "xtick.labelsize": SMALL_FONT_SIZE,
    "ytick.labelsize": SMALL_FONT_SIZE,
    "legend.fontsize": SMALL_FONT_SIZE,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,  # tick labels of a narrow axis are the numbers themselves
    "axes.titlepad": 3,
    "axes.labelpad": 2,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.minor.size": 1.4,
    "ytick.minor.size": 1.4,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "grid.color": GRID,
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.0,
    "lines.markersize": MARKER_SIZE,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1.0,
    "legend.labelspacing": 0.3,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "ringside",
    "path.simplify": False,
}
_FORMATS: dict[str, tuple[type[FigureCanvasBase], dict[str, str | None]]] = {
    "pdf": (FigureCanvasPdf, {"Creator": "Ringside", "CreationDate": None}),
    "svg": (FigureCanvasSVG, {"Creator": "Ringside", "Date": None}),
    "png": (FigureCanvasAgg, {"Software": None}),
}


def framework_style(framework: str, frameworks: Iterable[str] = ()) -> SeriesStyle:
    """Return the style of a framework, the same in every figure of every study.

    A framework that FRAMEWORK_STYLES does not list gets a fallback style chosen by its name, or the next one
    if another framework of the study has that. If all are taken, it gets the style of a framework that the
    study does not have.

    Args:
        framework: The framework.
        frameworks: All frameworks of the study.
    """
    if framework in FRAMEWORK_STYLES:
        return FRAMEWORK_STYLES[framework]
    names = sorted({framework, *frameworks})
    unused = [style for name, style in FRAMEWORK_STYLES.items() if name not in names and style.filled]
    styles, n_fallback = [*_FALLBACK_STYLES, *unused], len(_FALLBACK_STYLES)
    used: set[int] = set()
    for name in (name for name in names if name not in FRAMEWORK_STYLES):
        first = int(hashlib.sha256(name.encode()).hexdigest(), 16) % n_fallback
        indices = [*range(first, n_fallback), *range(first), *range(n_fallback, len(styles))]
        index = next((index for index in indices if index not in used), first)
        if name == framework:
            return styles[index]
        used.add(index)
    raise AssertionError(framework)


def variant_style(framework: str, number: int, frameworks: Iterable[str] = ()) -> SeriesStyle:
    """Return the style of the series with this number among several series of a framework.

    For `frameworks` see `framework_style`.
    """
    line, filled = VARIANTS[number]
    return replace(framework_style(framework, frameworks), line=line, filled=filled)


def dots(marker: str, size: float, colour: str, edge_width: float = 0.0) -> dict[str, Any]:
    """Return the style of markers without a line."""
    shape = {"linestyle": "none", "marker": marker, "markersize": size}
    return {**shape, "color": colour, "markeredgewidth": edge_width}


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return an empty figure with the settings that all figures share."""
    matplotlib.rcdefaults()
    matplotlib.rcParams.update(_RC_PARAMS)
    figure = Figure(figsize=(width_in, height_in), layout="constrained", dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, stem: Path) -> None:
    """Write `stem`.pdf, .svg and .png (300 dpi), each whole or not at all."""
    for _ in range(LAYOUT_PASSES):
        if layout := figure.get_layout_engine():
            layout.execute(figure)
    figure.set_layout_engine("none")
    for suffix, (canvas_class, metadata) in _FORMATS.items():
        # Figure.savefig would draw everything once more to compute a layout that is already known.
        figure.set_dpi(DPI)
        content = io.BytesIO()  # a buffer, because matplotlib hides the error of a full disk behind others
        getattr(canvas_class(figure), f"print_{suffix}")(content, metadata=metadata)
        with written_whole(Path(f"{stem}.{suffix}")) as partial:
            partial.write_bytes(content.getvalue())
