"""Convert measurements to rows of runs.csv and epochs.csv, with levels, geometry and times.

The batch size of a scaling series is written as the local or the global one (factor `batch_scope`), whichever
has fewer levels in the series: the local batch is constant in weak scaling, the global one in strong scaling.
If a local batch is not a whole number of samples, the series is global, too.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import format_utc
from common.keys import parse
from common.run_status import RunStatus
from common.units import GBIT_BYTES
from declared.devices import find_device, stated_peak
from declared.factors import CUSTOM, factor_table, level_type, levels_name
from declared.imported import Statement
from importers.log_runs import median_seconds, step_seconds
from importers.measurement import Measurement
from importers.values import SUCCESS

# Levels of factors that files do not state.
USUAL_LEVELS = {"device": "cuda", "epochs": 1, "warmup_epochs": 0}
# Factors that files state under the same name.
NAMED_LEVELS = ("framework", "model", "dataset", "precision")
COUNTS = ("nodes", "devices_per_node", "batch_size", "sync_every", "microbatches")
UNSTATED = "unstated"
WHOLE_TOLERANCE = 1e-6

AXES = ("pipeline", "sharded", "tensor", "context")
VARYING = ("nodes", "devices_per_node", "microbatches")  # factors that vary along a scaling series


@dataclass(frozen=True)
class ImportedRun:
    """A measurement with everything that its row needs.

    Attributes:
        measurement: The content of the file.
        levels: Level of every factor, including users' factors, except the factors of the batch.
        nodes: Number of nodes.
        devices: Number of devices that train.
        replicas: Copies of the model.
        local_batch: Samples of a replica in one micro-batch.
        sync_every: Gradient accumulation steps.
        effective_batch: Samples of an optimizer step.
        seconds: Time of an optimizer step, or of the whole run to its target, s; None if the run failed.
        epoch_s: Time of an epoch in the file, s.
        status: ok, failed or oom.
        reason: Why the run failed.
        is_to_target: Whether `seconds` is the time of the whole run.
    """

    measurement: Measurement
    levels: Mapping[str, Any]
    nodes: int
    devices: int
    replicas: int
    local_batch: float
    sync_every: int
    effective_batch: int
    seconds: float | None
    epoch_s: float | None = None
    status: str = RunStatus.OK
    reason: str | None = None
    is_to_target: bool = False

    @property
    def series(self) -> tuple[Any, ...]:
        """The levels that all runs of a scaling series share."""
        return tuple(sorted((name, str(level)) for name, level in self.levels.items() if name not in VARYING))


def complete_run(measurement: Measurement, statement: Statement, time: str) -> ImportedRun:
    """Return a measurement with missing values taken from the statement.

    Args:
        measurement: The measurement.
        statement: What is stated for all measurements.
        time: Which time counts: ``step`` or ``run``, the time to train.

    Raises:
        InputError: If a value is missing, or values contradict each other.
    """
    values = {**_stated_values(statement), **measurement.values}
    place = measurement.place
    nodes, per_node = _nodes_and_devices(values, measurement)
    devices = nodes * per_node
    parallel = {axis: int(values.get(f"{axis}_parallel", 1)) for axis in AXES}
    split = parallel["pipeline"] * parallel["tensor"] * parallel["context"]
    if devices % split:
        problem = (
            f"{devices} devices are not a multiple of {split}, the product of tensor, pipeline and context"
        )
        raise InputError("contradicting-values", problem, file=place, got=devices)
    replicas = devices // split
    _check_replicas(measurement.values, replicas, place)
    local, sync_every, effective = _batch(values, replicas, place)
    status, reason = _status(values)
    seconds, epoch_s = (
        (None, None) if status != RunStatus.OK else _times(measurement, values, effective, devices, time)
    )
    if parallel["pipeline"] > 1:
        # In a pipeline, accumulation steps are micro-batches of one step.
        microbatches, local, sync_every = sync_every, local * sync_every, 1
    else:
        microbatches = 1
    scale = {
        "parallelism": _parallelism(parallel, int(values.get("data_parallel", 1))),
        "microbatches": microbatches,
        "nodes": nodes,
        "devices_per_node": per_node,
    }
    return ImportedRun(
        measurement=measurement,
        levels=_levels(measurement, statement, scale),
        nodes=nodes,
        devices=devices,
        replicas=replicas,
        local_batch=local,
        sync_every=sync_every,
        effective_batch=effective,
        seconds=seconds,
        epoch_s=epoch_s,
        status=status,
        reason=reason,
        is_to_target=time == "run",
    )


def _levels(measurement: Measurement, statement: Statement, scale: Mapping[str, Any]) -> dict[str, Any]:
    """Return the levels of a run except those of its batch; its file takes precedence over the statement.

    Args:
        measurement: The measurement.
        statement: What is stated for all measurements.
        scale: The levels that follow from the run's parallelism and its numbers of nodes and devices.

    Raises:
        InputError: If framework or model are missing, or a level of a user's factor is invalid.
    """
    values, place = measurement.values, measurement.place
    levels: dict[str, Any] = {
        **{name: rules["default"] for name, rules in factor_table().items() if "default" in rules},
        **USUAL_LEVELS,
        "dataset": UNSTATED,
        **statement.levels,
        **{name: values[name] for name in NAMED_LEVELS if name in values},
        **scale,
        **{f"{CUSTOM}{name}": level for name, level in measurement.custom.items()},
    }
    for name in measurement.custom:
        factor = f"{CUSTOM}{name}"
        parse(level_type(factor), levels[factor], Path(place), factor)
    for name in ("framework", "model"):
        if name not in levels:
            hint = f"state it: --{name} NAME"
            raise InputError("missing-value", f"does not state the {name}", file=place, hint=hint)
    return levels


def _stated_values(statement: Statement) -> dict[str, Any]:
    """Return a statement as values of a run, including those that follow from stated levels of the batch."""
    stated = {name: value for name, value in vars(statement).items() if value is not None}
    levels = statement.levels
    if "sync_every" in levels:
        stated["sync_every"] = levels["sync_every"]
    if "batch_size" in levels and levels.get("batch_scope") == "global":
        stated["global_batch"] = levels["batch_size"] * levels.get("sync_every", 1)
    elif "batch_size" in levels:
        stated["local_batch"] = levels["batch_size"]
    return stated


def _nodes_and_devices(values: Mapping[str, Any], measurement: Measurement) -> tuple[int, int]:
    """Return the numbers of nodes and of devices per node: the file's, completed by the statement's.

    Raises:
        InputError: If a number is missing, or the numbers contradict each other.
    """
    in_file = measurement.values
    nodes, per_node = in_file.get("nodes"), in_file.get("devices_per_node")
    devices = in_file.get("devices")
    if devices is None:
        nodes, per_node = values.get("nodes"), values.get("devices_per_node")
    elif nodes is None and per_node is None and "devices_per_node" in values:
        per_node = min(values["devices_per_node"], devices)
    elif nodes is None and per_node is None:
        nodes = values.get("nodes")
    if devices is not None and nodes is None and per_node:
        nodes = devices // per_node
    elif devices is not None and per_node is None and nodes:
        per_node = devices // nodes
    if nodes is None or per_node is None:
        name, flag = ("nodes", "--nodes") if nodes is None else ("devices per node", "--devices-per-node")
        problem = f"does not state the number of {name}"
        raise InputError("missing-value", problem, file=measurement.place, hint=f"state it: {flag} N")
    if devices is not None and nodes * per_node != devices:
        problem = f"{nodes} nodes of {per_node} devices are not {devices} devices"
        raise InputError("contradicting-values", problem, file=measurement.place, got=devices)
    return int(nodes), int(per_node)


def _check_replicas(values: Mapping[str, Any], replicas: int, place: str) -> None:
    """Raise InputError if data-parallel and sharded ranks contradict the number of replicas."""
    data, sharded = values.get("data_parallel"), values.get("sharded_parallel", 1)
    is_right = replicas % sharded == 0 if data is None else replicas in (data, data * sharded)
    if not is_right:
        text = f"{data} data-parallel replicas" if data else f"{sharded} ranks of a sharded axis"
        problem = f"{text} do not fit the {replicas} replicas of its devices"
        raise InputError("contradicting-values", problem, file=place, got=data or sharded)


def _batch(values: Mapping[str, Any], replicas: int, place: str) -> tuple[float, int, int]:
    """Return local batch, gradient accumulation steps and global batch."""
    local, sync_every, effective = (
        values.get(name) for name in ("local_batch", "sync_every", "global_batch")
    )
    if effective is None:
        if local is None:
            hint = "name its column: --column global_batch=COLUMN, or state it in the files' names"
            raise InputError("missing-value", "does not state the batch size", file=place, hint=hint)
        effective = local * (sync_every or 1) * replicas
    elif sync_every is None:
        ratio = effective / (local * replicas) if local else 1.0
        sync_every = round(ratio) if ratio >= 1 and abs(ratio - round(ratio)) < WHOLE_TOLERANCE * ratio else 1
    sync_every = int(sync_every or 1)
    if abs(effective - round(effective)) > WHOLE_TOLERANCE * effective or round(effective) < 1:
        problem = f"the global batch is {effective:g} samples"
        raise InputError("out-of-range", problem, file=place, got=effective, expected="a whole number")
    effective = round(effective)
    # Rows need the exact product; checks.wrong_step_counts compares the file's own local batch with it.
    return effective / (sync_every * replicas), sync_every, effective


def _status(values: Mapping[str, Any]) -> tuple[str, str | None]:
    text = str(values.get("status", "")).lower()
    if text in ("", *SUCCESS):
        return RunStatus.OK, None
    words = f"{text} {values.get('reason', '')}".lower()
    status = RunStatus.OOM if "oom" in words or "out of memory" in words else RunStatus.FAILED
    return status, str(values.get("reason") or f"status {text} in its file")


def _times(
    measurement: Measurement, values: Mapping[str, Any], effective: int, devices: int, time: str
) -> tuple[float, float | None]:
    """Return the time of an optimizer step, and of an epoch if the file has it.

    With ``time`` "run", both are the time to train. Otherwise the step time comes from the first of these
    that the file has: steps of a log, a step time, a throughput in samples or tokens, an epoch time.

    Raises:
        InputError: If the file has no time, or a number to convert it is missing.
    """
    read = measurement.values
    if time == "run":
        if "run_s" not in read:
            hint = "leave out --time run"
            raise InputError(
                "missing-value", "does not state the time to train", file=measurement.place, hint=hint
            )
        return read["run_s"], read["run_s"]
    if measurement.steps:
        return step_seconds(measurement.steps), None
    if "seconds" in read:
        return read["seconds"], None
    if "samples_per_s" in read:
        return effective / read["samples_per_s"], None
    if "tokens_per_s" in read or "device_tokens_per_s" in read:
        rate = read.get("tokens_per_s") or read["device_tokens_per_s"] * devices
        if "sequence_length" not in values:
            hint = "name its column: --column sequence_length=COLUMN"
            raise InputError(
                "missing-value", "does not state the tokens per sample", file=measurement.place, hint=hint
            )
        return effective * values["sequence_length"] / rate, None
    if "epoch_s" in read:
        if "samples_per_epoch" not in values:
            hint = "state it: --samples-per-epoch N"
            raise InputError(
                "missing-value", "does not state the samples per epoch", file=measurement.place, hint=hint
            )
        return read["epoch_s"] * effective / values["samples_per_epoch"], read["epoch_s"]
    hint = "name its column: --column seconds=COLUMN" + (
        "; or import it: --time run" if "run_s" in read else ""
    )
    raise InputError("missing-value", "has no time of a step", file=measurement.place, hint=hint)


def _parallelism(parallel: Mapping[str, int], data_parallel: int) -> str:
    """Return the level of `parallelism`; the last data axis has no number, since it takes all other ranks."""
    axes = []
    if parallel["pipeline"] > 1:
        axes.append(f"pipeline{parallel['pipeline']}")
    if parallel["sharded"] > 1:
        axes += ["data", f"sharded{parallel['sharded']}"] if data_parallel > 1 else ["sharded"]
    else:
        axes.append("data")
    if parallel["tensor"] > 1:
        axes.append(f"tensor{parallel['tensor']}")
    return "-".join(axes)


def to_rows(
    runs: Sequence[ImportedRun], study: str, statement: Statement
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of runs.csv and epochs.csv, in the order of the files."""
    samples = epoch_samples(runs, statement)
    scopes = _batch_scopes(runs)
    rows: list[dict[str, Any]] = []
    epochs: list[dict[str, Any]] = []
    counts: dict[str, int] = defaultdict(int)
    for run in runs:
        levels = {**run.levels, **_batch_levels(run, scopes[run.series])}
        _check_limits(levels, run.measurement.place)
        cell = levels_name(levels)
        counts[cell] += 1
        run_id = f"{cell}.r{counts[cell]}"
        values = run.measurement.values
        epoch_s = run.epoch_s
        if run.seconds and not run.is_to_target and values.get("samples_per_epoch", samples) != samples:
            epoch_s = None  # The file's epoch has another number of samples, so the step time counts.
        epoch_s = epoch_s or (run.seconds * samples / run.effective_batch if run.seconds else None)
        sequence = values.get("sequence_length")
        rate = samples / epoch_s if epoch_s and not run.is_to_target else None
        size = statement.models.get(levels["model"])
        device = values.get("device") or statement.device
        rows.append(
            {
                "run_id": run_id,
                "study": study,
                "cell": cell,
                "replicate": counts[cell],
                **levels,
                "ranks": run.devices,
                "replicas": run.replicas,
                "local_batch": run.local_batch,
                "effective_batch": run.effective_batch,
                "parameters": values.get("parameters") or (size and size.parameters),
                "gradient_bytes": values.get("gradient_bytes") or (size and size.gradient_bytes),
                "sample_flops": size.sample_flops if size else None,
                "status": run.status,
                "reason": run.reason,
                "started_at": format_utc(values["started_at"]) if "started_at" in values else None,
                "hosts": values.get("hosts"),
                "devices": device,
                "placement": "distinct-nodes",
                "bandwidth_bytes_s": _rate(values, "bandwidth", statement),
                "inside_bandwidth_bytes_s": _rate(values, "inside_bandwidth", statement),
                "peak_flops_s": None
                if find_device(str(device))
                else stated_peak(tuple(statement.peak_tflops.items()), levels["precision"]),
                **statement.costs.columns(),
                "epoch_time_s": epoch_s,
                "epoch_time_median_s": epoch_s,
                "throughput_samples_s": rate,
                "throughput_tokens_s": rate * sequence if rate and sequence else None,
                "samples_per_epoch": None if run.is_to_target else samples,
                **_step_counts(run, samples),
                **_step_columns(run),
            }
        )
        if epoch_s:
            epochs.append({"run_id": run_id, "epoch": 1, "warm_up": False, "epoch_time_s": epoch_s})
    return rows, epochs


