"""Answer how many nodes are worth it, for a study or for a model that was not measured (`ringside predict`).

The answer uses a measured study (its computation, its law of the network, overlap and waiting, with intervals
of a parametric bootstrap), or numbers alone, which need no campaign: a model's size, the time of a step on
one device, the network. With a study and a step time the study's network is used for another model.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.text import alternatives
from models.graph import BYTES
from prediction import communication, law

RATES = (1.0, 10.0, 25.0, 100.0)  # Gbit/s
MAX_NODES = 1024
DEFAULT_FRAMEWORK = "pytorch-ddp"
MAX_GRADIENT_BYTES, MAX_SAMPLES, MAX_COUNT = 1e15, 10**15, 10**9
STEP_DEFAULTS: dict[str, Any] = {
    "batch_size": 32,
    "samples": 1281167,
    "dataset": "synthetic-224x224x3-1000",
    "sync_every": 1,
    "framework": None,
}
NETWORK_DEFAULTS: dict[str, Any] = {
    "latency": 30e-6,
    "share": 0.9,
    "algorithm": "ring",
    "hidden": 0.0,
    "scatter": 0.0,
}
LIMITS: dict[str, tuple[float, float]] = {
    "step_time": (1e-9, 1e6),
    "batch_size": (1, MAX_COUNT),
    "samples": (1, MAX_SAMPLES),
    "parameters": (1, MAX_GRADIENT_BYTES / BYTES),
    "gradient_bytes": (1, MAX_GRADIENT_BYTES),
    "sync_every": (1, MAX_COUNT),
    "rate": (1e-6, 1e6),
    "latency": (0, 1e3),
    "share": (1e-6, 1),
    "hidden": (0, 1),
    "scatter": (0, 1e3),
    "nodes": (1, MAX_COUNT),
}


@dataclass(frozen=True)
class Question:
    """A checked question.

    `study` is the folder of a measured study; without a step time, the question is about this study alone.
    """

    study: Path | None
    step_time: float | None
    batch_size: int
    samples: int
    model: str | None
    dataset: str
    parameters: float | None
    gradient_bytes: float | None
    sync_every: int
    rate: tuple[float, ...]
    latency: float
    share: float
    algorithm: str
    framework: str | None
    hidden: float
    scatter: float
    nodes: int


def ask(
    *,
    from_: Path | None = None,
    step_time: float | None = None,
    batch_size: int | None = None,
    samples: int | None = None,
    model: str | None = None,
    dataset: str | None = None,
    parameters: float | None = None,
    gradient_bytes: float | None = None,
    sync_every: int | None = None,
    rate: Sequence[float] = (),
    latency: float | None = None,
    share: float | None = None,
    algorithm: str | None = None,
    framework: str | None = None,
    hidden: float | None = None,
    scatter: float | None = None,
    nodes: int = MAX_NODES,
) -> Question:
    """Return the question that these options make; None stands for an option that was not given.

    Raises:
        InputError: If a number is out of its range, or the options contradict each other.
    """
    options: dict[str, Any] = {
        "step_time": step_time,
        "batch_size": batch_size,
        "samples": samples,
        "model": model,
        "dataset": dataset,
        "parameters": parameters,
        "gradient_bytes": gradient_bytes,
        "sync_every": sync_every,
        "latency": latency,
        "share": share,
        "algorithm": algorithm,
        "framework": framework,
        "hidden": hidden,
        "scatter": scatter,
        "nodes": nodes,
    }
    rates = tuple(rate) or RATES
    for name, value in (*options.items(), *(("rate", single_rate) for single_rate in rates)):
        if name in LIMITS and value is not None:
            _check_range(name, value)
    _check_name("algorithm", algorithm, law.GROWTH)
    _check_name("framework", framework, communication.described_frameworks())
    _check_combination(options, from_)
    defaults = STEP_DEFAULTS | NETWORK_DEFAULTS
    values: dict[str, Any] = {
        name: defaults.get(name) if value is None else value for name, value in options.items()
    }
    question = Question(study=from_, rate=rates, **values)
    if question.samples < question.batch_size:
        problem, expected = f"{samples} is too small", f"at least the batch size, {question.batch_size}"
        raise InputError("out-of-range", problem, file="--samples", got=samples, expected=expected)
    return question


def _check_combination(options: dict[str, Any], study: Path | None) -> None:
    sizes = [name for name in ("model", "parameters", "gradient_bytes") if options[name] is not None]
    has_step = options["step_time"] is not None
    if not has_step and (sizes or not study):
        expected = "seconds of a training step on one device"
        hint = "or name a study with --from"
        raise InputError("missing-key", "is missing", file="--step-time", expected=expected, hint=hint)
    if has_step and len(sizes) != 1:
        raise InputError(
            "conflicting-keys" if sizes else "missing-key",
            "give one of --model, --parameters and --gradient-bytes: the size of a gradient all-reduce",
            got=[_option(name) for name in sizes],
        )
    if study:
        _reject_options(
            options,
            NETWORK_DEFAULTS,
            "with --from: it is taken from the study's benchmarks and runs",
            "leave it out",
        )
    if not has_step:
        context = "with --from alone, which answers for the models of the study"
        _reject_options(options, STEP_DEFAULTS, context, "add --step-time to ask about another model")
    elif options["model"] is None:
        _reject_options(
            options,
            ["dataset"],
            f"with {_option(sizes[0])}, which gives the size of an all-reduce",
            "leave it out",
        )


def _check_range(name: str, value: float) -> None:
    option, (minimum, maximum) = _option(name), LIMITS[name]
    if math.isnan(value):
        raise InputError("wrong-type", f"{value} is not a number", file=option, got=value)
    if value < minimum:
        problem = f"{value:g} is too small"
        raise InputError("out-of-range", problem, file=option, got=value, expected=f"at least {minimum:g}")
    if value > maximum:
        problem = f"{value:g} is too large"
        raise InputError("out-of-range", problem, file=option, got=value, expected=f"at most {maximum:g}")


def _check_name(name: str, value: str | None, names: Iterable[str]) -> None:
    if value is not None and value not in names:
        problem = f"'{value}' is unknown"
        raise InputError("unknown-name", problem, file=_option(name), got=value, **alternatives(value, names))


def _reject_options(options: dict[str, Any], names: Iterable[str], context: str, hint: str) -> None:
    for name in names:
        if options[name] is not None:
            raise InputError("conflicting-keys", f"cannot be used {context}", file=_option(name), hint=hint)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
