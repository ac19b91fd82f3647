"""Search for the fastest strategy of a model on given devices (`ringside strategies --model`).

No campaign is needed: steps are simulated. Devices and links come from a file in config/topologies/; options
can change the number of devices and the rates of links. For each layer, a strategy states how samples,
positions, rows, columns, channels, units or heads are partitioned, and which device has which part. Times
come from a roofline of the devices, or with --measure from timings on this machine.
"""

import json
import math
import os
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis import tables
from common.errors import InputError, check_range, system_faults
from common.files import display_path, write_json, write_text
from common.notes import Note
from common.text import alternatives, format_bytes, number_of
from common.units import MIB
from declared.configuration import load_config
from declared.site import Site, load_site
from declared.topologies import MIN_GBIT_S, load_topology
from environments.build import build_tool
from figures import style
from models.graph import Graph
from models.layout import BUCKET_BYTES, BucketBytes
from models.listing import inputs_of, parse_image, parse_tokens
from models.named import IMAGES, PIXELS, TOKENS, graph, models
from models.precision import FP32
from models.soap import divide
from plan.campaign import load_merged_config
from strategies import chakra, draw, meshes
from strategies.costs import Measured
from strategies.engine import NEVER
from strategies.parts import time_parts
from strategies.problem import FASTEST, GRADIENTS, PICOSECONDS, RING
from strategies.topology import NUMBER_BYTES, LinkTier, Topology, read_topology

ENVIRONMENT = "planner"
MAX_SEARCH_S = 3600
MAX_DEVICES = 1024
MAX_SAMPLES = 10**7  # Also the largest number of classes.
MAX_OPTIMIZER_NUMBERS = 16
MAX_PROPOSALS = 10**9
MAX_RESTARTS = 1000
RESTARTS = 8
MAX_SEED = 2**63 - 1
# Limits of the numbers of an option, and a text of them. The engine counts picoseconds in 64 bits.
LIMITS = {
    "--links": (MIN_GBIT_S, 1e6, f"one or two rates in Gbit/s of {MIN_GBIT_S} or more, such as 900,100"),
    "--buckets": (1 / MIB, 1e6, "one or two limits in MiB, such as 1,25"),
}
TITLE = "Strategies of {model} on {devices}, by step time"
METHOD = Note(
    "simulation-method",
    "Simulated: computation by a roofline of the device's rates, messages by the rates and latencies of "
    "links. A device computes its parts in program order; a message waits until the links that it uses are "
    "free.",
)
MEASURED = (
    "Simulated: computation of each part as timed on this machine ({device}); messages by the rates and "
    "latencies of the topology's links; memory as the topology has it. A device computes its parts in "
    "program order; a message waits until the links that it uses are free."
)
SPEED_UP = Note("speedup-base", "Speed-up: over data parallelism on the same devices.")
SEARCHED = (
    "Searches: the fastest of {restarts} from each start with {proposals} proposals each, and seeds of their "
    "own. Restarts: the fastest and the slowest of them."
)
GAP = "The median restart of the fastest search is {gap:.1f} % slower than the best of its {restarts}."
TOO_LITTLE_MEMORY = "too little memory"
STUDY_TITLE = "A study of the suggested mesh, for config/studies/:"
NONE_FITS = "no strategy was found that fits in memory: the least that one needs is {least}"
NAMES = {
    "data": "data parallelism",
    "expert": "an expert's rule",
    "random": "a random strategy",
    "stages": "stages of equal memory",
    "units": "partitioned weights",
}
# Spaces of strategies: a partition and placement of each layer by itself, or device meshes.
SOAP, MESH, ALL_SPACES = SPACES = ("soap", "mesh", "both")
MAX_SOAP_PARAMETERS = 2e9  # Layers of larger models are searched only if --space asks for it.
DEFAULT_STARTS = ("data", "expert", "random")  # `starts.SMALL` are added if none fits into memory.
METHODS = {"metropolis": "Metropolis-Hastings", "annealing": "annealing of groups"}
WORDS = ["strategy"]


