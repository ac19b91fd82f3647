"""What `make strategies` asks: the fastest strategy for a model on some devices, found by simulating steps; no campaign is needed.

Devices and links are those of a file of config/topologies/; --devices, --node and --links change them. Every layer's strategy is searched for by
itself: how its samples, positions, rows, columns, channels, units or heads are cut, and which device has which part.
Times are those of a roofline of the devices, not measured ones.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis import tables
from common.arguments import OneLineParser
from common.errors import InputError, exit_status, system_faults
from common.files import write_json, write_text
from common.notes import Note
from common.text import alternatives, number_of, size
from declared.configuration import load_config
from declared.environments import read
from declared.site import Site, load_site
from declared.topologies import load_topology, topology_names
from environments.build import build
from figures import style
from models.graph import Graph
from models.listing import image, inputs_of, tokens
from models.named import IMAGES, TEXTS, TOKENS, graph, models
from models.soap import divide
from plan.campaign import configured
from strategies import draw
from strategies.costs import Measured
from strategies.problem import GRADIENTS, RING
from strategies.topology import Level, Topology, of_file

ENVIRONMENT = "planner"
LIMIT_S = 3600
MOST_DEVICES = 1024
TITLE = "Strategies of {model} on {devices}, by the time of a step"
HOW = Note(
    "simulation-method",
    "Simulated: computation by a roofline of what is written of the devices, messages by the rates and latencies of links. A device computes its "
    "parts in the order of the program; a message waits for the links that it takes.",
)
SPEED_UP = Note("speedup-base", "Speed-up: over data parallelism on the same devices.")
SEARCHED = "Searches: {proposals} proposals from each start."
FITS_NOT = "too little memory"
NAMES = {"data": "data parallelism", "expert": "an expert's rule", "random": "a random strategy"}
METHODS = {"metropolis": "Metropolis-Hastings", "annealing": "annealing of groups"}
WORDS = ["strategy"]


@dataclass(frozen=True)
class Question:
    """What is asked: a model, samples of a batch, devices, and how long to search, from which `starts`; `costs`: of all parts, where they were
    measured; `whole`: all of each proposal is simulated."""

    graph: Graph
    batch: int
    topology: Topology
    proposals: int
    seed: int
    numbers_of_parameter: int
    gradients: str = RING
    starts: tuple[str, ...] = tuple(NAMES)
    whole: bool = False
    costs: Sequence[Measured] | None = None

    def job(self) -> dict[str, Any]:
        """As `strategies.search` reads it."""
        return {
            "graph": self.graph.to_json(),
            "batch": self.batch,
            "topology": asdict(self.topology),
            "numbers_of_parameter": self.numbers_of_parameter,
            "costs": self.costs,
            "gradients": self.gradients,
            "starts": self.starts,
            "whole": self.whole,
            "proposals": self.proposals,
            "seed": self.seed,
        }


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = OneLineParser(
        prog="make strategies", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--model", required=True, help="a model of make models")
    made.add_argument(
        "--batch-size", type=_whole(10**7), required=True, metavar="N", help="samples of a step, on all devices"
    )
    made.add_argument("--image", type=image, metavar="HxWxC", help="its images; default: the largest of make models")
    made.add_argument(
        "--tokens", type=tokens, metavar="LENGTH:VOCABULARY", help="its tokens; default: the longest of make models"
    )
    made.add_argument(
        "--classes", type=_whole(10**7), metavar="N", help="of images and of texts; default: those of make models"
    )
    made.add_argument(
        "--topology",
        default="p100",
        metavar="NAME",
        help=f"devices and links: {', '.join(topology_names())} (default p100)",
    )
    made.add_argument("--devices", type=_whole(MOST_DEVICES), metavar="N", help="other numbers of devices")
    made.add_argument("--node", type=_whole(MOST_DEVICES), metavar="N", help="devices of a node")
    made.add_argument(
        "--links", type=_rates, metavar="G[,G]", help="rates of links, in Gbit/s: within a node, between nodes"
    )
    made.add_argument(
        "--optimizer-numbers",
        type=_whole(16),
        default=4,
        metavar="N",
        help="kept for each parameter, with itself and its gradient (default 4: Adam)",
    )
    made.add_argument(
        "--gradients",
        choices=GRADIENTS,
        default=RING,
        help="of weights that several devices have: around a ring (default), or as messages to the first of them, which sends the weights back",
    )
    made.add_argument(
        "--proposals", type=_whole(10**9), default=20_000, metavar="N", help="of each search (default %(default)s)"
    )
    made.add_argument(
        "--starts",
        nargs="+",
        choices=list(NAMES),
        default=list(NAMES),
        help="of searches; data and expert always are (default: all). On hundreds of devices a random one takes hours",
    )
    made.add_argument("--seed", type=int, default=1, help="of random numbers (default %(default)s)")
    made.add_argument(
        "--out",
        type=Path,
        metavar="STEM",
        help="where to write the table and the strategies; default: the table is printed alone",
    )
    return made


def _whole(most: int) -> Any:
    """What reads a whole number from 1 to `most`."""

    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is too {'small' if value < 1 else 'large'}; expected 1 to {most}")
        return value

    return whole


def _rates(text: str) -> list[float]:
    """Rates of links, of which there are one or two."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are no rates; expected such as 900,100") from None
    if not 1 <= len(rates) <= 2 or not all(0 < rate < 1e6 for rate in rates):
        raise argparse.ArgumentTypeError(f"{text!r}: expected one or two rates in Gbit/s, such as 900,100")
    return rates


