"""Read the log of a training as one run, with its facts and its steps after warm-up."""

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import display_path, require_regular
from common.notes import Note
from common.text import number_of
from declared.imported import Reading
from importers.measurement import Finding, Measurement
from importers.run_table import broken_file
from importers.values import VALUES, to_count, to_name, to_text
from training_logs import step_table
from training_logs.formats import read_log, text_lines
from training_logs.log import Log, LogError, Step

# Values (importers.values) in a table of steps -> their names in training_logs.step_table.
STEP_COLUMNS = {
    "seconds": "seconds",
    "global_batch": "samples",
    "started_at": "clock",
    "step": "index",
    "tokens": "tokens",
    "loss": "loss",
}
# Facts of logs with other names as values.
FACT_VALUES = {"accumulation": "sync_every", "run_seconds": "run_s", "benchmark": "model"}
# The first steps are warm-up while they take longer than this multiple of the median of the second half. Of
# 136 logs of MLPerf Training v5.1, 129 begin at up to 1.4 times the median, and 7 at 2.2 to 8 times.
WARMUP_RATIO = 1.5
SLOW_STEPS_RATIO = 1.05  # mean over median; 78 of 1,662 logs of MLPerf Training v5.1 exceed it
MAX_WARMUP_SHARE = 0.5  # largest share of the entries of a log that can be warm-up
MIN_TIMED_STEPS = 3


@dataclass(frozen=True)
class LogRun:
    """The run in a log, the number of warm-up steps that are left out, and findings and notes about it."""

    run: Measurement
    warmup_steps: int
    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()


def read_log_run(path: Path, format_name: str, reading: Reading) -> LogRun:
    """Return the run in a log.

    Args:
        path: The file.
        format_name: One of training_logs.formats.FORMATS.
        reading: How files are read: values to leave out, columns and unit of a table of steps, and the number
            of warm-up steps (None: `count_warmup_steps`).

    Raises:
        InputError: If the file is not such a log, or has no steps after warm-up.
    """
    place = display_path(path)
    try:
        log = _read(path, format_name, reading)
    except LogError as error:
        raise broken_file(path, error) from None
    notes: list[Note] = []
    if (steps := keep_usual_batch(log.steps)) != log.steps:
        text = f"{len(steps)} of {len(log.steps)} times have the usual batch size; the others are left out"
        notes.append(Note("batch-changes", text, steps=len(steps)))
        log = replace(log, steps=steps, facts={k: v for k, v in log.facts.items() if k != "global_batch"})
    values = _values(log, reading, place)
    if format_name == "mllog":
        values = {**_system_description(path), **values}
    values = {name: value for name, value in values.items() if reading.columns.get(name) != ""}
    warmup_steps = reading.warmup_steps
    n_warmup = count_warmup_steps(log.steps) if warmup_steps is None else warmup_steps
    timed = log.timed_steps(n_warmup)
    findings: list[Finding] = []
    if not timed:
        problem = (
            f"has no step left of {sum(step.n_steps for step in log.steps)} after {n_warmup} warm-up steps"
        )
        raise InputError("out-of-range", problem, file=place, key="warmup_steps", got=n_warmup)
    if warmup_steps is None and n_warmup:
        slow = statistics.mean(step.seconds for step in log.steps if step not in timed)
        ratio = slow / statistics.median(step.seconds for step in timed)
        text = f"the first {n_warmup} steps take {ratio:.1f} times as long, and are left out as warm-up"
        notes.append(Note("warm-up", text, steps=n_warmup, ratio=ratio))
    mean, median = step_seconds(timed), median_seconds(timed)
    if mean > SLOW_STEPS_RATIO * median:
        text = (
            f"slow steps, such as checkpoints, make the mean {mean / median - 1:.0%} longer than the median"
        )
        notes.append(Note("slow-steps", f"{text}; epoch times contain them", mean=mean, median=median))
    if format_name == "trainer":
        text, hint = (
            "has only the mean of the whole training, with its warm-up",
            "import a log with times of steps",
        )
        findings.append(Finding("warm-up", place, text, hint))
    elif warmup_steps is None and len(log.steps) < MIN_TIMED_STEPS:
        text = f"has {len(log.steps)} times, too few to distinguish warm-up from training"
        findings.append(Finding("warm-up", place, text, "log more often, or state --warmup-steps N"))
    if damaged := log.facts.get("damaged_lines"):
        text = f"{damaged} lines are cut off or mixed with others, and are left out"
        notes.append(Note("damaged-lines", text, lines=damaged))
    if restarts := log.facts.get("restarts"):
        text = f"after {number_of(int(restarts), 'restart')}, warm-up is left out again"
        notes.append(Note("restarts", text, restarts=restarts))
    return LogRun(Measurement(place, values, steps=timed), n_warmup, tuple(findings), tuple(notes))