@dataclass(frozen=True)
class SearchQuestion:
    """The model, the devices, and the settings of the search.

    Attributes:
        batch: Samples of a step, on all devices.
        numbers_of_parameter: Numbers kept for each parameter: itself, its gradient, optimizer state.
        gradients: How gradients of weights that several devices have are summed.
        full: Whether each proposal is simulated completely, not only where it differs.
        costs: Measured costs of all parts; None: from the roofline of the topology's device.
        timed_on: The device on which `costs` were measured.
        space: One of SPACES.
    """

    graph: Graph
    batch: int
    topology: Topology
    proposals: int
    seed: int
    numbers_of_parameter: int
    gradients: str = RING
    bucket_bytes: BucketBytes = BUCKET_BYTES
    precision: str = FP32
    starts: tuple[str, ...] = DEFAULT_STARTS
    restarts: int = RESTARTS
    full: bool = False
    costs: Sequence[Measured] | None = None
    timed_on: str = ""
    space: str = SOAP

    def job(self) -> dict[str, Any]:
        """Return the question as `strategies.search` reads it."""
        return {
            "graph": self.graph.to_json(),
            "batch": self.batch,
            "precision": self.precision,
            "topology": self.topology.to_json(),
            "numbers_of_parameter": self.numbers_of_parameter,
            "costs": self.costs,
            "gradients": self.gradients,
            "bucket_bytes": self.bucket_bytes,
            "starts": self.starts,
            "whole": self.full,
            "proposals": self.proposals,
            "restarts": self.restarts,
            "seed": self.seed,
        }


def build_question(
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
    precision: str = FP32,
    optimizer_numbers: int = 4,
    gradients: str = FASTEST,
    buckets: str | None = None,
    proposals: int = 20_000,
    restarts: int = RESTARTS,
    starts: Sequence[str] = DEFAULT_STARTS,
    seed: int = 1,
    measure: bool = False,
    space: str | None = None,
) -> SearchQuestion:
    """Return the question about a model on given devices.

    Args:
        model: A model of `models.named`.
        batch_size: Samples of a step, on all devices.
        image: Its images, HEIGHTxWIDTHxCHANNELS; default: the largest of the listing of models.
        tokens: Its tokens, LENGTH:VOCABULARY; default: the longest of that listing.
        classes: Number of classes of images and of texts.
        topology: Devices and links: a file of config/topologies/.
        devices: Another number of devices than the topology has.
        node: Devices of a node.
        links: Rates in Gbit/s in each direction: of a device's links within its node, and of all links
            between a node and other nodes together.
        precision: Of outputs, their gradients and products: one of NUMBER_BYTES.
        optimizer_numbers: Numbers kept for each parameter, with itself and its gradient.
        gradients: How gradients of weights that several devices have are summed.
        buckets: Limits in MiB of the first and of all other buckets of gradients.
        proposals: Proposals of each restart.
        restarts: Searches by each method from each start, with seeds of their own.
        starts: Where searches start; data and expert are always among them.
        seed: Of random numbers.
        measure: Time parts on this machine instead of using the roofline of the topology's device.
        space: One of SPACES; default: both, or mesh for a model of more than MAX_SOAP_PARAMETERS.

    Raises:
        InputError: If an option is out of its range, or the model cannot be partitioned in this way.
    """
    numbers = {
        "batch-size": (batch_size, MAX_SAMPLES),
        "classes": (classes, MAX_SAMPLES),
        "devices": (devices, MAX_DEVICES),
        "node": (node, MAX_DEVICES),
        "optimizer-numbers": (optimizer_numbers, MAX_OPTIMIZER_NUMBERS),
        "proposals": (proposals, MAX_PROPOSALS),
        "restarts": (restarts, MAX_RESTARTS),
    }
    for name, (number, maximum) in numbers.items():
        check_range(f"--{name}", number, 1, maximum)
    check_range("--seed", seed, 0, MAX_SEED)
    check_names("--model", [model], models())
    check_names("--gradients", [gradients], GRADIENTS)
    check_names("--precision", [precision], NUMBER_BYTES)
    check_names("--starts", starts, NAMES)
    if space is not None:
        check_names("--space", [space], SPACES)
    model_graph = sample_graph(model, image, tokens, classes, check_layers=space in (SOAP, ALL_SPACES))
    question = SearchQuestion(
        model_graph,
        batch_size,
        choose_topology(topology, devices, node, parse_numbers("--links", links), precision),
        proposals,
        seed,
        optimizer_numbers,
        gradients,
        parse_buckets(buckets),
        precision,
        tuple(dict.fromkeys(["data", "expert", *starts])),
        restarts,
        space=space or (SOAP if measure else default_space(model_graph)),
    )
    if remainder := question.batch % (n_devices := question.topology.devices):
        next_size = question.batch + n_devices - remainder
        raise InputError(
            "indivisible-batch",
            f"{question.batch} samples cannot be split evenly over {n_devices} devices",
            file="--batch-size",
            got=question.batch,
            hint=f"the next multiple is {next_size}",
        )
    return measure_question(question) if measure else question


