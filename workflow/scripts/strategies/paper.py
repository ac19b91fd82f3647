"""Simulate the figures of Jia, Zaharia & Aiken (MLSys 2019, section 8): `make paper-strategies`.

The figures cover their six networks on their two clusters: samples per second of data parallelism, of an
expert's rule and of the fastest strategy found, with ring all-reduce of gradients and, as in the paper, with
messages to an owner of the weights; bytes sent; and the time of a search that simulates only what a proposal
changes. No campaign is needed. Answers are kept in the folder --out, and reused.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from matplotlib.figure import Figure

from analysis import tables
from common.errors import system_faults
from common.files import write_json, write_text
from common.options import run_program
from figures import captions, panels, selection, style
from strategies.find import interpreter, run_planner
from strategies.problem import MESSAGES, RING
from strategies.question import SearchQuestion, build_question

NETWORKS: dict[str, dict[str, str]] = {
    "alexnet": {},
    "inception-v3": {"image": "299x299x3"},
    "resnet-101": {},
    "rnn-text": {},
    "rnn-lm": {"tokens": "40:10000"},
    "rnn-translation": {"tokens": "80:32000"},
}
CLUSTERS = {"p100": (1, 2, 4, 8, 16), "k80": (1, 2, 4, 8, 16, 32, 64)}  # Numbers of devices, four to a node.
DEVICES_PER_NODE = 4
SAMPLES_PER_DEVICE = 64
PROPOSALS = 20_000
STARTS = ("data", "expert")
PROGRESS_NETWORKS = ("alexnet", "rnn-lm", "rnn-translation")
GRADIENT_LABELS = {RING: "rings", MESSAGES: "messages"}
LINES = {
    "data": ("data parallelism", 0),
    "expert": ("an expert's rule", 1),
    "found": ("the fastest found", 2),
}
THROUGHPUT = (
    "Simulated samples per second and device on {cluster}, by number of devices, with 64 samples on each. "
    "Gradients are summed by ring all-reduce (filled) or by messages to an owner (open)."
)
SENT = (
    "Bytes sent by all devices in a step on {devices} devices of {cluster}, with messages of gradients to an "
    "owner: outputs with their gradients (light), and gradients of weights (dark)."
)
PROGRESS = (
    "Step time of the fastest strategy so far, by duration of a Metropolis-Hastings search, on 16 devices of "
    "p100. Solid: only what a proposal changes is simulated; dashed: each of the same proposals is simulated "
    "completely."
)


@dataclass(frozen=True)
class Point:
    """One network on some devices of a cluster, with one way to sum gradients."""

    network: str
    cluster: str
    devices: int
    gradients: str
    full: bool = False

    @property
    def name(self) -> str:
        """Name of the file that keeps its answers."""
        return f"{self.network}.{self.cluster}.{self.devices}.{self.gradients}{'.whole' if self.full else ''}"

    def question(self, proposals: int) -> SearchQuestion:
        """Return the question for the search."""
        question = build_question(
            model=self.network,
            batch_size=SAMPLES_PER_DEVICE * self.devices,
            image=NETWORKS[self.network].get("image"),
            tokens=NETWORKS[self.network].get("tokens"),
            topology=self.cluster,
            devices=self.devices,
            node=min(DEVICES_PER_NODE, self.devices),
            gradients=self.gradients,
            proposals=proposals,
        )
        return replace(question, starts=STARTS, full=self.full, restarts=1)


def list_points(clusters: Sequence[str]) -> Iterator[Point]:
    """Yield all points, those with the fewest devices first."""
    for cluster in clusters:
        for devices in CLUSTERS[cluster]:
            for network in NETWORKS:
                for way in GRADIENT_LABELS:
                    yield Point(network, cluster, devices, way)
    if "p100" in clusters:
        for network in PROGRESS_NETWORKS:
            yield Point(network, "p100", max(CLUSTERS["p100"]), RING, full=True)


def load_or_search(point: Point, proposals: int, folder: Path) -> list[dict[str, Any]]:
    """Return a point's answers, without strategies, from `folder` if there; else search and keep them."""
    path = folder / f"{point.name}.{proposals}.json"
    if path.exists():
        answers: list[dict[str, Any]] = json.loads(path.read_text())
        return answers
    answers = [{**answer, "parts": None} for answer in run_planner(point.question(proposals), interpreter())]
    write_json(path, answers)
    print(point.name, flush=True)
    return answers


