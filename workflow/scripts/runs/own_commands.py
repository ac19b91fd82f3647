"""Read the log of a user-supplied command after its run, and write epochs.csv and steps.csv as ranks do.

The time of an epoch is the mean time of its steps times the number of steps that the data set needs,
samples_per_epoch / effective_batch. Validation, checkpoints and everything else between steps do not count if
the log leaves them out of its step times.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from common.files import written_whole
from common.notes import Note
from declared.commands import Command
from environments.record import BuiltEnvironment
from plan.own_commands import planned_steps, run_values
from ranks.command.adapter import OUTPUT, PRINTED
from ranks.command.placeholders import fill
from ranks.worker.epoch_timer import COLUMNS
from runs.reasons import LOG_PREFIX
from training_logs.formats import read_log
from training_logs.log import Log, LogError, Step

ZERO_BASED = ("lightning",)  # formats that number steps from 0
MAX_BATCH_ERROR = 0.01  # relative error of the samples of a step that a log states or implies
MAX_TIME_ERROR = 0.02  # rounded steps can take longer than the run by this


@dataclass(frozen=True)
class CommandTimes:
    """What the log of a command says about its run.

    Attributes:
        problem: Why the log cannot be read (code UNREADABLE), or does not fit the plan; None if all is well.
        facts: Settings that the log states, such as `global_batch` and `devices`.
        first_step_s: Time of the first step; None if the log has only means of several steps.
        started_at: Unix time at which the first step began; None if the log does not state it.
    """

    problem: Note | None
    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    first_step_s: float | None = None
    started_at: float | None = None


UNREADABLE = "unreadable-log"


def input_fields(
    command: Command, spec: Mapping[str, Any], data: Path | None, environment: BuiltEnvironment
) -> dict[str, Any]:
    """Return the part of rank_input.json that tells ranks which command to start, and how."""
    image, installed = environment.get("image"), environment.get("installed")
    python = installed["executable"] if installed else environment["python"]["executable"]
    return {
        "command": command.command,
        "once_per": command.once_per,
        "variables": command.variables,
        "values": run_values(spec, data or Path()),
        "folder": str(run_values(spec, Path())["checkout"]),
        "bin": None if image else str(Path(python).parent),
    }


def library_version(command: Command, environment: BuiltEnvironment) -> str:
    """Return names and versions of the packages that a command declares as its library, or its title."""
    packages = environment["packages"]
    versions = [f"{name} {packages[name]}" for name in command.packages if name in packages]
    return ", ".join(versions) or (command.title or command.name)


def measured_fields(
    command: Command, environment: BuiltEnvironment, times: CommandTimes, launched_at: float, wall_s: float
) -> dict[str, Any]:
    """Return the fields of `measured` that the log of a command provides instead of its ranks.

    The start-up time is known only if the log has times of day from a clock that agrees with the launcher's.
    """
    startup_s = None if times.started_at is None else times.started_at - launched_at
    return {
        "startup_s": startup_s if startup_s is not None and 0 <= startup_s <= wall_s else None,
        "first_step_s": times.first_step_s,
        "log": dict(times.facts),
        "python_version": environment["python"]["version"],
        "library_version": library_version(command, environment),
    }


def read_times(
    command: Command, spec: Mapping[str, Any], attempt_folder: Path, wall_s: float
) -> CommandTimes:
    """Read the log of a command, and write epochs.csv and steps.csv if the log fits the plan.

    Args:
        command: The command.
        spec: The run's specification.
        attempt_folder: The attempt's folder.
        wall_s: Time from launch to the end, s.
    """
    try:
        log = _from_one(_read_log(command, spec, attempt_folder / OUTPUT), command.log_format)
    except LogError as error:
        return CommandTimes(Note(UNREADABLE, f"{LOG_PREFIX}{error}", line=error.line))
    except OSError as error:
        return CommandTimes(Note(UNREADABLE, f"{LOG_PREFIX}{error.filename}: {error.strerror}"))
    facts = log.facts
    if problem := _contradiction(log, spec, wall_s):
        return CommandTimes(problem, facts)
    rows = [_epoch(log.steps, spec, command.warmup_steps, epoch) for epoch in _epochs(spec)]
    if missing := [epoch for epoch, row in zip(_epochs(spec), rows, strict=True) if row is None]:
        text = f"{LOG_PREFIX}it has no step of epoch {missing[0]} that counts"
        return CommandTimes(Note("epoch-without-step", text, epochs=missing), facts)
    with written_whole(attempt_folder / "epochs.csv") as partial, open(partial, "w", newline="") as table:
        writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for row in rows if row)
    _write_steps(log.steps, spec, command.warmup_steps, attempt_folder / "steps.csv")
    first = log.steps[0]
    return CommandTimes(None, facts, first.seconds if first.n_steps == 1 else None, first.started_at)


def _epochs(spec: Mapping[str, Any]) -> range:
    return range(1, spec["levels"]["epochs"] + 1)


def _read_log(command: Command, spec: Mapping[str, Any], output: Path) -> Log:
    """Return the log: from the file that the command wrote, or else from the first printed output with steps.

    Some programs print their steps on the last node, so the output of all ranks is tried.

    Raises:
        LogError: If there is no log, more than one file, or no log with steps.
        OSError: If a file cannot be read.
    """
    if command.log:
        pattern = fill(command.log, run_values(spec, Path()), quoted=False)
        files = sorted(path for path in output.glob(pattern) if path.is_file())
        if len(files) != 1:
            number = f"{len(files)} files" if files else "no file"
            raise LogError(0, f"the command left {number} {pattern} in its folder {{output}}", "one")
        return read_log(files[0], command.log_format)
    files = [output / PRINTED.format(rank) for rank in range(spec["ranks"])]
    errors: list[LogError] = []
    for file in filter(Path.is_file, files):
        try:
            return read_log(file, command.log_format)
        except LogError as error:
            errors.append(error)
    raise errors[0] if errors else LogError(0, "the command has printed nothing")


def _from_one(log: Log, log_format: str) -> Log:
    """Return the log with its steps numbered from 1."""
    if log_format not in ZERO_BASED and log.steps[0].index:
        return log
    return replace(log, steps=tuple(replace(step, index=step.index + 1) for step in log.steps))


def _contradiction(log: Log, spec: Mapping[str, Any], wall_s: float) -> Note | None:
    """Return what in a log contradicts the plan (steps, samples, devices or times), None if nothing does."""
    steps, n_planned, batch = log.steps, planned_steps(spec) * len(_epochs(spec)), spec["effective_batch"]
    if restarts := steps[-1].segment:
        return Note(
            "restarted", f"{LOG_PREFIX}the training was restarted {restarts} times", restarts=restarts
        )
    # Steps after the last logged interval have no line. A mean of all steps covers all of them.
    last, interval = steps[-1].index, steps[-1].n_steps if len(steps) > 1 else 1
    if not n_planned - interval < last <= n_planned:
        text = f"{LOG_PREFIX}it ends with step {last}, planned are {n_planned}"
        return Note("other-steps", text, steps=last, planned=n_planned)
    samples = _samples(log)
    if samples is not None and abs(samples / batch - 1) > MAX_BATCH_ERROR:
        text = f"{LOG_PREFIX}a step has {samples:g} samples, planned are {batch}"
        return Note("other-batch", text, samples=samples, planned=batch)
    devices = spec["ranks"] * spec["replicas_per_rank"]
    if (logged := log.facts.get("devices", devices)) != devices:
        text = f"{LOG_PREFIX}it is of {logged} devices, planned are {devices}"
        return Note("other-devices", text, devices=logged, planned=devices)
    if (total_s := sum(step.seconds * step.n_steps for step in steps)) > wall_s * (1 + MAX_TIME_ERROR):
        text = f"{LOG_PREFIX}its steps take {total_s:.1f} s, longer than the whole run, {wall_s:.1f} s"
        return Note("too-long-steps", text, steps_s=total_s, wall_s=wall_s)
    return None


def _samples(log: Log) -> float | None:
    """Return the samples of a step if the log states them, otherwise None."""
    if samples := [step.samples for step in log.steps if step.samples]:
        return median(samples)
    batch = log.facts.get("global_batch")
    return float(batch) if isinstance(batch, int | float) else None


def _overlap(step: Step, first: int, last: int) -> int:
    """Return how many optimizer steps of a line of the log lie between `first` and `last`, both included."""
    return max(0, min(step.index, last) - max(step.index - step.n_steps + 1, first) + 1)


def _epoch(
    steps: Sequence[Step], spec: Mapping[str, Any], warmup_steps: int, epoch: int
) -> dict[str, Any] | None:
    """Return the row of an epoch, None if none of its steps counts.

    The first `warmup_steps` do not count, except in a warm-up epoch that has no other steps.
    """
    n_steps = planned_steps(spec)
    first, last = (epoch - 1) * n_steps + 1, epoch * n_steps
    is_warm_up = epoch <= spec["levels"]["warmup_epochs"]
    for start in (max(first, warmup_steps + 1), *([first] if is_warm_up else [])):
        if weighted := [(step, n) for step in steps if (n := _overlap(step, start, last))]:
            break
    else:
        return None
    step_s = sum(step.seconds * n for step, n in weighted) / sum(n for _, n in weighted)
    losses = [step.loss for step, _ in weighted if step.loss is not None]
    return {
        "epoch": epoch,
        "warm_up": "true" if is_warm_up else "false",
        "epoch_time_s": step_s * spec["samples_per_epoch"] / spec["effective_batch"],
        "steps": spec["steps"],
        "n_allreduces": n_steps,
        "samples_trained": n_steps * spec["effective_batch"],
        "train_loss": fmean(losses) if losses else None,
        "opened_at": weighted[0][0].started_at,
    }


def _write_steps(steps: Sequence[Step], spec: Mapping[str, Any], warmup_steps: int, file: Path) -> None:
    """Write the times of the steps that count, unless the log has means of several steps."""
    n_steps = planned_steps(spec)
    counted = [step for step in steps if step.index > warmup_steps]
    if any(step.n_steps > 1 for step in counted):
        return
    with written_whole(file) as partial, open(partial, "w", newline="") as table:
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(("epoch", "rank", "step", "step_time_s"))
        for step in counted:
            epoch, number = divmod(max(step.index, 1) - 1, n_steps)
            writer.writerow((epoch + 1, 0, number + 1, step.seconds))