def _read(path: Path, format_name: str, reading: Reading) -> Log:
    """Return a log; a table of steps is read with the stated columns and unit."""
    if format_name != "steps":
        return read_log(path, format_name)
    columns = {STEP_COLUMNS[name]: column for name, column in reading.columns.items() if name in STEP_COLUMNS}
    return step_table.read(
        text_lines(path), {name: text for name, text in columns.items() if text}, reading.unit
    )


def keep_usual_batch(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the entries with the batch size of most optimizer steps, leaving out a batch-size ramp."""
    counts: Counter[float | None] = Counter()
    for step in steps:
        counts[step.samples] += step.n_steps
    return tuple(step for step in steps if step.samples == max(counts, key=lambda batch: counts[batch]))


def count_warmup_steps(steps: Sequence[Step]) -> int:
    """Return the number of optimizer steps before the first usual time, the largest over all segments.

    A time is usual up to WARMUP_RATIO times the median of the second half.
    """
    if len(steps) < MIN_TIMED_STEPS:
        return 0
    usual = statistics.median(step.seconds for step in steps[len(steps) // 2 :])
    longest = 0
    for segment in {step.segment for step in steps}:
        passed = 0
        within = [step for step in steps if step.segment == segment]
        for place, step in enumerate(within):
            if step.seconds <= WARMUP_RATIO * usual or place >= MAX_WARMUP_SHARE * len(within):
                break
            passed += step.n_steps
        longest = max(longest, passed)
    return longest


def step_seconds(steps: Sequence[Step]) -> float:
    """Return the mean time of an optimizer step, s."""
    count = sum(step.n_steps for step in steps)
    return sum(step.seconds * step.n_steps for step in steps) / count


def median_seconds(steps: Sequence[Step]) -> float:
    """Return the median time of an optimizer step, s; entries count by their number of steps."""
    ordered = sorted(steps, key=lambda step: step.seconds)
    half, passed = sum(step.n_steps for step in ordered) / 2, 0
    for step in ordered:
        passed += step.n_steps
        if passed >= half:
            return step.seconds
    raise ValueError("no steps")


def _values(log: Log, reading: Reading, place: str) -> dict[str, Any]:
    """Return the facts of a log as values (importers.values), with the batch size of its steps."""
    values: dict[str, Any] = {}
    for fact, content in log.facts.items():
        name = FACT_VALUES.get(fact, fact)
        if name not in VALUES:
            continue
        try:
            values[name] = VALUES[name].parse(str(content))
        except ValueError as error:
            if name == "precision" and "precision" not in reading.columns:
                hint = f"{error}; --column precision= --precision amp counts it as mixed precision"
                problem = f"{content} is not a precision"
                raise InputError("bad-value", problem, file=place, got=content, hint=hint) from None
    samples = {step.samples for step in log.steps if step.samples}
    if "global_batch" not in values and len(samples) == 1:
        values["global_batch"] = samples.pop()
    return values


def _system_description(path: Path) -> dict[str, Any]:
    """Return values from MLPerf's description of a log's system (see `system_file`); {} if there is none.

    Raises:
        InputError: If the description is not JSON.
    """
    file = system_file(path)
    if file is None:
        return {}
    try:  # Unlike read_json, json.loads accepts repeated keys, which some of MLPerf's descriptions have.
        content = json.loads(require_regular(file).read_text(encoding="utf-8", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise InputError("broken-file", f"is not valid JSON: {error}", file=file) from None
    if not isinstance(content, dict):
        return {}
    names = {
        "nodes": ("number_of_nodes", to_count),
        "devices_per_node": ("accelerators_per_node", to_count),
        "device": ("accelerator_model_name", to_text),
        "framework": ("framework", to_name),
    }
    values: dict[str, Any] = {}
    for name, (key, parse) in names.items():
        try:
            values[name] = parse(str(content.get(key, "")))
        except ValueError:
            continue
    return {name: value for name, value in values.items() if value}


def system_file(path: Path) -> Path | None:
    """Return MLPerf's description of the system of a log, or None if there is none.

    A log lies in ``results/SYSTEM/BENCHMARK/``, the description in ``systems/SYSTEM.json`` next to
    ``results/``.
    """
    parents = path.resolve().parents
    if len(parents) < 4:
        return None
    file = parents[2] / "systems" / f"{parents[1].name}.json"
    if parents[2].name == "results":
        file = parents[3] / "systems" / f"{parents[1].name}.json"
    return file if file.is_file() else None
