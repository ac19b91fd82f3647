"""Read a log of a training as one run: its facts, and its steps after warm-up."""

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

# Values of a table of steps -> their names in training_logs.step_table.
STEP_COLUMNS = {
    "seconds": "seconds",
    "global_batch": "samples",
    "started_at": "clock",
    "step": "index",
    "tokens": "tokens",
    "loss": "loss",
}
# Facts of logs -> their names as values.
FACT_VALUES = {"accumulation": "sync_every", "run_seconds": "run_s", "benchmark": "model"}
# First steps count as warm-up while they take longer than this many times the median of the later half. Of
# 136 logs of MLPerf Training v5.1, 129 begin at up to 1.4 times that, and 7 at 2.2 to 8 times.
WARMUP_RATIO = 1.5
SLOW_STEPS_RATIO = 1.05  # mean over median; 78 of 1,662 logs of MLPerf Training v5.1 are above
MAX_WARMUP_SHARE = 0.5  # of the steps of a log; more are no warm-up
MIN_TIMED_STEPS = 3


@dataclass(frozen=True)
class LogRun:
    """A run of a log, the warm-up steps that are left out, and findings and notes about it."""

    run: Measurement
    warmup_steps: int
    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()


def read_log_run(path: Path, format_name: str, reading: Reading) -> LogRun:
    """Return the run of a log.

    Args:
        path: The file.
        format_name: One of training_logs.formats.FORMATS.
        reading: How files are read: values that are left out, columns and unit of a table of steps, and
            optimizer steps that do not count as warm-up (None: as many as the log shows).

    Raises:
        InputError: If it is no such log.
    """
    place = display_path(path)
    try:
        log = _read(path, format_name, reading)
    except LogError as error:
        raise broken_file(path, error) from None
    notes: list[Note] = []
    if (steps := with_usual_batch(log.steps)) != log.steps:
        text = (
            f"of {len(log.steps)} times, {len(steps)} have the batch of most steps; the others are left out"
        )
        notes.append(Note("batch-changes", text, steps=len(steps)))
        log = replace(log, steps=steps, facts={k: v for k, v in log.facts.items() if k != "global_batch"})
    values = _values(log, reading, place)
    if format_name == "mllog":
        values = {**_system_description(path), **values}
    values = {name: value for name, value in values.items() if reading.columns.get(name) != ""}
    warmup_steps = reading.warmup_steps
    n_warmup = found_warmup(log.steps) if warmup_steps is None else warmup_steps
    timed = log.timed_steps(n_warmup)
    findings: list[Finding] = []
    if not timed:
        problem = (
            f"has no step after {n_warmup} of warm-up, of {sum(step.n_steps for step in log.steps)} steps"
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
        text = f"has {len(log.steps)} times, too few to tell warm-up from training"
        findings.append(Finding("warm-up", place, text, "log more often, or state --warmup-steps N"))
    if damaged := log.facts.get("damaged_lines"):
        text = f"{damaged} lines are cut off or mixed with others, and are left out"
        notes.append(Note("damaged-lines", text, lines=damaged))
    if restarts := log.facts.get("restarts"):
        text = f"after {number_of(int(restarts), 'restart')}, warm-up is left out again"
        notes.append(Note("restarts", text, restarts=restarts))
    return LogRun(Measurement(place, values, steps=timed), n_warmup, tuple(findings), tuple(notes))


def _read(path: Path, format_name: str, reading: Reading) -> Log:
    """Return a log; of a table of steps, with the columns and the unit that are stated."""
    if format_name != "steps":
        return read_log(path, format_name)
    columns = {STEP_COLUMNS[name]: column for name, column in reading.columns.items() if name in STEP_COLUMNS}
    return step_table.read(
        text_lines(path), {name: text for name, text in columns.items() if text}, reading.unit
    )


def with_usual_batch(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the steps whose samples are those of most optimizer steps, as after a ramp of the batch size."""
    counts: Counter[float | None] = Counter()
    for step in steps:
        counts[step.samples] += step.n_steps
    return tuple(step for step in steps if step.samples == max(counts, key=lambda batch: counts[batch]))


def found_warmup(steps: Sequence[Step]) -> int:
    """Return how many first optimizer steps a log shows as warm-up: those before the first usual time."""
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
    """Return the median time of an optimizer step, s, of intervals weighted by their steps."""
    ordered = sorted(steps, key=lambda step: step.seconds)
    half, passed = sum(step.n_steps for step in ordered) / 2, 0
    for step in ordered:
        passed += step.n_steps
        if passed >= half:
            return step.seconds
    raise ValueError("no steps")


def _values(log: Log, reading: Reading, place: str) -> dict[str, Any]:
    """Return the facts of a log as values, and batch and sequence length of its steps."""
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
                problem = f"{content} is no precision"
                raise InputError("bad-value", problem, file=place, got=content, hint=hint) from None
    samples = {step.samples for step in log.steps if step.samples}
    if "global_batch" not in values and len(samples) == 1:
        values["global_batch"] = samples.pop()
    return values


def _system_description(path: Path) -> dict[str, Any]:
    """Return MLPerf's description of the system, ``systems/SYSTEM.json`` beside ``results/``.

    A log lies in ``results/SYSTEM/BENCHMARK/``.
    """
    file = system_file(path)
    if file is None:
        return {}
    try:  # some of MLPerf's descriptions have a key twice
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
    """Return MLPerf's description of the system of a log, None if there is none."""
    parents = path.resolve().parents
    if len(parents) < 4:
        return None
    file = parents[2] / "systems" / f"{parents[1].name}.json"
    if parents[2].name == "results":
        file = parents[3] / "systems" / f"{parents[1].name}.json"
    return file if file.is_file() else None
