"""Read logs of torchtitan, and of programs that print lines in its format for each logged step.

    [rank0]:[titan] 2026-05-03 10:00:22,511 - root - INFO - step: 20  loss:  6.2250  grad_norm:  1.21
    memory:  1.41GiB(1.79%)  tps: 7,282  tflops: 18.36  mfu: 1.86%

(one line). ``tps`` is tokens/s of one device since the previous line; older versions write ``wps``. With n
devices, a step takes ``global batch size x sequence length / (tps x n)``, up to the rounding of tps. If the
log lacks these numbers, the time is the difference between the clocks of two lines.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod

from training_logs.log import (
    Log,
    LogError,
    Step,
    StepCollector,
    decimal,
    drop_unknown,
    natural_number,
    plain_lines,
    positive,
    unix_time,
)

MARK = "tps:"
_STEP = re.compile(r"\bstep:\s*(\d+)\s+loss:\s*(-?[\d.]+|nan|-?inf)\b(.*)", re.DOTALL)
_RATE = re.compile(r"\b[tw]ps:\s*([\d,]+)(?=\s)")
_CLOCK = re.compile(r"\b(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d{3,6})")
_TRAINER = re.compile(
    r"\bwith local batch size (\d+), global batch size (\d+)"
    r"(?:, gradient[ _]accumulation[ _]steps:? (\d+))?.{0,100}?sequence length (\d+)"
)
_MESH = re.compile(r"Building device mesh with parallelism: ((?:\w+=\d{1,9}(?:, )?)+)")
_OLD_MESH = re.compile(r"Building \d-D device mesh with \[(.{0,200}?)\], \[([\d, ]+)\]")
_MODEL = re.compile(r"Model (.{1,200}?) size: ([\d,]+) total parameters")
_DEVICE = re.compile(r"\b\w{1,20} capacity: (.{1,200}?) with [\d.]+GiB memory")
_START = re.compile(r"Training starts at step (\d{1,15})\b")
AXES = {"pp": "pipeline_parallel", "dp_replicate": "data_parallel", "dp_shard": "sharded_parallel",
        "cp": "context_parallel", "tp": "tensor_parallel"}  # fmt: skip


@dataclass
class _Rank:
    """The steps that one rank printed, and tokens/s per device at each step."""

    collector: StepCollector = field(default_factory=StepCollector)
    rates: list[float] = field(default_factory=list)


def read(lines: Iterable[str]) -> Log:
    """Return facts and the steps of the rank that printed the most steps, the lowest of several.

    Raises:
        LogError: If the log has no steps, or neither clocks nor the numbers that times are computed from.
    """
    ranks: dict[str, _Rank] = defaultdict(_Rank)
    facts: dict[str, str | int | float | None] = {"framework": "torchtitan"}
    damaged = last = 0
    for number, rank, text in plain_lines(lines):
        last = number
        if match := _STEP.search(text):
            rate, clock = _RATE.search(match[3]), _CLOCK.search(text)
            if "validate step" in text:
                continue
            if rate is None or len(match[1]) > 15:
                damaged += 1
            else:
                step = Step(
                    int(match[1]),
                    0.0,
                    loss=decimal(match[2]),
                    started_at=unix_time(clock[1]) if clock else None,
                )
                if ranks[rank].collector.add(step):
                    ranks[rank].rates.append(positive(rate[1].replace(",", "")) or 0.0)
        else:
            facts = _header(text) | facts
            if match := _START.search(text):
                ranks[rank].collector.restart(int(match[1]) - 1)
    read_ranks = {rank: steps for rank, steps in ranks.items() if len(steps.collector)}
    if not read_ranks:
        raise LogError(0, f"has no step in {last} lines", "lines with 'step: N  loss: L  ...  tps: T'")
    chosen = min(read_ranks, key=lambda rank: (-len(read_ranks[rank].collector), int(rank or 0)))
    steps = _compute_times(read_ranks[chosen], facts)
    first = next(iter(steps))
    return Log(
        steps,
        drop_unknown(
            {
                **facts,
                "started_at": first.started_at,
                "restarts": ranks[chosen].collector.restarts,
                "damaged_lines": damaged,
            }
        ),
    )


def _header(text: str) -> dict[str, str | int | float | None]:
    """Return the facts in a line of the log's header, or {}."""
    if match := _TRAINER.search(text):
        return {
            "local_batch": natural_number(match[1]),
            "global_batch": natural_number(match[2]),
            "accumulation": natural_number(match[3]),
            "sequence_length": natural_number(match[4]),
        }
    if match := _MESH.search(text):
        sizes = {name: int(size) for name, size in re.findall(r"(\w+)=(\d{1,9})", match[1])}
    elif match := _OLD_MESH.search(text):
        names = re.findall(r"\w+", match[1])
        numbers = [int(size) for size in re.findall(r"\d{1,9}", match[2])]
        sizes = dict(zip(names, numbers, strict=False))
    elif match := _MODEL.search(text):
        return {
            "model": "-".join(match[1].lower().split()),
            "parameters": natural_number(match[2].replace(",", "")),
        }
    elif match := _DEVICE.search(text):
        return {"device": match[1]}
    else:
        return {}
    axes = {fact: sizes[axis] for axis, fact in AXES.items() if sizes.get(axis, 0) > 0}
    return {**axes, "devices": prod(axes.values())} if axes else {}


def _compute_times(rank: _Rank, facts: dict[str, str | int | float | None]) -> tuple[Step, ...]:
    """Return the steps with times, samples and tokens."""
    batch, sequence, devices = (
        positive(facts.get(name)) for name in ("global_batch", "sequence_length", "devices")
    )
    tokens = batch * sequence if batch and sequence else None
    steps = rank.collector.steps()
    clocks = [None, *(_clock_seconds(*pair) for pair in pairwise(steps))]
    timed = []
    for step, rate, by_clock in zip(steps, rank.rates, clocks, strict=True):
        by_rate = tokens / (rate * devices) if tokens and devices and rate else None
        seconds = _choose_step_time(by_rate, rate, by_clock, step.n_steps)
        if seconds is None or not seconds > 0:
            continue
        began = None if step.started_at is None else step.started_at - seconds * step.n_steps
        timed.append(replace(step, seconds=seconds, samples=batch, tokens=tokens, started_at=began))
    if not timed:
        problem = "has neither clocks nor batch size, sequence length and number of devices"
        raise LogError(0, problem, "lines with 'Trainer is initialized with' and 'Building device mesh'")
    return tuple(timed)


def _clock_seconds(earlier: Step, later: Step) -> float | None:
    if earlier.segment != later.segment or earlier.started_at is None or later.started_at is None:
        return None
    return (later.started_at - earlier.started_at) / later.n_steps


def _choose_step_time(
    by_rate: float | None, rate: float, by_clock: float | None, n_steps: int
) -> float | None:
    """Return the more precise of two step times.

    The rate is rounded to a whole number, and clocks have a resolution of 1 ms. The time by the clock counts
    only if both times agree within these errors.
    """
    if by_rate is None or by_clock is None:
        return by_rate or by_clock
    rate_error, clock_error = 0.5 / rate, 0.001 / (by_rate * n_steps)
    agrees = abs(by_clock - by_rate) <= by_rate * (rate_error + clock_error)
    return by_clock if agrees and clock_error < rate_error else by_rate