def strategy_rows(answers: Mapping[Point, list[dict[str, Any]]]) -> pd.DataFrame:
    """Return for each point the two starts and the fastest strategy: `line`, `seconds` of a step, bytes."""
    listed = []
    for point, point_answers in answers.items():
        by_line = {answer["start"]: answer for answer in point_answers if answer["method"] is None}
        by_line["found"] = min(
            (answer for answer in point_answers if answer["seconds"]), key=lambda answer: answer["seconds"]
        )
        for line in LINES:
            listed.append(
                {
                    "network": point.network,
                    "cluster": point.cluster,
                    "devices": point.devices,
                    "gradients": point.gradients,
                    "line": line,
                    "seconds": by_line[line]["seconds"],
                    "sent_activation_bytes": by_line[line]["sent_activation_bytes"],
                    "gradient_bytes": by_line[line]["gradient_bytes"],
                    "rate": SAMPLES_PER_DEVICE / by_line[line]["seconds"]
                    if by_line[line]["seconds"]
                    else None,
                }
            )
    return pd.DataFrame(listed)


def draw_throughput(frame: pd.DataFrame, cluster: str) -> tuple[Figure, str]:
    """Draw samples per second of each device, a panel per network."""
    figure = style.new_figure(style.PAGE_INCHES, 3.4)
    for ax, network in zip(panels.create_axes(figure, (2, 3), 6, share_y=False), NETWORKS, strict=True):
        for way, gradient_label in GRADIENT_LABELS.items():
            for line, (name, style_index) in LINES.items():
                look_style = style.TREATMENT_STYLES[style_index]
                selected = selection.rows_at(
                    frame, {"network": network, "cluster": cluster, "gradients": way, "line": line}
                )
                ax.plot(
                    selected["devices"], selected["rate"], color=look_style.colour, marker=look_style.marker,
                    markersize=3, linestyle="-" if way == RING else ":", zorder=3,
                    markerfacecolor=look_style.colour if way == RING else "white",
                    label=f"{name}, {gradient_label}" if network == "alexnet" else None,
                )  # fmt: skip
        ax.set_title(network)
        ax.set_xscale("log", base=2)
        ax.set_xticks(list(CLUSTERS[cluster]), [str(devices) for devices in CLUSTERS[cluster]])
        ax.set_ylim(0, 1.08 * ax.get_ylim()[1])
        ax.grid(True)
    figure.supxlabel("devices", fontsize=style.FONT_SIZE)
    figure.supylabel("samples per second and device", fontsize=style.FONT_SIZE)
    figure.legend(loc="outside upper center", ncols=3)
    return figure, captions.split_caption([THROUGHPUT.format(cluster=cluster)], [])


def draw_sent_bytes(frame: pd.DataFrame, cluster: str) -> tuple[Figure, str]:
    """Draw bytes sent in a step on the largest number of devices, a panel per network."""
    devices = max(CLUSTERS[cluster])
    figure = style.new_figure(style.PAGE_INCHES, 1.8)
    for ax, network in zip(panels.create_axes(figure, (1, 6), 6, share_y=False), NETWORKS, strict=True):
        setting = {"network": network, "cluster": cluster, "devices": devices, "gradients": MESSAGES}
        for place, line in enumerate(LINES):
            (row,) = selection.rows_at(frame, {**setting, "line": line}).to_dict("records")
            gradients, activations = row["gradient_bytes"] / 1e9, row["sent_activation_bytes"] / 1e9
            ax.bar(place, gradients, color=style.TREATMENT_STYLES[place].colour, width=0.8)
            ax.bar(
                place,
                activations,
                bottom=gradients,
                color=style.TREATMENT_STYLES[place].colour,
                width=0.8,
                alpha=0.4,
            )
        ax.set_title(network)
        ax.set_xticks(range(len(LINES)), ["data", "expert", "found"])
    figure.supylabel("GB sent in a step", fontsize=style.FONT_SIZE)
    return figure, captions.split_caption([SENT.format(cluster=cluster, devices=devices)], [])


