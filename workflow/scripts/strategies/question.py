"""Check a question about strategies: a model, the devices and the settings of the search.

Devices and links come from a file in config/topologies/. Options can change the number of devices and the
rates of links.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.errors import InputError, check_range
from common.text import alternatives
from common.units import GBIT_BYTES, MIB
from declared.topologies import MIN_GBIT_S, load_topology
from models.graph import Graph
from models.layout import BUCKET_BYTES, BucketBytes
from models.listing import inputs_of, parse_image, parse_tokens
from models.named import IMAGES, PIXELS, TOKENS, graph, models
from models.precision import FP32
from models.soap import divide
from strategies.costs import MeasuredCost
from strategies.parts import time_parts
from strategies.problem import FASTEST, GRADIENTS, RING
from strategies.topology import NUMBER_BYTES, LinkTier, Topology, read_topology

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
START_TITLES = {
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
    costs: Sequence[MeasuredCost] | None = None
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
    check_names("--starts", starts, START_TITLES)
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
    """Return MESH if a model's layers cannot be partitioned or take too long to search, else ALL_SPACES."""
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
    return gbit_s * GBIT_BYTES
