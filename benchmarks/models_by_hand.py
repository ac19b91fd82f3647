"""Compare step times of models built from the graph with models written by hand (bare/by_hand.py)."""

import json
import os
import tempfile
from pathlib import Path

import numpy as np

from common.errors import InputError
from common.program_sources import SCRIPTS
from common.shell import capture
from declared.environments import read
from declared.site import load_site
from document import section, table
from environments.build import build
from images import interval, verdict
from models.graph import Shape
from models.named import graph

AIM = 1.03
SHAPES: dict[str, Shape] = {"small-cnn": (8, 8, 1), "resnet-18": (32, 32, 3), "efficientnet-b0": (32, 32, 3)}


def measure(pairs: int) -> dict[str, list[list[float]]]:
    """Return pairs of seconds per step (by hand, built) for every model."""
    site = load_site("local")
    environment = build(read("pytorch"), site.cache, {"torch_index": site.torch_index or ""})
    with tempfile.NamedTemporaryFile("w", suffix=".json") as graphs:
        json.dump({name: graph(name, shape, 10).to_json() for name, shape in SHAPES.items()}, graphs)
        graphs.flush()
        done = capture(
            [
                environment["python"]["executable"],
                str(Path(__file__).parent / "bare" / "by_hand.py"),
                str(pairs),
                graphs.name,
            ],
            env={**os.environ, **environment["variables"], "PYTHONPATH": str(SCRIPTS)},
        )
    if done.returncode:
        raise InputError("cannot-measure", f"bare/by_hand.py: {done.stderr[-1000:]}")
    seconds: dict[str, list[list[float]]] = json.loads(done.stdout)
    return seconds


def report(seconds: dict[str, list[list[float]]], command: str) -> str:
    """Return the part of docs/measurements.md."""
    rows = []
    for name, pairs in seconds.items():
        by_hand, built = (float(np.median(side)) for side in zip(*pairs, strict=True))
        mean, low, high = interval([built_s / by_hand_s for by_hand_s, built_s in pairs])
        rows.append([
            name, str(len(pairs)), f"{1e3 * by_hand:.1f} ms", f"{1e3 * built:.1f} ms",
            f"{mean:.3f} [{low:.3f}, {high:.3f}]", f"{AIM}: {verdict(low, high, AIM)}",
        ])  # fmt: skip
    return section(
        "Models built from the graph compared with models written by hand",
        command,
        table(["model", "pairs", "step, by hand", "step, built", "ratio [95 %]", "aim"], rows),
        "PyTorch on one core, batch 32, float32: forward, backward and SGD on images of 8 x 8 pixels "
        "(small-cnn) and 32 x 32. Both run in one process, in turn, in alternating order. Times are "
        "medians, ratios geometric means with t-intervals.",
    )