def draw_progress(answers: Mapping[Point, list[dict[str, Any]]]) -> tuple[Figure, str]:
    """Draw the fastest strategy so far over the time of a search, for both ways of simulation."""
    figure = style.new_figure(style.PAGE_INCHES, 2.0)
    for ax, network in zip(
        panels.create_axes(figure, (1, 3), 3, share_x=False, share_y=False), PROGRESS_NETWORKS, strict=True
    ):
        for full in (False, True):
            point_answers = answers[Point(network, "p100", max(CLUSTERS["p100"]), RING, full)]
            for start, look_style in zip(STARTS, style.TREATMENT_STYLES, strict=False):
                (answer,) = (
                    candidate
                    for candidate in point_answers
                    if (candidate["method"], candidate["start"]) == ("metropolis", start)
                )
                done, seconds = zip(*answer["progress"], strict=True)
                wall = [answer["wall_s"] * proposals / done[-1] for proposals in done]
                label = f"from {LINES[start][0]}, {'all' if full else 'the change'} simulated"
                ax.plot(
                    wall, [1e3 * s for s in seconds], color=look_style.colour,
                    linestyle="--" if full else "-", label=label if network == PROGRESS_NETWORKS[0] else None,
                )  # fmt: skip
        ax.set_title(network)
        ax.set_xscale("log")
        ax.grid(True)
        ax.set_xlabel("duration of the search (s)")
    figure.supylabel("step time (ms)", fontsize=style.FONT_SIZE)
    figure.legend(loc="outside upper center", ncols=2)
    return figure, captions.split_caption([PROGRESS], [])


def table(frame: pd.DataFrame) -> tables.Table:
    """Return speed-ups on the largest number of devices of each cluster."""
    largest = frame[[row.devices == max(CLUSTERS[row.cluster]) for row in frame.itertuples()]]
    wide = largest.pivot_table(
        index=["cluster", "network", "gradients"], columns="line", values="seconds", sort=False
    )
    wide = wide.reset_index()
    columns = pd.DataFrame(
        {
            "devices": [f"{max(CLUSTERS[cluster])} {cluster}" for cluster in wide["cluster"]],
            "network": wide["network"],
            "gradients": wide["gradients"],
            "data parallelism (ms)": [tables.number(1e3 * s) for s in wide["data"]],
            "expert (ms)": [tables.number(1e3 * s) for s in wide["expert"]],
            "found (ms)": [tables.number(1e3 * s) for s in wide["found"]],
            "over data parallelism": [f"{ratio:.2f}" for ratio in wide["data"] / wide["found"]],
            "over the expert": [f"{ratio:.2f}" for ratio in wide["expert"] / wide["found"]],
        }
    )
    return tables.Table(
        "Speed-ups of the strategies found", wide, columns, [], ["devices", "network", "gradients"]
    )


def main(
    *, out: Path, clusters: Sequence[Literal["p100", "k80"]] = ("p100", "k80"), proposals: int = PROPOSALS
) -> None:
    """Search for the strategies of the paper's networks, and draw its figures.

    Args:
        out: folder for figures and answers
        clusters: default: both
        proposals: of each search
    """
    answers_folder = out / "answers"
    with system_faults(out):
        answers_folder.mkdir(parents=True, exist_ok=True)
        all_points = list(list_points(clusters))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            answers = dict(
                zip(
                    all_points,
                    pool.map(lambda point: load_or_search(point, proposals, answers_folder), all_points),
                    strict=True,
                )
            )
        frame = strategy_rows(
            {point: point_answers for point, point_answers in answers.items() if not point.full}
        )
        kinds = {"throughput": draw_throughput, "sent": draw_sent_bytes}
        figures = {
            f"{name}-{cluster}": draw(frame, cluster) for cluster in clusters for name, draw in kinds.items()
        }
        if "p100" in clusters:
            figures["progress"] = draw_progress(answers)
        for name, (drawn, caption) in figures.items():
            style.save(drawn, out / name)
            write_text(out / f"{name}.caption.md", caption + "\n")
        tables.write(table(frame), out / "speedups")
        print(tables.markdown(table(frame)))


if __name__ == "__main__":
    sys.exit(run_program(main))
