"""Summarize what the ranks of an attempt measured about themselves, for its record."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from common.redaction import redact_log
from ranks.worker.energy import SCOPES, widest_scope
from runs import phases, steps, transport
from runs.epochs import mean_of_timed


def summarize_ranks(
    attempt_folder: Path,
    launched_at: float,
    wall_s: float,
    run_spec: Mapping[str, Any],
    epochs: Sequence[Mapping[str, Any]],
) -> dict[str, Any] | None:
    """Return what the ranks measured about themselves, or None if they did not finish.

    Args:
        attempt_folder: The attempt's folder.
        launched_at: When the ranks were launched, Unix time in s.
        wall_s: Time from launch to the end of the last rank, s.
        run_spec: The run's specification.
        epochs: The rows of epochs.csv.
    """
    try:
        result = json.loads((attempt_folder / "result.json").read_text())
    except FileNotFoundError:
        return None
    ranks = result["ranks"]
    device_memory = [
        rank["device_memory_peak_bytes"] for rank in ranks if rank["device_memory_peak_bytes"] is not None
    ]
    finite = [rank["weights_finite"] for rank in ranks]
    first_steps = [rank["first_step_s"] for rank in ranks if rank["first_step_s"] is not None]
    return {
        "hosts": list(dict.fromkeys(rank["host"] for rank in ranks)),
        "machines": len({rank["machine"] for rank in ranks}),
        "devices": [rank["device"] for rank in ranks for _ in range(run_spec["replicas_per_rank"])],
        "drivers": sorted({rank["driver"] for rank in ranks if rank["driver"]}),
        "systems": sorted({rank["system"] for rank in ranks}),
        "node_memory_bytes": min(rank["node_memory_bytes"] for rank in ranks),
        "transport": transport.describe_transport(result["transport"], run_spec, attempt_folder),
        "startup_s": startup_time(
            result["ready_at"] - launched_at, result["closed_at"] - launched_at, wall_s
        ),
        "import_s": max((rank["import_s"] for rank in ranks if rank["import_s"] is not None), default=None),
        "first_step_s": max(first_steps, default=None),
        "step_time_s": steps.quantiles(attempt_folder / "steps.csv", run_spec["levels"]["warmup_epochs"]),
        "memory_peak_bytes": max(rank["memory_peak_bytes"] for rank in ranks),
        "device_memory_peak_bytes": max(device_memory, default=None),
        "dropped_token_share": mean_dropped_share([rank["dropped_token_shares"] for rank in ranks]),
        "weights_finite": None if None in finite else all(finite),
        **{name: mean_of_timed(epochs, name) for name in ("throttled_s", "sent_bytes")},
        **epoch_energy(epochs, run_spec["device"]),
        "other_cpu_share": result["other_cpu_share"],
        "steal_share": result["steal_share"],
        "paused_s": max(rank["paused_s"] for rank in ranks),
        "shares": result["shares"],
        "program_report": result["program_report"],
        "settings": merge_settings([rank["settings"] for rank in ranks]),
        "warnings": list(dict.fromkeys(redact_log(text) for rank in ranks for text in rank["warnings"])),
        "clock_error_s": phases.merge_phases(attempt_folder),
        "python_version": result["python_version"],
        "library_version": result["library_version"],
    }


def mean_dropped_share(shares_by_rank: Sequence[Mapping[str, float]]) -> float | None:
    """Return the mean over operators of the shares that experts dropped, None without experts.

    The ranks of a pipeline stage all report the means over their replicas, so one of them counts.
    """
    shares = {name: share for rank_shares in shares_by_rank for name, share in rank_shares.items()}
    return fmean(shares.values()) if shares else None


def merge_settings(settings_by_rank: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the settings of all ranks; if a value differs between ranks, all of its values are listed."""
    values_by_name: dict[str, list[str]] = {}
    for settings in settings_by_rank:
        for name, value in settings.items():
            values_by_name.setdefault(name, []).append(redact_log(value))
    return {name: "; ".join(dict.fromkeys(values)) for name, values in values_by_name.items()}


def startup_time(ready_s: float, closed_s: float, wall_s: float) -> float | None:
    """Return the time from launch until all ranks were ready, s; None if the clocks of two nodes disagree.

    Args:
        ready_s: When all ranks were ready: rank 0's clock minus the launcher's clock at the launch, s.
        closed_s: When the last epoch ended, in the same way, s.
        wall_s: Time from launch to the end of the last rank, s, by the launcher's clock alone.
    """
    return ready_s if 0 <= ready_s <= closed_s <= wall_s else None


def epoch_energy(epochs: Sequence[Mapping[str, Any]], device: str) -> dict[str, float | str | None]:
    """Return the mean energy of a timed epoch in each scope, J, and the widest scope that has one."""
    energies = {name: mean_of_timed(epochs, name) for name in (f"energy_{scope}_j" for scope in SCOPES)}
    scope = widest_scope(energies, device)
    return {**energies, "energy_j": energies[f"energy_{scope}_j"] if scope else None, "energy_scope": scope}
