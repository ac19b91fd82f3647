"""The fastest strategy for a model on some devices, searched for by simulating steps (`ringside strategies`); no campaign is needed.

Devices and links are those of a file of config/topologies/; the number of devices, of those in a node, and rates of links may differ. Every layer's strategy is searched for by
itself: how its samples, positions, rows, columns, channels, units or heads are cut, and which device has which part.
Times are those of a roofline of the devices, not measured ones.
"""

import json
import math
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis import tables
from common.errors import InputError, system_faults
from common.files import write_json, write_text
from common.notes import Note
from common.text import alternatives, number_of, size
from declared.configuration import load_config
from declared.environments import read
from declared.site import Site, load_site
from declared.topologies import load_topology
from environments.build import build
from figures import style
from models.graph import Graph
from models.listing import inputs_of, parse_image, parse_tokens
from models.named import IMAGES, TEXTS, TOKENS, graph, models
from models.soap import divide
from plan.campaign import configured
from strategies import draw
from strategies.costs import Measured
from strategies.problem import GRADIENTS, RING
from strategies.topology import Level, Topology, of_file

ENVIRONMENT = "planner"
LIMIT_S = 3600
MAX_DEVICES = 1024
MAX_COUNT = 10**7  # of samples and classes
MAX_OPTIMIZER_NUMBERS = 16
MAX_PROPOSALS = 10**9
MAX_RATE = 1e6  # Gbit/s
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


def ask(
    *,
    model: str,
    batch_size: int,
    image: str | None = None,
    tokens: str | None = None,
    classes: int | None = None,
    topology: str = "p100",
    devices: int | None = None,
    node: int | None = None,
    links: str | None = None,
    optimizer_numbers: int = 4,
    gradients: str = RING,
    proposals: int = 20_000,
    starts: Sequence[str] = tuple(NAMES),
    seed: int = 1,
) -> Question:
    """Return the question about a model on some devices.

    Args:
        model: A model of `models.named`.
        batch_size: Samples of a step, on all devices.
        image: Its images, HEIGHTxWIDTHxCHANNELS; default: the largest of the listing of models.
        tokens: Its tokens, LENGTH:VOCABULARY; default: the longest of that listing.
        classes: Number of classes of images and of texts.
        topology: Devices and links: a file of config/topologies/.
        devices: Another number of devices than the topology has.
        node: Devices of a node.
        links: Rates of links in Gbit/s: within a node, between nodes.
        optimizer_numbers: Numbers kept for each parameter, with itself and its gradient.
        gradients: How gradients of weights that several devices have are summed.
        proposals: Proposals of each search.
        starts: Where searches start; data and expert are always among them.
        seed: Of random numbers.

    Raises:
        InputError: If an option is out of its range, or the model cannot be divided in this way.
    """
    numbers = {
        "batch-size": (batch_size, MAX_COUNT),
        "classes": (classes, MAX_COUNT),
        "devices": (devices, MAX_DEVICES),
        "node": (node, MAX_DEVICES),
        "optimizer-numbers": (optimizer_numbers, MAX_OPTIMIZER_NUMBERS),
        "proposals": (proposals, MAX_PROPOSALS),
    }
    for name, (number, most) in numbers.items():
        if number is not None and not 1 <= number <= most:
            raise InputError("out-of-range", f"is {number}", file=f"--{name}", got=number, expected=f"1 to {most}")
    _check_names("--model", [model], models())
    _check_names("--gradients", [gradients], GRADIENTS)
    _check_names("--starts", starts, NAMES)
    question = Question(
        _graph(model, image, tokens, classes),
        batch_size,
        _topology(topology, devices, node, _parse_rates(links)),
        proposals,
        seed,
        optimizer_numbers,
        gradients,
        tuple(dict.fromkeys(["data", "expert", *starts])),
    )
    if rest := question.batch % (n_devices := question.topology.devices):
        next_size = question.batch + n_devices - rest
        raise InputError(
            "indivisible-batch",
            f"{question.batch} samples cannot be divided by {n_devices} devices",
            file="--batch-size",
            got=question.batch,
            hint=f"the next that can is {next_size}",
        )
    return question