def asked(argv: Sequence[str] | None = None) -> tuple[Question, argparse.Namespace]:
    """The question of a command line. InputError in one line where it makes none."""
    args = parser().parse_args(argv)
    if args.model not in models():
        choices = alternatives(args.model, sorted(models()))
        raise InputError("unknown-name", f"there is no {args.model}", file="--model", got=args.model, **choices)
    question = Question(
        _graph(args),
        args.batch_size,
        _topology(args),
        args.proposals,
        args.seed,
        args.optimizer_numbers,
        args.gradients,
        tuple(dict.fromkeys(["data", "expert", *args.starts])),
    )
    if rest := question.batch % (devices := question.topology.devices):
        next_size = question.batch + devices - rest
        raise InputError(
            "indivisible-batch",
            f"{question.batch} samples cannot be divided by {devices} devices",
            file="--batch-size",
            got=question.batch,
            hint=f"the next that can is {next_size}",
        )
    return question, args


def _graph(args: argparse.Namespace) -> Graph:
    takes = models()[args.model].takes
    shape, classes, *rest = inputs_of(args.model)[-1]
    if (args.tokens and takes == IMAGES) or (args.image and takes != IMAGES):
        given, right = ("--tokens", "--image") if takes == IMAGES else ("--image", "--tokens")
        raise InputError(
            "conflicting-keys",
            f"--model {args.model} takes {takes}: give {right}, not {given}",
            got=given,
        )
    classes = args.classes or classes
    if takes == IMAGES:
        samples: tuple[Any, ...] = (args.image or shape, classes)
    else:
        length, vocabulary = args.tokens or (shape[0], rest[0])
        samples = (
            (length,),
            vocabulary if takes == TOKENS else classes,
            vocabulary,
            "class" if takes == TEXTS else "next",
        )
    try:
        return graph(args.model, *samples)
    except ValueError as error:
        raise InputError("not-possible-here", str(error), got=args.model) from None