def epoch_samples(runs: Sequence[ImportedRun], statement: Statement) -> int:
    """Return the samples per epoch: the stated number, the one that all runs have, or the largest batch."""
    by_run = {run.measurement.values.get("samples_per_epoch") for run in runs}
    in_files = by_run.pop() if len(by_run) == 1 else None
    return int(statement.samples_per_epoch or in_files or max(run.effective_batch for run in runs))


def _check_limits(levels: Mapping[str, Any], place: str) -> None:
    """Raise InputError if a number exceeds the maximum of its factor."""
    for name in COUNTS:
        largest = factor_table()[name]["maximum"]
        if levels[name] > largest:
            problem = f"{levels[name]:,} is more than {largest:,}"
            raise InputError("out-of-range", problem, file=place, key=name, got=levels[name])


def _rate(values: Mapping[str, Any], name: str, statement: Statement) -> float | None:
    read = values.get(f"{name}_gbit_s")
    return read * GBIT_BYTES if read else getattr(statement, f"{name}_bytes_s")


def _step_counts(run: ImportedRun, samples: int) -> dict[str, Any]:
    """Return the columns with the numbers of samples and steps of an epoch; {} if they are not whole."""
    if run.is_to_target or run.status != RunStatus.OK or samples % run.effective_batch:
        return {}
    n_steps = samples // run.effective_batch
    return {"samples_trained": samples, "steps": n_steps * run.sync_every, "n_allreduces": n_steps}


