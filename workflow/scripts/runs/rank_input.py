"""Compose the input of ranks: the content of rank_input.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from declared.frameworks import Framework
from environments.record import BuiltEnvironment
from runs import own_commands


def rank_input(
    run_spec: Mapping[str, Any],
    framework: Framework,
    environment: BuiltEnvironment,
    model: Mapping[str, Any] | None,
    data: Path | None,
    hosts: Sequence[str],
) -> dict[str, Any]:
    """Return the content of an attempt's rank_input.json, the input of its ranks."""
    installed = environment.get("installed")
    absent = installed.get("absent", []) if installed else []
    return {
        "spec": run_spec,
        "model": model,
        "data": str(data) if data else None,
        "adapter": str(framework.folder),
        "modules": [module for module in framework.modules if module not in absent],
        "hosts": list(hosts),
        **(
            {"command": own_commands.input_fields(framework.command, run_spec, data, environment)}
            if framework.command
            else {}
        ),
    }