def _check_names(option: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            choices = alternatives(name, sorted(known))
            raise InputError("unknown-name", f"'{name}' is unknown", file=option, got=name, **choices)


def _parse_rates(text: str | None) -> list[float]:
    """Return the rates of links in Gbit/s, of which there are at most two."""
    try:
        rates = [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        rates = [math.nan]
    if len(rates) > 2 or not all(0 < rate < MAX_RATE for rate in rates):
        expected = "one or two rates in Gbit/s, such as 900,100"
        raise InputError("bad-pattern", f"is '{text}'", file="--links", got=text, expected=expected)
    return rates


def _graph(model: str, image: str | None, tokens: str | None, n_classes: int | None) -> Graph:
    takes = models()[model].sample_kind
    asked_shape = parse_image(image) if image else None
    asked_tokens = parse_tokens(tokens) if tokens else None
    shape, default_classes, *rest = inputs_of(model)[-1]
    if (tokens and takes == IMAGES) or (image and takes != IMAGES):
        given, right = ("--tokens", "--image") if takes == IMAGES else ("--image", "--tokens")
        raise InputError(
            "conflicting-keys",
            f"--model {model} takes {takes}: give {right}, not {given}",
            got=given,
        )
    classes = n_classes or default_classes
    if takes == IMAGES:
        samples: tuple[Any, ...] = (asked_shape or shape, classes)
    else:
        length, vocabulary = asked_tokens or (shape[0], rest[0])
        samples = (
            (length,),
            vocabulary if takes == TOKENS else classes,
            vocabulary,
            "class" if takes == TEXTS else "next",
        )
    try:
        return graph(model, *samples)
    except ValueError as error:
        raise InputError("not-possible-here", str(error), got=model) from None


def _topology(name: str, n_devices: int | None, n_per_node: int | None, rates: Sequence[float]) -> Topology:
    """Return the devices that are asked for."""
    file = of_file(load_topology(name))
    inner, *outer = file.levels
    node = n_per_node or min(inner.of, n_devices or inner.of)
    devices = n_devices or (file.devices // inner.of * node)
    if devices % node:
        raise InputError(
            "indivisible-devices",
            f"{devices} devices do not fill nodes of {node}",
            file="--devices",
            got=devices,
            expected="a multiple of it",
        )
    between: list[Level] = []
    if devices > node:
        if not outer and len(rates) < 2:
            raise InputError(
                "missing-key",
                f"{name} has no links between nodes",
                file="--links",
                hint="give --links within,between in Gbit/s",
            )
        usual = outer[0] if outer else inner
        between = [replace(usual, of=devices // node, bytes_s=_bytes_s(rates[1]) if len(rates) > 1 else usual.bytes_s)]
    within = replace(inner, of=node, bytes_s=_bytes_s(rates[0]) if rates else inner.bytes_s)
    return Topology(file.device, (within, *between))


def _bytes_s(gbit_s: float) -> float:
    return gbit_s * 1e9 / 8


def interpreter(site: Site | None = None) -> str:
    """The Python that has numba, of a site or of the configured one; its environment is built where it is not there."""
    site = site or load_site(load_config(configured()).site)
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


def search(question: Question, out: Path | None = None) -> None:
    """Search for the fastest strategies, and print or write their table.

    Args:
        question: What is asked.
        out: Files to write, without their suffix: the table, the strategies, figures. None prints the table alone.
    """
    answers = found(question, interpreter())
    if not any(answer["seconds"] for answer in answers):
        least, available = min(answer["memory_bytes"] for answer in answers), question.topology.device.memory_bytes
        raise InputError(
            "too-little-memory",
            f"no strategy was found whose devices have the memory: the least is {size(least)} on a device, which has {size(available)}",
            file=question.graph.model,
            got=available,
            hint="give more devices, or a smaller --batch-size",
        )
    made = table(question, answers)
    if not out:
        print(tables.markdown(made))
        return
    with system_faults(out):
        tables.write(made, out)
        write_json(out.with_suffix(".json"), {"question": question.job(), "answers": answers})
        for stem, (picture, caption) in _pictures(question, answers, out).items():
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
