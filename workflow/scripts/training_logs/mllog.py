"""Read logs of MLPerf Training: lines with ``:::MLLOG {json}``.

Step times come from the first of these that a log has: ``tracked_stats`` with ``train_step_time``, the mean
since the previous one; blocks (``block_start`` to ``block_stop`` with ``samples_count``); or a throughput in
samples/s, whose intervals can contain evaluations. ``run_start`` to ``run_stop`` is the time to train.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import log
from statistics import median
from typing import Any

from training_logs.log import Log, LogError, Step, decimal, drop_unknown, plain_lines, positive

MARK = ":::MLLOG"
VALUES = {
    "submission_benchmark": "benchmark",
    "submission_org": "organization",
    "submission_platform": "platform",
    "global_batch_size": "global_batch",
    "gradient_accumulation_steps": "accumulation",
    "max_sequence_length": "sequence_length",
    "train_samples": "train_samples",
    "seed": "seed",
}
_DECODER = json.JSONDecoder()


@dataclass
class _Block:
    """The training between two evaluations: Unix times, and counts from the log."""

    begin: float
    end: float
    n_steps: float | None
    samples: float | None


@dataclass
class _Run:
    """The content of the events of one run, in the order of the log."""

    facts: dict[str, str | int | float | None] = field(default_factory=dict)
    steps: list[tuple[float, dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    blocks: list[_Block] = field(default_factory=list)
    throughputs: list[tuple[float, float]] = field(default_factory=list)  # Unix time, samples/s
    block_start: tuple[float, float | None] | None = None  # Unix time, number of steps before
    begin: float | None = None
    evaluations: int = 0


def read(lines: Iterable[str]) -> Log:
    """Return the steps and facts of a log.

    Raises:
        LogError: If it has no event, or no times of steps, blocks or throughput.
    """
    run, damaged, events = _Run(), 0, 0
    for _, _, text in plain_lines(lines):
        for event in _events(text):
            if event is None:
                damaged += 1
            else:
                events += 1
                _add_event(run, event)
    if not events:
        raise LogError(0, "has no event", f"lines with '{MARK} {{...}}'")
    steps = _steps(run)
    if not steps:
        problem = "has neither times of steps nor blocks nor a throughput"
        raise LogError(0, problem, "tracked_stats with train_step_time, or block_stop with samples_count")
    facts = {**run.facts, "evaluations": run.evaluations or None, "damaged_lines": damaged}
    return Log(steps, drop_unknown({**facts, "started_at": run.begin}))


def _events(text: str) -> Iterator[dict[str, Any] | None]:
    """Yield the events of a line, None for a damaged one; two ranks can write into the same line."""
    for part in text.split(MARK)[1:]:
        try:
            event, _ = _DECODER.raw_decode(part.lstrip())
        except (ValueError, RecursionError):
            event = None
        is_event = isinstance(event, dict) and isinstance(event.get("key"), str)
        yield event if is_event and positive(event.get("time_ms")) else None


def _add_event(run: _Run, event: dict[str, Any]) -> None:
    """Add the content of an event to a run."""
    key, value, seconds = event["key"], event.get("value"), float(event["time_ms"]) / 1000
    metadata = event["metadata"] if isinstance(event.get("metadata"), dict) else {}
    if key in VALUES and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        run.facts.setdefault(VALUES[key], " ".join(value.split()) if isinstance(value, str) else value)
    elif key == "run_start" and run.begin is None:
        run.begin = seconds
    elif key == "run_stop" and run.begin is not None:
        run.facts["run_seconds"] = seconds - run.begin
        if isinstance(status := metadata.get("status"), str):
            run.facts["status"] = " ".join(status.split())
    elif key == "eval_stop":
        run.evaluations += 1
    elif key == "block_start":
        run.block_start = seconds, _count(metadata.get("step"))
    elif key == "block_stop" and run.block_start is not None:
        (begin, before), after = run.block_start, _count(metadata.get("step"))
        n_steps = after - before if before is not None and after is not None else None
        run.blocks.append(_Block(begin, seconds, n_steps, positive(metadata.get("samples_count"))))
        run.block_start = None
    elif key == "tracked_stats" and isinstance(value, dict):
        if positive(value.get("train_step_time")) and "step" in metadata and "throughput" not in value:
            run.steps.append((seconds, value, metadata))
        elif rate := positive(value.get("throughput")):
            run.throughputs.append((seconds, rate))


def _steps(run: _Run) -> tuple[Step, ...]:
    batch, sequence = positive(run.facts.get("global_batch")), positive(run.facts.get("sequence_length"))
    if run.steps:
        steps = _logged_steps(run, batch)
    else:
        steps = (_block_steps(run, batch) or _throughput_steps(run, batch)) if batch else ()
    tokens = batch * sequence if batch and sequence else None
    return tuple(replace(step, samples=batch, tokens=tokens) for step in steps)


def _logged_steps(run: _Run, batch: float | None) -> tuple[Step, ...]:
    """Return the steps of ``tracked_stats``.

    Their indices count steps from 0 or 1, or samples, depending on the benchmark.
    """
    scale = batch if batch and _counts_samples(run, batch) else 1.0
    steps: list[Step] = []
    for ended_at, value, metadata in run.steps:
        index = int((positive(metadata["step"]) or 0.0) / scale)
        gap = index - steps[-1].index if steps else index + (scale == 1.0)
        if gap < 1 or gap > 1e9:
            continue  # Another rank logged the same step.
        seconds = float(value["train_step_time"])
        loss = next((value[name] for name in ("reduced_train_loss", "train_loss") if name in value), None)
        loss = float(loss) if isinstance(loss, (int, float)) else None
        steps.append(Step(index, seconds, loss=loss, started_at=ended_at - seconds * gap, n_steps=gap))
    return tuple(steps)


def _counts_samples(run: _Run, batch: float) -> bool:
    """Return whether indices count samples; then clocks advance by one step time per batch of samples."""
    ratios = []
    for (begin, _, before), (end, value, metadata) in pairwise(run.steps):
        first, last = positive(before["step"]) or 0.0, positive(metadata["step"]) or 0.0
        if last > first and end > begin:
            ratios.append((end - begin) / (float(value["train_step_time"]) * (last - first)))
    if not ratios or batch <= 1:
        return False
    ratio = median(ratios)
    return abs(log(ratio * batch)) < abs(log(ratio))


def _block_steps(run: _Run, batch: float) -> tuple[Step, ...]:
    """Return one entry per block.

    `samples_count` is cumulative if it increases from block to block; otherwise it counts the block's
    samples.
    """
    samples = [block.samples for block in run.blocks if block.samples]
    is_total = len(samples) > 1 and all(later > earlier for earlier, later in pairwise(samples))
    steps, before, index = [], 0.0, 0
    for block in run.blocks:
        counted = (block.samples or 0.0) - (before if is_total else 0.0)
        before = block.samples or before
        n_steps = round(block.n_steps or counted / batch)
        if n_steps < 1 or not block.end > block.begin:
            continue
        index += n_steps
        seconds = (block.end - block.begin) / n_steps
        steps.append(Step(index, seconds, started_at=block.begin, n_steps=n_steps))
    return tuple(steps)


def _throughput_steps(run: _Run, batch: float) -> tuple[Step, ...]:
    steps, index, before = [], 0, run.begin
    for logged_at, rate in run.throughputs:
        seconds = batch / rate
        elapsed = logged_at - before if before is not None else 0.0
        n_steps = max(1, round(elapsed / seconds))
        index += n_steps
        before = logged_at
        steps.append(Step(index, seconds, n_steps=n_steps))
    return tuple(steps)


def _count(value: object) -> float | None:
    number = decimal(value)
    return number if number is not None and number >= 0 else None