def measure_question(question: SearchQuestion) -> SearchQuestion:
    """Return the question with costs of parts as timed on this machine's device."""
    if question.precision != FP32:
        problem, hint = "parts are timed in float32 alone", "leave out --precision"
        raise InputError("conflicting-keys", problem, file="--measure", got=question.precision, hint=hint)
    if question.space != SOAP:
        problem, hint = "times parts of layers, which meshes are not planned from", "leave out --space"
        raise InputError("conflicting-keys", problem, file="--measure", got=question.space, hint=hint)
    timed = time_parts(
        question.graph, question.batch, question.topology.devices, question.numbers_of_parameter
    )
    return replace(question, costs=timed.costs, timed_on=timed.device)


def check_names(option: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise InputError if a name is not allowed."""
    for name in names:
        if name not in allowed:
            choices = alternatives(name, sorted(allowed))
            raise InputError("unknown-name", f"'{name}' is unknown", file=option, got=name, **choices)


def parse_numbers(option: str, text: str | None) -> list[float]:
    """Return the one or two numbers of an option."""
    try:
        numbers = [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        numbers = [math.nan]
    minimum, maximum, expected = LIMITS[option]
    if len(numbers) > 2 or not all(minimum <= number < maximum for number in numbers):
        raise InputError("bad-pattern", f"is '{text}'", file=option, got=text, expected=expected)
    return numbers


def parse_buckets(text: str | None) -> BucketBytes:
    """Return the limits of the first and of all other buckets in bytes; one number stands for both."""
    limits = [int(MIB * number) for number in parse_numbers("--buckets", text)]
    return (limits[0], limits[-1]) if limits else BUCKET_BYTES


def default_space(model_graph: Graph) -> str:
    """Return MESH for a model whose layers cannot be partitioned or take too long, else ALL_SPACES."""
    try:
        divide(model_graph, batch=1)
    except ValueError:
        return MESH
    return ALL_SPACES if model_graph.parameters <= MAX_SOAP_PARAMETERS else MESH


def sample_graph(
    model: str, image: str | None, tokens: str | None, n_classes: int | None, check_layers: bool = True
) -> Graph:
    """Return a model's graph for these samples; `check_layers` refuses models without a space of layers."""
    sample_kind = models()[model].sample_kind
    image_shape = parse_image(image) if image else None
    asked_tokens = parse_tokens(tokens) if tokens else None
    shape, default_classes, *rest = inputs_of(model)[-1]
    takes_images = sample_kind in (IMAGES, PIXELS)
    if tokens if takes_images else image:
        wrong_option, option = ("--tokens", "--image") if takes_images else ("--image", "--tokens")
        raise InputError(
            "conflicting-keys",
            f"--model {model} takes {sample_kind}: give {option}, not {wrong_option}",
            got=wrong_option,
        )
    classes = n_classes or default_classes
    if takes_images:
        samples: tuple[Any, ...] = (image_shape or shape, classes, *rest)
    else:
        length, vocabulary = asked_tokens or (shape[0], rest[0])
        samples = (
            (length,),
            vocabulary if sample_kind == TOKENS else classes,
            vocabulary,
            rest[1],
        )
    try:
        built = graph(model, *samples)
        if check_layers:
            divide(built, batch=1)
    except ValueError as error:
        raise InputError("not-possible-here", str(error), got=model) from None
    return built


def choose_topology(
    name: str, n_devices: int | None, n_per_node: int | None, rates: Sequence[float], precision: str = FP32
) -> Topology:
    """Return the topology of a file with other numbers of devices and rates."""
    try:
        file = read_topology(load_topology(name), precision)
    except ValueError as error:
        raise InputError("missing-key", f"{name}: {error}", file="--precision", got=precision) from None
    inner, *outer = file.tiers
    node = n_per_node or min(inner.units, n_devices or inner.units)
    devices = n_devices or (file.devices // inner.units * node)
    if devices % node:
        raise InputError(
            "indivisible-devices",
            f"{devices} devices do not fill nodes of {node}",
            file="--devices",
            got=devices,
            expected="a multiple of it",
        )
    outer_tiers: list[LinkTier] = []
    if devices > node:
        if not outer and len(rates) < 2:
            raise InputError(
                "missing-key",
                f"{name} has no links between nodes",
                file="--links",
                hint="give --links within,between in Gbit/s",
            )
        link = outer[0] if outer else inner
        outer_tiers = [
            replace(
                link,
                units=devices // node,
                bytes_s=bytes_per_second(rates[1]) if len(rates) > 1 else link.bytes_s,
            )
        ]
    within = replace(inner, units=node, bytes_s=bytes_per_second(rates[0]) if rates else inner.bytes_s)
    return Topology(file.device, (within, *outer_tiers))


def bytes_per_second(gbit_s: float) -> float:
    """Convert Gbit/s to bytes per second."""
    return gbit_s * 1e9 / 8


def interpreter(site: Site | None = None) -> str:
    """Return the Python that has numba, of a site or the configured one; build its environment if needed."""
    return build_tool(ENVIRONMENT, site or load_site(load_config(load_merged_config()).site))


def run_planner(question: SearchQuestion, python: str) -> list[dict[str, Any]]:
    """Run `strategies.search` with the interpreter `python` and return its answers."""
    command = [python, "-m", "strategies.search"]
    scripts = str(Path(__file__).resolve().parents[1])
    try:
        process = subprocess.run(
            command,
            input=json.dumps(question.job()),
            env=os.environ | {"PYTHONPATH": scripts},
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=MAX_SEARCH_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            "too-slow",
            f"the search took more than {MAX_SEARCH_S} s",
            file="--proposals",
            got=question.proposals,
            hint="set fewer proposals",
        ) from None
    except subprocess.CalledProcessError as error:
        problem = f"the search ended with status {error.returncode}"
        raise InputError(
            "search-failed", problem, got=error.returncode, hint="see its output above"
        ) from None
    answers: list[dict[str, Any]] = json.loads(process.stdout)
    return answers


def table(
    question: SearchQuestion, answers: Sequence[dict[str, Any]], mesh_notes: Sequence[Note] = ()
) -> tables.Table:
    """Return the table of starts, searched strategies and meshes, fastest first."""
    base = next(
        (answer["seconds"] for answer in answers if answer["method"] is None and answer["start"] == "data"),
        next((answer["seconds"] for answer in answers if answer.get("is_plain")), None),
    )
    rows = pd.DataFrame(
        [
            {
                "method": answer["method"] or "",
                "start": answer["start"],
                "step_s": answer["seconds"],
                "speedup": base / answer["seconds"] if base and answer["seconds"] else None,
                "sent_activation_bytes": answer["sent_activation_bytes"],
                "gradient_bytes": answer["gradient_bytes"],
                "memory_bytes": answer["memory_bytes"],
                "weight_bytes": answer["weight_bytes"],
                **restart_times(answer),
                "accepted": answer["ended"]["accepted"] if "ended" in answer else None,
                "proposals_s": question.proposals / answer["wall_s"] if answer.get("wall_s") else None,
            }
            for answer in answers
        ]
    ).sort_values("step_s", kind="stable", ignore_index=True)
    columns = pd.DataFrame(
        {
            "strategy": [strategy_name(row["method"], row["start"]) for _, row in rows.iterrows()],
            "step (ms)": [
                TOO_LITTLE_MEMORY if pd.isna(value) else tables.number(1e3 * value)
                for value in rows["step_s"]
            ],
            "speed-up": [tables.DASH if pd.isna(value) else f"{value:.2f}" for value in rows["speedup"]],
            "restarts (ms)": [
                tables.DASH
                if pd.isna(slowest)
                else f"{tables.number(1e3 * fastest)} to {tables.number(1e3 * slowest)}"
                for fastest, slowest in zip(rows["step_s"], rows["slowest_restart_s"], strict=True)
            ],
            "outputs sent (MB)": [tables.number(value / 1e6) for value in rows["sent_activation_bytes"]],
            "gradients sent (MB)": [tables.number(value / 1e6) for value in rows["gradient_bytes"]],
            "memory (GB)": [tables.number(value / 1e9) for value in rows["memory_bytes"]],
            "of it weights (GB)": [tables.number(value / 1e9) for value in rows["weight_bytes"]],
        }
    )
    devices = number_of(question.topology.devices, "device")
    searched = Note(
        "searches",
        SEARCHED.format(proposals=f"{question.proposals:,}", restarts=question.restarts),
        proposals=question.proposals,
        restarts=question.restarts,
    )
    method = METHOD
    if question.timed_on:
        text = MEASURED.format(device=question.timed_on)
        method = Note("parts-measured", text, device=question.timed_on)
    notes = [method, SPEED_UP, *([searched] if question.space != MESH else []), *mesh_notes]
    searches = rows[rows["method"].isin(METHODS)]
    fastest = searches.iloc[0] if len(searches) else None
    if fastest is not None and pd.notna(fastest["step_s"]) and question.restarts > 1:
        gap = 100 * (fastest["median_restart_s"] / fastest["step_s"] - 1)
        notes.append(Note("restart-gap", GAP.format(gap=gap, restarts=question.restarts), gap_percent=gap))
    return tables.Table(
        TITLE.format(model=question.graph.model, devices=devices), rows, columns, notes, WORDS
    )


def restart_times(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return number, median and slowest step time of a search's restarts, None without a search."""
    if "restarts" not in answer:
        return dict.fromkeys(("n_restarts", "median_restart_s", "slowest_restart_s"))
    seconds = [value for value in answer["restarts"] if value] or [math.nan]
    return {
        "n_restarts": len(answer["restarts"]),
        "median_restart_s": statistics.median(seconds),
        "slowest_restart_s": max(seconds),
    }


def strategy_name(method: str, start: str) -> str:
    """Return the name of a strategy in tables."""
    if method == meshes.METHOD:
        return f"{meshes.METHOD}: {start}"
    return f"{METHODS[method]}, from {NAMES[start]}" if method else NAMES[start]


def all_answers(question: SearchQuestion) -> tuple[list[dict[str, Any]], list[Note]]:
    """Return the answers of the question's spaces, and notes on meshes."""
    answers = [] if question.space == MESH else run_planner(question, interpreter())
    if question.space == SOAP:
        return answers, []
    rows, note = meshes.plan_meshes(
        question.graph,
        question.topology,
        question.batch,
        question.precision,
        question.numbers_of_parameter,
    )
    return [*answers, *rows], [note]


def search(
    question: SearchQuestion, out: Path | None = None, traces: Path | None = None, strategy: str | None = None
) -> None:
    """Search for the fastest strategies, and print or write their table.

    Args:
        question: The question.
        out: Files to write, without their suffix: the table, the strategies, figures. None: print the table
            alone.
        traces: Folder for the execution traces of a step.
        strategy: The strategy in them, as the table names it; None: the fastest.
    """
    if traces and question.space == MESH:
        problem, hint = "exports strategies of layers", f"set --space {SOAP}"
        raise InputError("conflicting-keys", problem, file="--chakra", got=question.space, hint=hint)
    answers, mesh_notes = all_answers(question)
    if any((answer["seconds"] or 0) >= NEVER / PICOSECONDS for answer in answers):
        raise InputError(
            "too-slow",
            f"a step takes more than {NEVER / PICOSECONDS:.0f} s, too long to simulate",
            file="--batch-size",
            got=question.batch,
            hint="give fewer samples, or faster --links or --topology",
        )
    if not any(answer["seconds"] for answer in answers):
        least_bytes = min(answer["memory_bytes"] for answer in answers)
        available = question.topology.device.memory_bytes
        raise InputError(
            "too-little-memory",
            NONE_FITS.format(least=format_bytes(least_bytes)),
            file=question.graph.model,
            got=least_bytes,
            expected=f"at most {format_bytes(available)} on a device",
            hint="search longer (--proposals, --restarts), or give a smaller --batch-size",
        )
    by_layers = [answer for answer in answers if "parts" in answer]
    names = [strategy_name(answer["method"], answer["start"]) for answer in by_layers]
    traced = chakra.choose_answer(by_layers, names, strategy) if traces else 0
    result = table(question, answers, mesh_notes)
    study = next((meshes.study_text(answer["levels"]) for answer in answers if answer.get("suggested")), "")
    if not out:
        print(tables.markdown(result))
        print(f"{STUDY_TITLE}\n\n{study}" if study else "", end="")
    if traces:
        chakra.export(question.job(), by_layers[traced]["parts"], names[traced], traces)
        print(f"{names[traced]}: execution traces in {display_path(traces)}")
    if not out:
        return
    with system_faults(out):
        tables.write(result, out)
        write_json(out.with_suffix(".json"), {"question": question.job(), "answers": answers})
        if study:
            write_text(out.with_name(f"{out.name}.study.yaml"), study)
        layers = [answer for answer in answers if "parts" in answer]
        for stem, (picture, caption) in (draw_figures(question, layers, out) if layers else {}).items():
            style.save(picture, stem)
            write_text(stem.with_name(f"{stem.name}.caption.md"), caption + "\n")


def draw_figures(
    question: SearchQuestion, answers: Sequence[dict[str, Any]], stem: Path
) -> dict[Path, tuple[Figure, str]]:
    """Return figures and captions by path: two starts and the fastest strategy as bars, and progress."""
    starts = {answer["start"]: answer for answer in answers if answer["method"] is None}
    fastest = min((answer for answer in answers if answer["seconds"]), key=lambda answer: answer["seconds"])
    strategies = {NAMES["data"]: starts["data"], NAMES["expert"]: starts["expert"], "the fastest": fastest}
    parts = {name: answer["parts"] for name, answer in strategies.items()}
    space = divide(question.graph, question.batch)
    return {
        stem: draw.bars(question.graph, space, parts, question.topology.devices),
        stem.with_name(f"{stem.name}.progress"): draw.progress(answers, METHODS | NAMES),
    }
