"""Check a question about scaling: how many nodes are worth it (`ringside predict`).

The answer uses the cells of a measured study, or numbers alone, which need no campaign: a model's size, the
time of an optimizer step on one device or at a few scales, the rates of links. With a study and numbers, the
study's collective benchmark is used for another model.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from common.errors import InputError, check_range
from common.text import alternatives
from models.graph import BYTES
from prediction.message_times import described_frameworks
from prediction.worth import MIN_DOUBLING_GAIN

RATES = (1.0, 10.0, 25.0, 100.0)  # Gbit/s
GIGABIT_BYTES = 1e9 / 8
MAX_NODES = 1024
DEFAULT_FRAMEWORK = "pytorch-ddp"
MAX_GRADIENT_BYTES, MAX_SAMPLES, MAX_COUNT = 1e15, 10**15, 10**9
STEP_LIMITS_S = (1e-9, 1e6)
_MEASURED_STEP = re.compile(r"([1-9][0-9]*)x([1-9][0-9]*)=([0-9.eE+-]+)")


def _limited(default: Any, low: float, high: float, option: str = "") -> Any:
    """Return the dataclass field of an option with this default, and with limits of its numbers.

    `option` is the option's name, if it is not that of the field.
    """
    return field(default=default, metadata={"limits": (low, high), "option": option})


@dataclass(frozen=True)
class ScalingQuestion:
    """A checked question. Its fields are the options of `ringside predict`, with their defaults.

    Attributes:
        folder: Folder of a measured study. Without `measured_steps`, the question is about its models.
        measured_steps: Nodes, devices of a node, and seconds of an optimizer step at each measured scale.
        batch_size: Samples per device in each batch.
        sync_every: Batches of an optimizer step.
        samples: Samples of an epoch.
        parameters: Size of the model; one of `model`, `parameters` and `gradient_bytes` states it.
        rates_gbit_s: Rates of links between nodes; the answer has a curve for each. The first one is also
            that of the links between which `measured_steps` were measured.
        inside_rate_gbit_s: Rate of a device's links inside a node.
        framework: The framework that sends the messages; None: the only one in the study's benchmark, or
            DEFAULT_FRAMEWORK.
        max_nodes: The largest number of nodes that is considered.
        at: Numbers of nodes that the answer lists one by one.
        epochs: Epochs of node hours and cost.
        price: Price of a node hour; None: the study's price.
        min_gain: Share of the ideal that a doubling of nodes has to gain to be worth it.
        measurable: The largest number of nodes that can be measured next.
    """

    folder: Path | None = None
    measured_steps: tuple[tuple[int, int, float], ...] = ()
    model: str | None = None
    dataset: str = "synthetic-224x224x3-1000"
    framework: str | None = None
    batch_size: int = _limited(32, 1, MAX_COUNT)
    samples: int = _limited(1281167, 1, MAX_SAMPLES)
    parameters: float | None = _limited(None, 1, MAX_GRADIENT_BYTES / BYTES)
    gradient_bytes: float | None = _limited(None, 1, MAX_GRADIENT_BYTES)
    sync_every: int = _limited(1, 1, MAX_COUNT)
    rates_gbit_s: tuple[float, ...] = _limited(RATES, 1e-6, 1e6, "rate")
    inside_rate_gbit_s: float | None = _limited(None, 1e-6, 1e6, "inside_rate")
    max_nodes: int = _limited(MAX_NODES, 1, MAX_COUNT, "nodes")
    at: tuple[int, ...] = _limited((), 1, MAX_COUNT)
    epochs: float = _limited(1.0, 1e-9, MAX_COUNT)
    price: float | None = _limited(None, 0, 1e9)
    min_gain: float = _limited(MIN_DOUBLING_GAIN, 0.01, 1.0)
    measurable: int | None = _limited(None, 1, MAX_COUNT)

    @property
    def measured_rate_bytes_s(self) -> float:
        """The rate of the links between the nodes of `measured_steps`."""
        return GIGABIT_BYTES * self.rates_gbit_s[0]


# Options about a model if the user states its size and times.
NUMBER_OPTIONS = ("batch_size", "samples", "dataset", "sync_every", "framework", "inside_rate")
SIZE_OPTIONS = ("model", "parameters", "gradient_bytes")


def build_question(
    *, from_: Path | None = None, step_time: float | None = None, measured: Sequence[str] = (), **options: Any
) -> ScalingQuestion:
    """Return the question that options of `ringside predict` describe, after checking them.

    Args:
        from_: Folder of a measured study.
        step_time: Seconds of an optimizer step on one device.
        measured: Other scales with their seconds, such as 2x8=0.31.
        options: Options of other fields of ScalingQuestion; the rest have their defaults.

    Raises:
        InputError: If a number is out of its range, or the options contradict each other.
    """
    measured_steps = [*([] if step_time is None else [(1, 1, step_time)]), *map(_parse_step, measured)]
    if step_time is not None:
        check_range("--step-time", step_time, *STEP_LIMITS_S)
    values: dict[str, Any] = {
        name: options[name] for name in ("model", "dataset", "framework") if name in options
    }
    for limited in fields(ScalingQuestion):
        option = limited.metadata.get("option") or limited.name
        if option in options and "limits" in limited.metadata:
            numbers = options[option]
            values[limited.name] = tuple(numbers) if isinstance(numbers, Sequence) else numbers
            for number in numbers if isinstance(numbers, Sequence) else [numbers]:
                check_range(_flag(option), number, *limited.metadata["limits"])
    framework = options.get("framework")
    if framework is not None and framework not in (described := described_frameworks()):
        facts = {"file": "--framework", "got": framework, **alternatives(framework, described)}
        raise InputError("unknown-name", f"'{framework}' is unknown", **facts)
    _check_combination(options, from_, measured_steps)
    _check_distinct(measured_steps)
    question = ScalingQuestion(from_, tuple(sorted(measured_steps)), **values)
    if question.samples < question.batch_size:
        problem, expected = (
            f"{question.samples} is too small",
            f"at least the batch size, {question.batch_size}",
        )
        raise InputError("out-of-range", problem, file="--samples", got=question.samples, expected=expected)
    return question


def _parse_step(text: str) -> tuple[int, int, float]:
    """Return nodes, devices of a node and seconds of an optimizer step from a text such as 2x8=0.31."""
    match = _MEASURED_STEP.fullmatch(text)
    with suppress(ValueError):
        if match:
            nodes, devices, step_s = int(match[1]), int(match[2]), float(match[3])
            check_range("--measured", step_s, *STEP_LIMITS_S)
            for count in (nodes, devices):
                check_range("--measured", count, 1, MAX_COUNT)
            return nodes, devices, step_s
    expected = "NODESxDEVICES=SECONDS of an optimizer step, such as 2x8=0.31"
    raise InputError(
        "wrong-format", f"'{text}' is not a scale", file="--measured", got=text, expected=expected
    )


def _check_distinct(measured_steps: Sequence[tuple[int, int, float]]) -> None:
    """Raise InputError if a scale is given twice."""
    for (nodes, devices), count in Counter(step[:2] for step in measured_steps).items():
        if count > 1:
            text, hint = f"{nodes}x{devices}", "give the mean of its times"
            raise InputError(
                "duplicate", f"{text} is given {count} times", file="--measured", got=text, hint=hint
            )


def _check_combination(
    options: Collection[str], study: Path | None, measured_steps: Sequence[tuple[int, int, float]]
) -> None:
    """Raise InputError if options are missing, or exclude each other."""
    sizes = [name for name in SIZE_OPTIONS if name in options]
    if "rate" not in options and any(n_nodes > 1 for n_nodes, _, _ in measured_steps):
        expected = "the rate of the links between the measured nodes, in Gbit/s"
        raise InputError("missing-key", "is missing", file="--rate", expected=expected)
    if not measured_steps and (sizes or not study):
        expected = "seconds of an optimizer step on one device"
        hint = "or --measured 1x8=SECONDS for each scale, or name a study with --from"
        raise InputError("missing-key", "is missing", file="--step-time", expected=expected, hint=hint)
    if measured_steps and len(sizes) != 1:
        raise InputError(
            "conflicting-keys" if sizes else "missing-key",
            "give one of --model, --parameters and --gradient-bytes: the size of a gradient all-reduce",
            got=[_flag(name) for name in sizes],
        )
    if not measured_steps:
        context = "with --from alone, which answers for the models of the study"
        _reject_options(options, NUMBER_OPTIONS, context, "add --step-time to ask about another model")
    elif "model" not in options:
        context = f"with {_flag(sizes[0])}, which gives the size of an all-reduce"
        _reject_options(options, ["dataset"], context, "leave it out")


def _reject_options(options: Collection[str], names: Iterable[str], context: str, hint: str) -> None:
    for name in names:
        if name in options:
            raise InputError("conflicting-keys", f"cannot be used {context}", file=_flag(name), hint=hint)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