def _topology(args: argparse.Namespace) -> Topology:
    """The devices that are asked for."""
    told = of_file(load_topology(args.topology))
    inner, *outer = told.levels
    node = args.node or min(inner.of, args.devices or inner.of)
    devices = args.devices or (told.devices // inner.of * node)
    if devices % node:
        raise InputError(
            "indivisible-devices",
            f"{devices} devices do not fill nodes of {node}",
            file="--devices",
            got=devices,
            expected="a multiple of it",
        )
    rates = args.links or []
    between: list[Level] = []
    if devices > node:
        if not outer and len(rates) < 2:
            raise InputError(
                "missing-key",
                f"{args.topology} has no links between nodes",
                file="--links",
                got=args.links,
                hint="give --links within,between in Gbit/s",
            )
        usual = outer[0] if outer else inner
        between = [replace(usual, of=devices // node, bytes_s=_bytes_s(rates[1]) if len(rates) > 1 else usual.bytes_s)]
    within = replace(inner, of=node, bytes_s=_bytes_s(rates[0]) if rates else inner.bytes_s)
    return Topology(told.device, (within, *between))


def _bytes_s(gbit_s: float) -> float:
    return gbit_s * 1e9 / 8


def interpreter(site: Site | None = None) -> str:
    """The Python that has numba, of a site or of the configured one; its environment is built where it is not there."""
    site = site or load_site(load_config(configured([]))["site"])
    made = build(read(ENVIRONMENT), site.cache.resolve(), {"torch_index": site.torch_index or ""})
    return str(made["python"]["executable"])


def found(question: Question, python: str) -> list[dict[str, Any]]:
    """What `strategies.search` answers, in its own environment, whose interpreter is `python`."""
    command = [python, "-m", "strategies.search"]
    scripts = str(Path(__file__).resolve().parents[1])
    try:
        done = subprocess.run(
            command,
            input=json.dumps(question.job()),
            env=os.environ | {"PYTHONPATH": scripts},
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            "too-slow",
            f"the search took more than {LIMIT_S} s",
            file="--proposals",
            got=question.proposals,
            hint="ask for fewer",
        ) from None
    except subprocess.CalledProcessError as error:
        problem = f"the search ended with status {error.returncode}"
        raise InputError("search-failed", problem, got=error.returncode, hint="what it printed stands above") from None
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def table(question: Question, answers: Sequence[dict[str, Any]]) -> tables.Table:
    """The starts, and what was found from them, the fastest first."""
    base = next(answer["seconds"] for answer in answers if answer["method"] is None and answer["start"] == "data")
    rows = pd.DataFrame(
        [
            {
                "method": answer["method"] or "",
                "start": answer["start"],
                "step_s": answer["seconds"],
                "speedup": base / answer["seconds"] if base and answer["seconds"] else None,
                "exchanged_bytes": answer["exchanged_bytes"],
                "gradient_bytes": answer["gradient_bytes"],
                "memory_bytes": answer["memory_bytes"],
                "accepted": answer["ended"]["accepted"] if "ended" in answer else None,
                "proposals_s": question.proposals / answer["wall_s"] if answer.get("wall_s") else None,
            }
            for answer in answers
        ]
    ).sort_values("step_s", kind="stable", ignore_index=True)
    shown = pd.DataFrame(
        {
            "strategy": [_name(row["method"], row["start"]) for _, row in rows.iterrows()],
            "step (ms)": [FITS_NOT if pd.isna(value) else tables.number(1e3 * value) for value in rows["step_s"]],
            "speed-up": [tables.DASH if pd.isna(value) else f"{value:.2f}" for value in rows["speedup"]],
            "outputs sent (MB)": [tables.number(value / 1e6) for value in rows["exchanged_bytes"]],
            "gradients sent (MB)": [tables.number(value / 1e6) for value in rows["gradient_bytes"]],
            "memory (GB)": [tables.number(value / 1e9) for value in rows["memory_bytes"]],
        }
    )
    devices = number_of(question.topology.devices, "device")
    searched = Note("searches", SEARCHED.format(proposals=f"{question.proposals:,}"), proposals=question.proposals)
    notes = [HOW, SPEED_UP, searched]
    return tables.Table(TITLE.format(model=question.graph.model, devices=devices), rows, shown, notes, WORDS)


def _name(method: str, start: str) -> str:
    return f"{METHODS[method]}, from {NAMES[start]}" if method else NAMES[start]


def main(argv: Sequence[str] | None = None) -> None:
    """Search, and print or write the table."""
    question, args = asked(argv)
    answers = found(question, interpreter())
    if not any(answer["seconds"] for answer in answers):
        least, available = min(answer["memory_bytes"] for answer in answers), question.topology.device.memory_bytes
        raise InputError(
            "too-little-memory",
            f"no strategy was found whose devices have the memory: the least is {size(least)} on a device, which has {size(available)}",
            file=args.model,
            got=available,
            hint="give more devices, or a smaller --batch-size",
        )
    made = table(question, answers)
    if not args.out:
        print(tables.markdown(made))
        return
    with system_faults(args.out):
        tables.write(made, args.out)
        write_json(args.out.with_suffix(".json"), {"question": question.job(), "answers": answers})
        for stem, (picture, caption) in _pictures(question, answers, args.out).items():
            style.save(picture, stem)
            write_text(stem.with_name(f"{stem.name}.caption.md"), caption + "\n")


def _pictures(question: Question, answers: Sequence[dict[str, Any]], stem: Path) -> dict[Path, tuple[Figure, str]]:
    """Figures with captions, and where they go: two starts and the fastest strategy as bars, and the progress of searches."""
    starts = {answer["start"]: answer for answer in answers if answer["method"] is None}
    fastest = min((answer for answer in answers if answer["seconds"]), key=lambda answer: answer["seconds"])
    shown = {NAMES["data"]: starts["data"], NAMES["expert"]: starts["expert"], "the fastest": fastest}
    parts = {name: one["parts"] for name, one in shown.items()}
    space = divide(question.graph, question.batch)
    return {
        stem: draw.bars(question.graph, space, parts, question.topology.devices),
        stem.with_name(f"{stem.name}.progress"): draw.progress(answers, METHODS | NAMES),
    }


if __name__ == "__main__":
    sys.exit(exit_status(main))
