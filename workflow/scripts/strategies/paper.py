"""What `make paper-strategies` makes: the figures of Jia, Zaharia & Aiken (MLSys 2019, section 8) anew, by simulation; no campaign is needed.

Their six networks on their two clusters: samples a second of data parallelism, of an expert's rule and of the fastest strategy found, with gradients
around rings and, as in the paper, as messages to an owner of the weights; what is sent; and how fast a search gets there where only what a proposal
changes is simulated. What was computed is kept in the folder --out, and not computed again.
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
from figures import panels, style
from strategies.find import Question, ask, found, interpreter
from strategies.problem import GRADIENTS, MESSAGES, RING

NETWORKS: dict[str, dict[str, str]] = {
    "alexnet": {},
    "inception-v3": {"image": "299x299x3"},
    "resnet-101": {},
    "rnn-text": {},
    "rnn-lm": {"tokens": "40:10000"},
    "rnn-translation": {"tokens": "80:32000"},
}
CLUSTERS = {"p100": (1, 2, 4, 8, 16), "k80": (1, 2, 4, 8, 16, 32, 64)}  # devices, four to a node
NODE = 4
SAMPLES = 64  # of each device
PROPOSALS = 20_000
STARTS = ("data", "expert")
SEARCHED = ("alexnet", "rnn-lm", "rnn-translation")  # whose progress is drawn
WAYS = {RING: "rings", MESSAGES: "messages"}
LINES = {"data": ("data parallelism", 0), "expert": ("an expert's rule", 1), "found": ("the fastest found", 2)}
THROUGHPUT = (
    "Samples a second of each device, by devices, on {cluster}, simulated, with 64 samples on each. Gradients go around rings (filled) or as messages "
    "to an owner (open)."
)
SENT = (
    "Bytes that all devices send in a step on {devices} devices of {cluster}, with gradients as messages to an owner: outputs with their gradients "
    "(light), and gradients of weights (dark)."
)
PROGRESS = (
    "Time of a step of the fastest strategy that Metropolis-Hastings had seen, over the time of the search, on 16 devices of p100. Solid: "
    "only what a proposal changes is simulated; dashed: all of each proposal, the same ones."
)


@dataclass(frozen=True)
class Point:
    """One network on some devices of a cluster, with one way of gradients."""

    network: str
    cluster: str
    devices: int
    gradients: str
    whole: bool = False

    @property
    def name(self) -> str:
        """Of the file that keeps it."""
        return f"{self.network}.{self.cluster}.{self.devices}.{self.gradients}{'.whole' if self.whole else ''}"

    def question(self, proposals: int) -> Question:
        """What is asked of the search."""
        question = ask(
            model=self.network,
            batch_size=SAMPLES * self.devices,
            image=NETWORKS[self.network].get("image"),
            tokens=NETWORKS[self.network].get("tokens"),
            topology=self.cluster,
            devices=self.devices,
            node=min(NODE, self.devices),
            gradients=self.gradients,
            proposals=proposals,
        )
        return replace(question, starts=STARTS, whole=self.whole)


def points(clusters: Sequence[str]) -> Iterator[Point]:
    """All of them, those with the fewest devices first."""
    for cluster in clusters:
        for devices in CLUSTERS[cluster]:
            for network in NETWORKS:
                for way in GRADIENTS:
                    yield Point(network, cluster, devices, way)
    if "p100" in clusters:
        for network in SEARCHED:
            yield Point(network, "p100", max(CLUSTERS["p100"]), RING, whole=True)


def answered(point: Point, proposals: int, kept: Path) -> list[dict[str, Any]]:
    """What the search answers for a point, without what strategies are; kept there, or asked and kept."""
    path = kept / f"{point.name}.{proposals}.json"
    if path.exists():
        answers: list[dict[str, Any]] = json.loads(path.read_text())
        return answers
    answers = [{**answer, "parts": None} for answer in found(point.question(proposals), interpreter())]
    write_json(path, answers)
    print(point.name, flush=True)
    return answers


def rows(answers: Mapping[Point, list[dict[str, Any]]]) -> pd.DataFrame:
    """Of each point the two starts and the fastest strategy found: `line`, `seconds` of a step, bytes."""
    listed = []
    for point, some in answers.items():
        told = {answer["start"]: answer for answer in some if answer["method"] is None}
        told["found"] = min((one for one in some if one["seconds"]), key=lambda one: one["seconds"])
        for line in LINES:
            listed.append(
                {
                    "network": point.network,
                    "cluster": point.cluster,
                    "devices": point.devices,
                    "gradients": point.gradients,
                    "line": line,
                    "seconds": told[line]["seconds"],
                    "exchanged_bytes": told[line]["exchanged_bytes"],
                    "gradient_bytes": told[line]["gradient_bytes"],
                    "rate": SAMPLES / told[line]["seconds"] if told[line]["seconds"] else None,
                }
            )
    return pd.DataFrame(listed)


def throughput(frame: pd.DataFrame, cluster: str) -> tuple[Figure, str]:
    """Samples a second of each device, a panel for each network."""
    drawn = style.figure(style.PAGE_IN, 3.4)
    for ax, network in zip(panels.grid(drawn, (2, 3), 6, share_y=False), NETWORKS, strict=True):
        for way in GRADIENTS:
            for line, (name, look_at) in LINES.items():
                look = style.TREATMENT_LOOKS[look_at]
                some = panels.at(frame, {"network": network, "cluster": cluster, "gradients": way, "line": line})
                ax.plot(
                    some["devices"], some["rate"], color=look.colour, marker=look.marker, markersize=3,
                    linestyle="-" if way == RING else ":", zorder=3, markerfacecolor=look.colour if way == RING else "white",
                    label=f"{name}, {WAYS[way]}" if network == "alexnet" else None,
                )  # fmt: skip
        ax.set_title(network)
        ax.set_xscale("log", base=2)
        ax.set_xticks(list(CLUSTERS[cluster]), [str(devices) for devices in CLUSTERS[cluster]])
        ax.set_ylim(0, 1.08 * ax.get_ylim()[1])
        ax.grid(True)
    drawn.supxlabel("devices", fontsize=style.FONT_SIZE)
    drawn.supylabel("samples a second of each device", fontsize=style.FONT_SIZE)
    drawn.legend(loc="outside upper center", ncols=3)
    return drawn, panels.two_paragraphs([THROUGHPUT.format(cluster=cluster)], [])


def sent(frame: pd.DataFrame, cluster: str) -> tuple[Figure, str]:
    """Bytes of a step on the most devices, a panel for each network."""
    devices = max(CLUSTERS[cluster])
    drawn = style.figure(style.PAGE_IN, 1.8)
    for ax, network in zip(panels.grid(drawn, (1, 6), 6, share_y=False), NETWORKS, strict=True):
        where = {"network": network, "cluster": cluster, "devices": devices, "gradients": MESSAGES}
        for place, line in enumerate(LINES):
            (one,) = panels.at(frame, {**where, "line": line}).to_dict("records")
            gradients, exchanged = one["gradient_bytes"] / 1e9, one["exchanged_bytes"] / 1e9
            ax.bar(place, gradients, color=style.TREATMENT_LOOKS[place].colour, width=0.8)
            ax.bar(place, exchanged, bottom=gradients, color=style.TREATMENT_LOOKS[place].colour, width=0.8, alpha=0.4)
        ax.set_title(network)
        ax.set_xticks(range(len(LINES)), ["data", "expert", "found"])
    drawn.supylabel("GB sent in a step", fontsize=style.FONT_SIZE)
    return drawn, panels.two_paragraphs([SENT.format(cluster=cluster, devices=devices)], [])


def progress(answers: Mapping[Point, list[dict[str, Any]]]) -> tuple[Figure, str]:
    """The fastest strategy seen over the time of a search, both ways of simulation."""
    drawn = style.figure(style.PAGE_IN, 2.0)
    for ax, network in zip(panels.grid(drawn, (1, 3), 3, share_x=False, share_y=False), SEARCHED, strict=True):
        for whole in (False, True):
            some = answers[Point(network, "p100", max(CLUSTERS["p100"]), RING, whole)]
            for start, look in zip(STARTS, style.TREATMENT_LOOKS, strict=False):
                (one,) = (each for each in some if (each["method"], each["start"]) == ("metropolis", start))
                done, seconds = zip(*one["progress"], strict=True)
                wall = [one["wall_s"] * proposals / done[-1] for proposals in done]
                label = f"from {LINES[start][0]}, {'all' if whole else 'the change'} simulated"
                ax.plot(
                    wall, [1e3 * s for s in seconds], color=look.colour, linestyle="--" if whole else "-",
                    label=label if network == SEARCHED[0] else None,
                )  # fmt: skip
        ax.set_title(network)
        ax.set_xscale("log")
        ax.grid(True)
        ax.set_xlabel("time of the search (s)")
    drawn.supylabel("time of a step (ms)", fontsize=style.FONT_SIZE)
    drawn.legend(loc="outside upper center", ncols=2)
    return drawn, panels.two_paragraphs([PROGRESS], [])


def table(frame: pd.DataFrame) -> tables.Table:
    """Speed-ups on the most devices of each cluster."""
    last = frame[[row.devices == max(CLUSTERS[row.cluster]) for row in frame.itertuples()]]
    wide = last.pivot_table(index=["cluster", "network", "gradients"], columns="line", values="seconds", sort=False)
    wide = wide.reset_index()
    shown = pd.DataFrame(
        {
            "devices": [f"{max(CLUSTERS[cluster])} {cluster}" for cluster in wide["cluster"]],
            "network": wide["network"],
            "gradients": wide["gradients"],
            "data parallelism (ms)": [tables.number(1e3 * s) for s in wide["data"]],
            "expert (ms)": [tables.number(1e3 * s) for s in wide["expert"]],
            "found (ms)": [tables.number(1e3 * s) for s in wide["found"]],
            "over data parallelism": [f"{one:.2f}" for one in wide["data"] / wide["found"]],
            "over the expert": [f"{one:.2f}" for one in wide["expert"] / wide["found"]],
        }
    )
    return tables.Table("Speed-ups of the strategies found", wide, shown, [], ["devices", "network", "gradients"])


def main(
    *, out: Path, clusters: Sequence[Literal["p100", "k80"]] = ("p100", "k80"), proposals: int = PROPOSALS
) -> None:
    """Search for the strategies of the paper's networks, and draw its figures.

    Args:
        out: folder for figures and answers
        clusters: default: both
        proposals: of each search
    """
    kept = out / "answers"
    with system_faults(out):
        kept.mkdir(parents=True, exist_ok=True)
        asked_for = list(points(clusters))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            answers = dict(zip(asked_for, pool.map(lambda one: answered(one, proposals, kept), asked_for), strict=True))  # fmt: skip
        frame = rows({point: some for point, some in answers.items() if not point.whole})
        made = {f"{kind.__name__}-{cluster}": kind(frame, cluster) for cluster in clusters for kind in (throughput, sent)}  # fmt: skip
        if "p100" in clusters:
            made["progress"] = progress(answers)
        for name, (drawn, caption) in made.items():
            style.save(drawn, out / name)
            write_text(out / f"{name}.caption.md", caption + "\n")
        tables.write(table(frame), out / "speedups")
        print(tables.markdown(table(frame)))


if __name__ == "__main__":
    sys.exit(run_program(main))
