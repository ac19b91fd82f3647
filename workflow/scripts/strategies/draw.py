"""Draw strategies as bars, a row per group of layers and a piece per part, and the progress of searches."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from figures import captions, panels, style, value_axis
from models.graph import Graph
from models.soap import Space

ROW_HEIGHT_INCHES = 0.13
MIN_PANEL_INCHES, MAX_PANEL_INCHES = 1.6, 5.5
MIN_LABEL_HEIGHT_INCHES = 0.1  # Lower rows have no label.
# Letters of the dimensions of a batch, by the number of dimensions of a sample.
LETTERS = {3: "SHWC", 2: "STUx", 1: "SUxx"}
DEVICE_COLOURS = "turbo"
BARS = (
    "Strategies of {model} on {devices} devices. A row is a layer, the first on top, or consecutive layers "
    "with the same partition on the same devices. A piece is a part of the layer's output, in the colour of "
    "its device."
)
LETTERS_NOTE = (
    "Letters: number of parts of samples (S), height (H), width (W), channels (C), positions (T), and units "
    "or heads (U); 1: not partitioned."
)
PROGRESS = (
    "Step time of the fastest strategy so far, by number of proposals. A line is a method with a start."
)


def bars(
    graph: Graph, space: Space, strategies: Mapping[str, Mapping[str, Any]], devices: int
) -> tuple[Figure, str]:
    """Return a figure of strategies by name, each `parts` by layer, and its caption."""
    grouped = {name: panel_rows(graph, space, parts) for name, parts in strategies.items()}
    n_rows = max(len(rows) for rows in grouped.values())
    height = min(MAX_PANEL_INCHES, max(MIN_PANEL_INCHES, ROW_HEIGHT_INCHES * n_rows))
    figure = style.new_figure(style.PAGE_INCHES, height + 0.55)
    axes = panels.create_axes(figure, (1, len(grouped)), len(grouped), share_x=False, share_y=False)
    colours = matplotlib.colormaps[DEVICE_COLOURS](np.linspace(0.05, 0.95, devices))
    for ax, (name, rows) in zip(axes, grouped.items(), strict=True):
        for y, (label, owners) in enumerate(rows):
            width = 1 / len(owners)
            for i, owner in enumerate(owners):
                ax.barh(y, width, left=i * width, height=0.86, color=colours[owner], linewidth=0)
            if height / len(rows) >= MIN_LABEL_HEIGHT_INCHES:
                label_text = ax.text(1.02, y, label, va="center", ha="left", clip_on=False)
                label_text.set(fontsize=style.SMALL_FONT_SIZE)
        ax.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, 1), xticks=[], yticks=[], title=name)
        for side in ("left", "bottom"):
            ax.spines[side].set_visible(False)
    scale = figure.colorbar(
        matplotlib.cm.ScalarMappable(matplotlib.colors.Normalize(0, max(1, devices - 1)), DEVICE_COLOURS),
        ax=list(axes), location="bottom", fraction=0.03, pad=0.02, aspect=50,
    )  # fmt: skip
    scale.set_label("device", fontsize=style.FONT_SIZE)
    return figure, captions.split_caption([BARS.format(model=space.model, devices=devices)], [LETTERS_NOTE])


def panel_rows(graph: Graph, space: Space, parts: Mapping[str, Any]) -> list[tuple[str, Sequence[int]]]:
    """Return the rows of a panel: label, and device of each part."""
    layers = [(layer.name, parts[layer.name]) for layer in space.layers]
    rows: list[tuple[str, Sequence[int]]] = []
    for (degrees, devices), group in itertools.groupby(
        layers, key=lambda item: (tuple(item[1]["degrees"]), tuple(item[1]["devices"]))
    ):
        names = [name for name, _ in group]
        cut = describe_degrees(graph, names[0], degrees)
        span = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
        rows.append((f"{span}: {cut}", devices))
    return rows


def describe_degrees(graph: Graph, name: str, degrees: Sequence[int]) -> str:
    """Return degrees as text, such as S2 C4."""
    dimensions = len(graph.by_name[name].shape) if name in graph.by_name else 2
    cuts = [
        f"{letter}{degree}" for letter, degree in zip(LETTERS[dimensions], degrees, strict=True) if degree > 1
    ]
    return " ".join(cuts) or "1"


def progress(answers: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> tuple[Figure, str]:
    """Return a figure of all searches among the answers, and its caption; `names` of methods and starts."""
    searched = [answer for answer in answers if answer.get("progress")]
    figure = style.new_figure(style.PAGE_INCHES, 2.4)
    (ax,) = panels.create_axes(figure, (1, 1), 1)
    methods, starts = (list(dict.fromkeys(answer[key] for answer in searched)) for key in ("method", "start"))
    for answer in searched:
        proposals, times = zip(*answer["progress"], strict=True)
        name = f"{names[answer['method']]}, from {names[answer['start']]}"
        times_ms = [math.nan if s is None else 1e3 * s for s in times]
        colour = style.TREATMENT_STYLES[starts.index(answer["start"])].colour
        line, _ = style.VARIANTS[methods.index(answer["method"])]
        ax.plot(proposals, times_ms, color=colour, linestyle=line, label=name)
    ax.set(xscale="log", yscale="log", xlabel="proposals", ylabel="step time (ms)")
    value_axis.set_round_ticks(ax.yaxis)
    ax.grid(True)
    figure.legend(loc="outside upper center", ncols=3)
    return figure, captions.split_caption([PROGRESS], [])
