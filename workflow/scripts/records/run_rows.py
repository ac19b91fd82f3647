"""Compose the columns of runs.csv that one run has from its plan and from its record."""

from collections.abc import Mapping, Sequence
from typing import Any

from declared.commands import Command
from declared.records import WARNING_SEPARATOR, join_settings
from models.graph import BYTES
from models.messages import number_bytes
from plan.campaign import Campaign
from plan.design import Run
from plan.site_resources import device_peak, link_rate

MEASURED_COLUMNS = (
    "node_memory_bytes", "transport", "startup_s", "import_s", "first_step_s", "memory_peak_bytes",
    "device_memory_peak_bytes", "dropped_token_share", "throttled_s", "sent_bytes",
    "energy_device_j", "energy_package_j", "energy_node_j", "energy_j", "energy_scope",
    "other_cpu_share", "steal_share", "paused_s", "python_version", "library_version",
)  # fmt: skip

RECORDED_COLUMNS = (
    "site", "session", "status", "reason", "attempt", "started_at", "ended_at", "placement", "timing_scope",
    "cores_per_rank", "node_cores", "oversubscribed", "max_other_cpu_share", "wall_s",
    "lost_s",
)  # fmt: skip


def planned_row(campaign: Campaign, run: Run) -> dict[str, Any]:
    """Return the columns of a run that are known before it runs."""
    geometry = vars(run.geometry)
    return {
        "run_id": run.run_id,
        "study": campaign.study.name,
        "cell": run.cell,
        "replicate": run.replicate,
        "block": run.block,
        "order_key": run.order_key,
        "seed": run.seed,
        **run.levels,
        **{
            name: geometry[name]
            for name in ("ranks", "replicas", "local_batch", "effective_batch", "samples_per_epoch")
        },
        "cpu_share": campaign.site.cpu_share,
        "cpu_shares": "/".join(f"{share:g}" for share in campaign.site.cpu_shares[: run.geometry.nodes])
        or None,
        "bandwidth_bytes_s": link_rate(campaign.site, run.levels),
        "inside_bandwidth_bytes_s": campaign.site.inside_bandwidth_bytes_s,
        "peak_flops_s": device_peak(campaign.site, run.levels),
        **campaign.site.costs.columns(),
        "baseline": run.framework.baseline,
        **(user_command_columns(run, run.framework.command) if run.framework.command else {}),
    }


def user_command_columns(run: Run, command: Command) -> dict[str, Any]:
    """Return the planned columns that a run of a user-supplied command has instead of those of a framework.

    The command starts one process on each device itself, so `ranks` is the number of devices. It has no
    baseline framework: its baseline is its own run on one device. Models that only the command knows have no
    parameters here.
    """
    parameters = command.models.get(run.levels["model"])
    return {
        "ranks": run.geometry.devices,
        "baseline": None,
        "parameters": parameters,
        "gradient_bytes": parameters and BYTES * parameters,
    }


def recorded_row(record: dict[str, Any], levels: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that a record adds to the row of a run; `levels` are those of the run."""
    measured = record["measured"] or {}
    job = record["job"] or {}
    before = "; ".join(f"{a['attempt']}: {a['reason']}" for a in record["unfinished_attempts"])
    return {
        **{name: record.get(name) for name in RECORDED_COLUMNS},
        **{name: measured.get(name) for name in MEASURED_COLUMNS},
        **{f"step_time_{name}_s": value for name, value in (measured.get("step_time_s") or {}).items()},
        **{f"idle_{scope}_w": watts for scope, watts in (measured.get("idle_w") or {}).items()},
        **batch_share_columns(measured.get("shares") or []),
        **reference_columns(record.get("reference")),
        **memory_estimate_columns(record.get("memory_estimate")),
        **user_model_columns(measured.get("program_report") or {}, levels),
        "deployment": record.get("deployment"),
        "modules": "; ".join((record.get("installed") or {}).get("modules", [])) or None,
        "job": job.get("number"),
        "submitted_at": job.get("submitted_at"),
        "job_started_at": job.get("started_at"),
        "unfinished_attempts": before or None,
        "hosts": " ".join(measured.get("hosts", [])) or None,
        **{
            name: "; ".join(dict.fromkeys(measured.get(name, []))) or None
            for name in ("devices", "drivers", "systems")
        },
        "settings": join_settings(measured.get("settings", {})),
        "warnings": WARNING_SEPARATOR.join(measured.get("warnings", [])) or None,
    }


def batch_share_columns(shares: Sequence[dict[str, Any]]) -> dict[str, str | None]:
    """Return the samples of a step and the speed of each rank, joined by /; None without shares."""
    speeds = [share["samples_s"] for share in shares]
    return {
        "rank_samples": "/".join(str(share["samples"]) for share in shares) or None,
        "rank_speeds": None if None in speeds else ("/".join(f"{speed:.6g}" for speed in speeds) or None),
    }


def memory_estimate_columns(estimate: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the memory of a rank that was estimated before the run: by category, and the sum."""
    sizes = (estimate or {}).get("bytes", {})
    columns = {f"estimated_{name}_bytes": size for name, size in sizes.items()}
    return {**columns, "estimated_memory_peak_bytes": sum(sizes.values())} if sizes else {}


def user_model_columns(reported: Mapping[str, Any], levels: Mapping[str, Any]) -> dict[str, float]:
    """Return the size of a user-supplied PyTorch module, {} for a model that Ringside knows.

    Args:
        reported: What only ranks can report, `program_report` in the record.
        levels: Levels of the run; their precision decides the bytes of a gradient.
    """
    if "parameters" not in reported:
        return {}
    n_parameters = reported["parameters"]
    return {
        "parameters": n_parameters,
        "gradient_bytes": number_bytes(levels).reduced * n_parameters,
        "sample_flops": reported["sample_flops"],
    }


def reference_columns(reference: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the reference benchmark's times on the slowest node: before and after the run, and mean."""
    if not reference:
        return {}
    before, after = (
        max(reference[moment].values()) if reference[moment] else None for moment in ("before", "after")
    )
    return {
        "reference_kind": reference["kind"],
        "reference_s": None if before is None or after is None else (before + after) / 2,
        "reference_before_s": before,
        "reference_after_s": after,
        "reference_ranks_s": "/".join(f"{seconds:.6g}" for seconds in reference.get("ranks") or []) or None,
        "waited_s": reference["waited_s"],
    }
