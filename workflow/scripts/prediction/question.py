"""Answer how many nodes are worth it, for a study or for a model that was not measured (`ringside predict`).

The answer uses the cells of a measured study, or numbers alone, which need no campaign: a model's size, the
time of a step on one device or at a few places, the rates of links. With a study and numbers the study's
collective benchmark is used for another model.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError, check_range
from common.text import alternatives
from models.graph import BYTES
from prediction.message_times import described_frameworks
from prediction.worth import SHARE

RATES = (1.0, 10.0, 25.0, 100.0)  # Gbit/s
GIGABIT = 1e9 / 8
MAX_NODES = 1024
DEFAULT_FRAMEWORK = "pytorch-ddp"
MAX_GRADIENT_BYTES, MAX_SAMPLES, MAX_COUNT = 1e15, 10**15, 10**9
STEP_DEFAULTS: dict[str, Any] = {
    "batch_size": 32, "samples": 1281167, "dataset": "synthetic-224x224x3-1000", "sync_every": 1,
    "framework": None, "inside_rate": None,
}  # fmt: skip
DEFAULTS: dict[str, Any] = {**STEP_DEFAULTS, "epochs": 1.0, "min_gain": SHARE}
LIMITS: dict[str, tuple[float, float]] = {
    "step_time": (1e-9, 1e6), "batch_size": (1, MAX_COUNT), "samples": (1, MAX_SAMPLES),
    "parameters": (1, MAX_GRADIENT_BYTES / BYTES), "gradient_bytes": (1, MAX_GRADIENT_BYTES),
    "sync_every": (1, MAX_COUNT), "rate": (1e-6, 1e6), "inside_rate": (1e-6, 1e6), "nodes": (1, MAX_COUNT),
    "at": (1, MAX_COUNT), "epochs": (1e-9, MAX_COUNT), "price": (0, 1e9), "min_gain": (0.01, 1.0),
    "measurable": (1, MAX_COUNT), "measured": (1e-9, 1e6),
}  # fmt: skip
_PLACE = re.compile(r"([1-9][0-9]*)x([1-9][0-9]*)=([0-9.eE+-]+)")


@dataclass(frozen=True)
class Question:
    """A checked question.

    `study` is the folder of a measured study; without places, the question is about this study alone.
    `places` are nodes, devices of a node and seconds of a step. Places on several nodes have links of the
    first rate. `at` are numbers of nodes that the answer tells one by one, `epochs` what node hours are for,
    and `price` is that of a node hour. A doubling that gains less than `min_gain` of the ideal is not worth
    it. `measurable` is the largest number of nodes that can be measured next.
    """

    study: Path | None
    places: tuple[tuple[int, int, float], ...]
    batch_size: int
    samples: int
    model: str | None
    dataset: str
    parameters: float | None
    gradient_bytes: float | None
    sync_every: int
    rate: tuple[float, ...]
    inside_rate: float | None
    framework: str | None
    nodes: int
    at: tuple[int, ...]
    epochs: float
    price: float | None
    min_gain: float
    measurable: int | None


def ask(
    *,
    from_: Path | None = None,
    step_time: float | None = None,
    measured: Sequence[str] = (),
    batch_size: int | None = None,
    samples: int | None = None,
    model: str | None = None,
    dataset: str | None = None,
    parameters: float | None = None,
    gradient_bytes: float | None = None,
    sync_every: int | None = None,
    rate: Sequence[float] = (),
    inside_rate: float | None = None,
    framework: str | None = None,
    nodes: int = MAX_NODES,
    at: Sequence[int] = (),
    epochs: float | None = None,
    price: float | None = None,
    min_gain: float | None = None,
    measurable: int | None = None,
) -> Question:
    """Return the question that these options make; None stands for an option that was not given.

    Raises:
        InputError: If a number is out of its range, or the options contradict each other.
    """
    options = dict(locals())
    for name in ("from_", "step_time", "measured", "rate", "at"):
        del options[name]
    places = [*([] if step_time is None else [(1, 1, step_time)]), *map(_parse_place, measured)]
    numbers: dict[str, Sequence[Any]] = {name: [value] for name, value in options.items()}
    numbers |= {"step_time": [step_time], "measured": [], "rate": rate, "at": at}
    for name, limits in LIMITS.items():
        for value in numbers[name]:
            check_range(_option(name), value, *limits)
    if framework is not None and framework not in (described := described_frameworks()):
        fields = {"file": "--framework", "got": framework, **alternatives(framework, described)}
        raise InputError("unknown-name", f"'{framework}' is unknown", **fields)
    _check_combination(options, from_, places, rate)
    _check_distinct(places)
    values: Any = {name: DEFAULTS.get(name) if value is None else value for name, value in options.items()}
    values |= {"rate": tuple(rate) or RATES, "at": tuple(sorted(set(at)))}
    question = Question(from_, tuple(sorted(places)), **values)
    if question.samples < question.batch_size:
        problem, expected = (
            f"{question.samples} is too small",
            f"at least the batch size, {question.batch_size}",
        )
        raise InputError("out-of-range", problem, file="--samples", got=question.samples, expected=expected)
    return question


def _parse_place(text: str) -> tuple[int, int, float]:
    """Return nodes, devices of a node and seconds of a step of a place, as 2x8=0.31."""
    match = _PLACE.fullmatch(text)
    with suppress(ValueError):
        if match:
            nodes, devices, step_s = int(match[1]), int(match[2]), float(match[3])
            check_range("--measured", step_s, *LIMITS["measured"])
            for count in (nodes, devices):
                check_range("--measured", count, *LIMITS["nodes"])
            return nodes, devices, step_s
    expected = "NODESxDEVICES=SECONDS of a step, as 2x8=0.31"
    raise InputError("wrong-format", f"'{text}' is no place", file="--measured", got=text, expected=expected)


def _check_distinct(places: Sequence[tuple[int, int, float]]) -> None:
    """Raise InputError if a place is given twice."""
    for (nodes, devices), count in Counter(own[:2] for own in places).items():
        if count > 1:
            place, hint = f"{nodes}x{devices}", "give the mean of its times"
            raise InputError(
                "duplicate", f"{place} is given {count} times", file="--measured", got=place, hint=hint
            )


def _check_combination(
    options: dict[str, Any],
    study: Path | None,
    places: Sequence[tuple[int, int, float]],
    rate: Sequence[float],
) -> None:
    sizes = [name for name in ("model", "parameters", "gradient_bytes") if options[name] is not None]
    if not rate and any(n_nodes > 1 for n_nodes, _, _ in places):
        expected = "the rate of the links between the measured nodes, in Gbit/s"
        raise InputError("missing-key", "is missing", file="--rate", expected=expected)
    if not places and (sizes or not study):
        expected = "seconds of a training step on one device"
        hint = "or --measured 1x8=SECONDS for each place, or name a study with --from"
        raise InputError("missing-key", "is missing", file="--step-time", expected=expected, hint=hint)
    if places and len(sizes) != 1:
        raise InputError(
            "conflicting-keys" if sizes else "missing-key",
            "give one of --model, --parameters and --gradient-bytes: the size of a gradient all-reduce",
            got=[_option(name) for name in sizes],
        )
    if not places:
        context = "with --from alone, which answers for the models of the study"
        _reject_options(options, STEP_DEFAULTS, context, "add --step-time to ask about another model")
    elif options["model"] is None:
        context = f"with {_option(sizes[0])}, which gives the size of an all-reduce"
        _reject_options(options, ["dataset"], context, "leave it out")


def _reject_options(options: dict[str, Any], names: Iterable[str], context: str, hint: str) -> None:
    for name in names:
        if options[name] is not None:
            raise InputError("conflicting-keys", f"cannot be used {context}", file=_option(name), hint=hint)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