def _step_columns(run: ImportedRun) -> dict[str, Any]:
    """Return the median step time (of a table, the time in the row) and the last loss as columns."""
    steps = run.measurement.steps
    seconds = None if run.is_to_target else median_seconds(steps) if steps else run.seconds
    columns: dict[str, Any] = {"step_time_median_s": seconds}
    losses = [step.loss for step in steps if step.loss is not None and abs(step.loss) < float("inf")]
    return {**columns, "train_loss": losses[-1]} if losses else columns


def _batch_scopes(runs: Iterable[ImportedRun]) -> dict[tuple[Any, ...], str]:
    """Return the batch scope of each series."""
    local: dict[tuple[Any, ...], set[float]] = defaultdict(set)
    whole_batches: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for run in runs:
        local[run.series].add(round(run.local_batch, 9))
        whole_batches[run.series].add(run.effective_batch // run.sync_every)
    return {
        series: "local"
        if all(size == int(size) and size >= 1 for size in sizes) and len(sizes) <= len(whole_batches[series])
        else "global"
        for series, sizes in local.items()
    }


def _batch_levels(run: ImportedRun, scope: str) -> dict[str, Any]:
    if scope == "local":
        return {"batch_scope": scope, "batch_size": round(run.local_batch), "sync_every": run.sync_every}
    if run.effective_batch % run.sync_every:
        return {"batch_scope": scope, "batch_size": run.effective_batch, "sync_every": 1}
    return {
        "batch_scope": scope,
        "batch_size": run.effective_batch // run.sync_every,
        "sync_every": run.sync_every,
    }
