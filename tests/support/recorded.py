"""A small campaign, and the content of the record.json of a successful run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from declared.replicates import Replicates
from declared.site import Site
from declared.study import load_study
from plan.campaign import Campaign, plan_campaign
from plan.design import Run
from plan.identity import plan_run


def small_campaign(site: Site, replicates: int = 2, **levels: list[Any]) -> Campaign:
    """Return a campaign of two frameworks on one node, with so many replicates, under the name quickstart."""
    study = load_study("quickstart")
    frameworks = {"framework": ["pytorch-single", "pytorch-ddp"]}
    fixed: dict[str, list[Any]] = {"nodes": [1], "batch_size": [32], "sync_every": [1]}
    factors = study.factors | frameworks | fixed | levels
    return plan_campaign(
        replace(study, factors=factors, exclude=(), replicates=Replicates(replicates, replicates)), site
    )


def folder_of(campaign: Campaign, run: Run) -> Path:
    """Return the folder of a run's key."""
    return campaign.results / "runs" / run.run_id / plan_run(campaign.study, campaign.site, run).key


def content(**changes: Any) -> dict[str, Any]:
    """Return a valid record with `changes` applied."""
    return {
        "run_id": "a", "key": "0123456789ab", "study": "quickstart", "site": "local", "session": "s", "attempt": 1,
        "status": "ok", "reason": None, "started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:09Z",
        "environment_digest": "0" * 64, "code_digest": "1" * 64, "data_digest": "2" * 64,
        "placement": "emulated", "timing_scope": "ranks", "cores_per_rank": 1, "node_cores": 16,
        "oversubscribed": False, "max_other_cpu_share": 0.05, "wall_s": 9.0, "packages": {}, "unfinished_attempts": [],
        "job": {"number": "17", "submitted_at": "2025-12-31T23:00:00.000Z", "started_at": "2025-12-31T23:59:00.000Z"},
        "measured": {"hosts": ["a"], "devices": ["NVIDIA H100 80GB HBM3"] * 2, "drivers": ["nvidia 580.65.06"],
                     "systems": ["Rocky Linux 9.5, Linux 5.14.0", "Rocky Linux 9.6, Linux 5.14.1"], "node_memory_bytes": 2**40, "transport": "gloo over tcp lo", "startup_s": 2.0, "import_s": 1.0,
                     "first_step_s": 0.1,
                     "step_time_s": {"median": 0.2, "p95": 0.3, "p99": 0.4, "largest": 0.5}, "memory_peak_bytes": 1000, "device_memory_peak_bytes": None, "throttled_s": 0.5,
                     "sent_bytes": 2.5e6, "energy_device_j": 90.0, "energy_package_j": 7.5, "energy_node_j": None,
                     "energy_j": 90.0, "energy_scope": "device", "idle_w": {"device": 70.0, "package": 55.0, "node": None},
                     "meters": [{"source": "nvml", "scope": "device", "method": "counter", "sampling_s": 0.1, "error_share": 0.05,
                                 "error_j": 0.001, "window": "epochs", "joules": None, "reason": None}],
                     "other_cpu_share": 0.0, "steal_share": 0.0, "python_version": "3.11", "library_version": "torch 2"},
        **changes,
    }  # fmt: skip
