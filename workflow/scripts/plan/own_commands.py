"""Plan runs of a user-supplied command: values of its placeholders, and its part of specification and key."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.files import CHECKOUT, digest_file, digest_text
from common.normal_form import digest_sources
from declared.commands import Command
from declared.datasets import find_dataset
from declared.factors import CUSTOM, is_custom
from declared.frameworks import COMMAND_ADAPTER, RANKS
from ranks.command.placeholders import PlaceholderError, Value, evaluate

# Keys of a command's file that decide what its runs do, and how their logs are read.
DECISIVE_KEYS = (
    "command", "once_per", "variables", "log", "log_format", "replicas", "samples_per_step", "warmup_steps",
    "supported_levels",
)  # fmt: skip


def level_values(levels: Mapping[str, Any], devices_per_node: int) -> dict[str, Value]:
    """Return the values of placeholders that are factors; custom ones have no prefix there."""
    values = {name.removeprefix(CUSTOM) if is_custom(name) else name: levels[name] for name in levels}
    return {**values, "devices_per_node": devices_per_node}


def batches(command: Command, levels: Mapping[str, Any], devices_per_node: int) -> tuple[int, int, int]:
    """Return the number of replicas, the samples in a batch of one, and the samples of an optimizer step.

    Raises:
        PlaceholderError: If one of these is not a whole number of at least 1.
    """
    values = level_values(levels, devices_per_node) | {"ranks": levels["nodes"] * devices_per_node}
    replicas = _whole_number(command.replicas, values)
    local_batch = "batch_size" if levels["batch_scope"] == "local" else f"batch_size / {replicas}"
    values |= {"replicas": replicas, "local_batch": _whole_number(local_batch, values)}
    return replicas, int(values["local_batch"]), _whole_number(command.samples_per_step, values)


def _whole_number(expression: str, values: Mapping[str, Value]) -> int:
    number = evaluate(expression, values)
    if not isinstance(number, int) or number < 1:
        raise PlaceholderError(expression, f"is {number}, not a whole number of at least 1")
    return number


def count_samples(command: Command, dataset: str) -> int | None:
    """Return the samples of an epoch, None if neither Ringside nor the command's file has the data set."""
    entry = find_dataset(dataset)
    return int(entry["train_samples"]) if entry else command.datasets.get(dataset)


def run_values(spec: Mapping[str, Any], data: Path) -> dict[str, Value]:
    """Return the values of all placeholders except those that are known only at launch.

    Args:
        spec: The run's specification.
        data: Folder of its prepared data set.
    """
    devices = spec["ranks_per_node"] * spec["replicas_per_rank"]
    steps = planned_steps(spec)
    return {
        **level_values(spec["levels"], devices),
        "device": spec["device"],
        "local_batch": spec["local_batch"],
        "replicas": spec["replicas"],
        "samples_per_step": spec["effective_batch"],
        "steps_per_epoch": steps,
        "steps": steps * spec["levels"]["epochs"],
        "ranks": spec["nodes"] * devices,
        "replicate": spec["replicate"],
        "seed": spec["seed"],
        "checkout": str(CHECKOUT),
        "data": str(data),
    }


def planned_steps(spec: Mapping[str, Any]) -> int:
    """Return the optimizer steps of an epoch."""
    return int(spec["samples_per_epoch"]) // int(spec["effective_batch"])


def command_fields(command: Command) -> dict[str, Any]:
    """Return the field that a command adds to the specification of its runs."""
    return {"command": {name: getattr(command, name) for name in DECISIVE_KEYS}}


def command_code_digest(command: Command) -> str:
    """Return the SHA-256 of the files that a command names and of the adapter that runs it."""
    files = {name: digest_file(CHECKOUT / name) for name in command.files}
    return digest_text(
        digest_sources([RANKS / "worker", COMMAND_ADAPTER]) + json.dumps(files, sort_keys=True)
    )


def unregistered_data_digest(dataset: str, samples: int | None) -> str:
    """Return the SHA-256 of name and samples of a data set that only a command knows."""
    return digest_text(json.dumps({"dataset": dataset, "samples": samples}))
