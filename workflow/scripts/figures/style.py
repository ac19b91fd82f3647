"""The one look of all figures: sizes for print, fonts that stay text, each framework's and treatment's own colour and marker.

The files depend on what is drawn only: no dates, no random identifiers.
"""

import hashlib
import io
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

COLUMN_IN = 3.35
PAGE_IN = 6.9
DPI = 300
LAYOUT_PASSES = 2
INK = "#222222"
MUTED = "#777777"
GRID = "#dddddd"
LEVEL = "#f3f3f3"  # behind all that belongs to one level of an axis
REPLICATE_SIZE = 2.2
BAND_ALPHA = 0.16


@dataclass(frozen=True)
class Look:
    """How a framework or a treatment is drawn. Colours are told apart by the colour-blind; markers and lines also in grey."""

    colour: str
    marker: str
    line: str | tuple[int, tuple[float, ...]]
    filled: bool = True


# PyTorch is warm, TensorFlow cold; the undistributed bases are their neutral relatives with open markers.
LOOKS = {
    "pytorch-single": Look("#7d6b5d", "o", ":", filled=False),
    "tensorflow-single": Look("#5b6b7d", "^", ":", filled=False),
    "pytorch-ddp": Look("#c8420a", "o", "-"),
    "horovod-pytorch": Look("#e69f00", "s", "--"),
    "pytorch-fsdp": Look("#7f2704", "h", "-."),
    "deepspeed": Look("#d55e9b", "*", (0, (5, 2))),
    "tensorflow-multiworker": Look("#00518c", "^", "-"),
    "horovod-tensorflow": Look("#56b4e9", "D", "--"),
    "tensorflow-mirrored": Look("#332288", "v", "-."),
    "tensorflow-dtensor": Look("#1b9aaa", ">", (0, (4, 1))),
    "jax-single": Look("#6b6f4d", "d", ":", filled=False),
    "jax": Look("#7a8b00", "d", "-"),
    "lbann": Look("#009e73", "P", "-"),
    "tarantella": Look("#b8528f", "X", (0, (5, 1, 1, 1))),
    "flexflow": Look("#117733", "p", "-."),
}
# Combinations of treatments, by their place in the study: dark to light, so that the first ones differ in grey, too
# (Tol's high-contrast and medium-contrast schemes, SRON/EPS/TN/09-002).
TREATMENT_LOOKS = [
    Look("#004488", "o", "-"),
    Look("#bb5566", "s", "--"),
    Look("#ddaa33", "^", "-."),
    Look("#000000", "D", ":", filled=False),
    Look("#6699cc", "v", (0, (5, 1, 1, 1))),
    Look("#997700", "P", (0, (5, 2))),
    Look("#ee99aa", "X", (0, (3, 1, 1, 1, 1, 1))),
    Look("#994455", "p", (0, (1, 1)), filled=False),
]
# Series of one framework: line and filling; they keep its colour and marker.
VARIANTS: list[tuple[str, bool]] = [("-", True), ("--", False), (":", True), ("-.", False)]
_OTHERS = [
    Look("#882255", "h", "-"),
    Look("#999933", "<", "--"),
    Look("#44aa99", ">", "-."),
    Look("#aa4499", "*", (0, (3, 1, 1, 1, 1, 1))),
    Look("#661100", "d", (0, (5, 2))),
    Look("#6699cc", "8", (0, (1, 1))),
]

FONT_SIZE = 6.5

_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": FONT_SIZE,
    "axes.titlesize": FONT_SIZE,
    "axes.labelsize": FONT_SIZE,
    "xtick.labelsize": 6,
    "ytick.labelsize": 6,
    "legend.fontsize": 6.2,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlepad": 3,
    "axes.labelpad": 2,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "grid.color": GRID,
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.2,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "legend.columnspacing": 1.2,
    "legend.labelspacing": 0.3,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "ringside",
    "path.simplify": False,
}
_WRITTEN: dict[str, tuple[type[FigureCanvasBase], dict[str, str | None]]] = {
    "pdf": (FigureCanvasPdf, {"Creator": "Ringside", "CreationDate": None}),
    "svg": (FigureCanvasSVG, {"Creator": "Ringside", "Date": None}),
    "png": (FigureCanvasAgg, {"Software": None}),
}


def look(framework: str) -> Look:
    """The colour, marker and line of a framework: the same in every figure, whichever others a study has."""
    if framework in LOOKS:
        return LOOKS[framework]
    return _OTHERS[int(hashlib.sha256(framework.encode()).hexdigest(), 16) % len(_OTHERS)]


def variant(framework: str, number: int) -> Look:
    """The look of one of several series of a framework."""
    line, filled = VARIANTS[number]
    return replace(look(framework), line=line, filled=filled)


def figure(width_in: float, height_in: float) -> Figure:
    """An empty figure in the style of all."""
    matplotlib.rcdefaults()
    matplotlib.rcParams.update(_SETTINGS)
    drawn = Figure(figsize=(width_in, height_in), layout="constrained", dpi=DPI)
    FigureCanvasAgg(drawn)
    return drawn


def save(drawn: Figure, stem: Path) -> None:
    """Write `stem`.pdf, .svg and .png (300 dpi), each whole or not at all."""
    for _ in range(LAYOUT_PASSES):
        if layout := drawn.get_layout_engine():
            layout.execute(drawn)
    drawn.set_layout_engine("none")
    for suffix, (canvas, metadata) in _WRITTEN.items():
        # not savefig, which draws everything once more to find out what it needs no more
        drawn.set_dpi(DPI)
        content = io.BytesIO()  # on a full disk matplotlib would end in other errors than the disk's
        getattr(canvas(drawn), f"print_{suffix}")(content, metadata=metadata)
        with written_whole(Path(f"{stem}.{suffix}")) as partial:
            partial.write_bytes(content.getvalue())
