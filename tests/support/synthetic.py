"""Synthetic campaigns with known effects: runs.csv and epochs.csv without any training.

Epoch time is linear in the factors of `epoch_time`; each run adds independent noise of relative size NOISE.
"""

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from common.tables import write_table
from declared.frameworks import load_framework
from declared.models import model_graph
from declared.site import load_site
from declared.study import load_study
from plan.design import plan_design
from plan.geometry import Geometry
from support.benchmarked import benchmark_rows

BASELINES = {"pytorch-single": "pytorch-single", "tensorflow-single": "tensorflow-single"}
DISTRIBUTED = {
    "pytorch-ddp": "pytorch-single",
    "horovod-pytorch": "pytorch-single",
    "tensorflow-multiworker": "tensorflow-single",
    "horovod-tensorflow": "tensorflow-single",
}
BASELINE_OF = BASELINES | DISTRIBUTED
SECONDS = {
    "pytorch-single": 0.62,
    "tensorflow-single": 0.81,
    "pytorch-ddp": 0.66,
    "horovod-pytorch": 0.70,
    "tensorflow-multiworker": 0.92,
    "horovod-tensorflow": 0.88,
}
SECONDS_PER_SAMPLE = -0.004
SECONDS_PER_NODE = -0.11
SECONDS_PER_SYNC = -0.02
NOISE = 0.02
SAMPLES = 1536
EPOCHS = 6
WARMUP = 1
PARAMETERS = 544_522
FAILURES = {
    "horovod-tensorflow.small-cnn.digits.b16.n2.s1.r2": ("failed", "rank 1 ended with exit status 1"),
    "pytorch-ddp.small-cnn.digits.b32.n2.s4.r1": ("timeout", "longer than 300 s"),
    "pytorch-ddp.small-cnn.digits.b32.n2.s4.r2": ("missing", "not run"),
    "pytorch-ddp.small-cnn.digits.b32.n2.s4.r3": ("invalid", "disturbed: other_cpu_share 0.09"),
}


def epoch_time(framework: str, batch_size: int, nodes: int, sync_every: int) -> float:
    """Return the true epoch time of a cell in seconds."""
    return (
        SECONDS[framework]
        + SECONDS_PER_SAMPLE * (batch_size - 16)
        + SECONDS_PER_NODE * (nodes - 1)
        + SECONDS_PER_SYNC * (sync_every - 1)
    )


def campaign(
    replicates: int = 3,
    noise: float = NOISE,
    failures: dict[str, tuple[str, str]] | None = None,
    seed: int = 1,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return runs and epochs of a campaign of the quickstart design.

    Args:
        replicates: Number of runs of each cell.
        noise: Relative standard deviation of runs.
        failures: Status and reason of the runs that did not succeed, by run_id; None: FAILURES.
        seed: Seed of the noise.
    """
    failures = FAILURES if failures is None else failures
    rng = np.random.default_rng(seed)
    runs, epochs = [], []
    for framework, batch_size, nodes, sync_every in _cells():
        for replicate in range(1, replicates + 1):
            cell = f"{framework}.small-cnn.digits.b{batch_size}.n{nodes}.s{sync_every}"
            run_id = f"{cell}.r{replicate}"
            status, reason = failures.get(run_id, ("ok", None))
            key = hashlib.sha256(run_id.encode()).hexdigest()[:12]
            curve = _curve(rng, run_id, key, (framework, batch_size, nodes, sync_every), noise)
            run = {
                "run_id": run_id,
                "study": "quickstart",
                "site": "local",
                "session": "2026-11-20T12:00:00Z",
                "cell": cell,
                "replicate": replicate,
                "block": replicate,
                "order_key": replicate + float(rng.random()),
                "seed": 1000 + replicate,
                "framework": framework,
                "model": "small-cnn",
                "dataset": "digits",
                "batch_size": batch_size,
                "nodes": nodes,
                "sync_every": sync_every,
                "batch_scope": "local",
                "training_loop": "custom",
                "precision": "fp32",
                "optimizer": "sgd",
                "learning_rate": 0.05,
                "momentum": 0.9,
                "lr_scaling": "none",
                "epochs": EPOCHS,
                "warmup_epochs": WARMUP,
                "ranks": nodes,
                "replicas": nodes,
                "n_devices": nodes,
                "local_batch": batch_size,
                "effective_batch": batch_size * nodes * sync_every,
                "baseline": BASELINE_OF[framework],
                "key": key,
                "status": status,
                "reason": reason,
                "epoch_time_s": None,
            }
            if status == "ok":
                run |= _result(rng, curve)
                epochs += curve
            runs.append(run)
    return pd.DataFrame(runs), pd.DataFrame(epochs)


def write_campaign(folder: Path, **options: object) -> tuple[Path, Path]:
    """Write the campaign's runs.csv and epochs.csv into `folder` and return their paths."""
    runs, epochs = campaign(**options)  # type: ignore[arg-type]
    return write_frames(folder, runs, epochs)


def write_frames(folder: Path, runs: pd.DataFrame, epochs: pd.DataFrame) -> tuple[Path, Path]:
    """Write these runs and epochs into `folder` and return their paths."""
    write_table(runs.drop(columns="n_devices", errors="ignore"), "runs", folder / "runs.csv")
    write_table(epochs, "epochs", folder / "epochs.csv")
    return folder / "runs.csv", folder / "epochs.csv"


def _cells() -> list[tuple[str, int, int, int]]:
    cells = []
    for framework in BASELINE_OF:
        for nodes in (1, 2) if framework in DISTRIBUTED else (1,):
            cells += [(framework, batch_size, nodes, 1) for batch_size in (16, 32, 64)]
            if framework in DISTRIBUTED:
                cells.append((framework, 32, nodes, 4))
    return cells


def _curve(
    rng: np.random.Generator, run_id: str, key: str, cell: tuple[str, int, int, int], noise: float
) -> list[dict[str, object]]:
    """Return the epochs of one run; the mean over the epochs after warm-up is the run's epoch time."""
    _, batch_size, nodes, sync_every = cell
    time = epoch_time(*cell) * (1 + noise * rng.standard_normal())
    wobble = rng.standard_normal(EPOCHS) * 0.01 * time
    wobble[WARMUP:] -= wobble[WARMUP:].mean()
    updates = np.arange(1, EPOCHS + 1) * SAMPLES / (batch_size * nodes * sync_every)
    shift = 0.01 * rng.standard_normal()
    train = np.clip(1 - 0.9 * np.exp(-updates / 60) - 0.01 + shift, 0, 1)
    validation = np.clip(train - 0.02 + 0.008 * rng.standard_normal(EPOCHS), 0, 1)
    steps = SAMPLES // (batch_size * nodes)
    return [
        {
            "run_id": run_id,
            "key": key,
            "epoch": epoch + 1,
            "warm_up": epoch < WARMUP,
            "epoch_time_s": time + wobble[epoch],
            "imbalance_s": 0.01 * time if nodes > 1 else 0.0,
            "validation_time_s": 0.05,
            "learning_rate": 0.05,
            "steps": steps,
            "n_allreduces": -(-steps // sync_every),
            "samples_trained": SAMPLES,
            "train_loss": float(-np.log(max(train[epoch], 1e-3))),
            "train_accuracy": float(train[epoch]),
            "validation_loss": float(-np.log(max(validation[epoch], 1e-3))),
            "validation_accuracy": float(validation[epoch]),
            "throttled_s": None,
            "sent_bytes": 4.0 * PARAMETERS * -(-steps // sync_every) if nodes > 1 else 0.0,
            "energy_j": None,
        }
        for epoch in range(EPOCHS)
    ]


def _result(rng: np.random.Generator, curve: list[dict[str, object]]) -> dict[str, object]:
    times = [float(epoch["epoch_time_s"]) for epoch in curve if not epoch["warm_up"]]  # type: ignore[arg-type]
    mean = sum(times) / len(times)
    last = curve[-1]
    return {
        "attempt": 1,
        "unfinished_attempts": None,
        "job": None,
        "submitted_at": None,
        "job_started_at": None,
        "hosts": "one",
        "devices": "cpu",
        "systems": "Debian GNU/Linux 12 (bookworm), Linux 6.1.0",
        "node_memory_bytes": 24 * 2**30,
        "placement": "emulated",
        "transport": "gloo over tcp lo",
        "timing_scope": "ranks",
        "cores_per_rank": 1,
        "oversubscribed": False,
        "wall_s": 12.0,
        "startup_s": 3.5,
        "import_s": 2.5,
        "first_step_s": 0.2,
        "epoch_time_s": mean,
        "epoch_time_median_s": float(np.median(times)),
        "imbalance_s": last["imbalance_s"],
        "validation_time_s": last["validation_time_s"],
        "throughput_samples_s": SAMPLES / mean,
        "samples_per_epoch": SAMPLES,
        "samples_trained": SAMPLES,
        "steps": last["steps"],
        "n_allreduces": last["n_allreduces"],
        "train_loss": last["train_loss"],
        "train_accuracy": last["train_accuracy"],
        "validation_loss": last["validation_loss"],
        "validation_accuracy": last["validation_accuracy"],
        "memory_peak_bytes": int(4.2e8 + 1e6 * rng.random()),
        "throttled_s": None,
        "sent_bytes": last["sent_bytes"],
        "energy_j": None,
        "cpu_shares": None,
        "max_other_cpu_share": 0.05,
        "other_cpu_share": 0.004,
        "steal_share": 0.0,
        "python_version": "3.12.0",
        "library_version": "library 1.0",
        "deployment": "venv",
        "modules": None,
    }


# A synthetic campaign of any shipped study, with costs of its own, and synthetic benchmarks of its network.

SECONDS_PER_ALLREDUCE = 0.004  # cost of the optimizer at each all-reduce
SECONDS_PER_FIT_STEP = -0.002  # The framework's own loop is faster than a custom one.
LATENCY_S = 0.0006
SECONDS_PER_BYTE = 2e-8
THROTTLED_PER_ALLREDUCE_S = 0.003
BENCHMARK_BYTES = [1024 * 4**power for power in range(9)]


def all_reduce_time(size_bytes: float, nodes: int) -> float:
    """Return the true time of one all-reduce in seconds."""
    return (LATENCY_S + SECONDS_PER_BYTE * size_bytes) * (nodes - 1) if nodes > 1 else 0.0


def designed_time(levels: dict[str, Any], geometry: Geometry) -> float:
    """Return the true epoch time of a cell in seconds: computation, training loop, optimizer, network."""
    size = model_graph(levels["model"], levels["dataset"]).gradient_bytes
    n_allreduces = -(-geometry.steps // levels["sync_every"])
    computed = 1.5e-10 * size * geometry.samples_per_epoch / geometry.replicas + 0.01 * geometry.steps
    loop = SECONDS_PER_FIT_STEP * geometry.steps * (levels["training_loop"] == "fit")
    return computed + loop + n_allreduces * (SECONDS_PER_ALLREDUCE + all_reduce_time(size, geometry.nodes))


def designed_campaign(
    study: str = "tf-strategies-virtual",
    site: str = "virtual",
    noise: float = NOISE,
    missing: Collection[str] = (),
    seed: int = 1,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return runs and epochs of a study at a site; the cells in `missing` have no successful run."""
    rng = np.random.default_rng(seed)
    loaded_site = load_site(site)
    runs, epochs = [], []
    for run in plan_design(load_study(study), loaded_site):
        levels, geometry = run.levels, run.geometry
        key = hashlib.sha256(run.run_id.encode()).hexdigest()[:12]
        time = designed_time(levels, geometry) * (1 + noise * rng.standard_normal())
        n_allreduces = -(-geometry.steps // levels["sync_every"])
        size = model_graph(levels["model"], levels["dataset"]).gradient_bytes
        counted = {
            "imbalance_s": 0.01 * time if geometry.nodes > 1 else 0.0,
            "validation_time_s": 0.05,
            "steps": geometry.steps,
            "n_allreduces": n_allreduces,
            "samples_trained": geometry.steps * geometry.replicas * geometry.local_batch,
            "throttled_s": THROTTLED_PER_ALLREDUCE_S * n_allreduces * (1 + noise * rng.standard_normal()),
            "sent_bytes": 2 * (geometry.nodes - 1) / geometry.nodes * size * n_allreduces,
        }
        progress = np.arange(1, levels["epochs"] + 1) * n_allreduces / 60
        accuracy = np.clip(0.99 - 0.9 * np.exp(-progress) + 0.01 * rng.standard_normal(len(progress)), 0, 1)
        rows = [
            {
                "run_id": run.run_id,
                "key": key,
                "epoch": epoch + 1,
                "warm_up": epoch < levels["warmup_epochs"],
                "epoch_time_s": time,
                "learning_rate": levels["learning_rate"],
                "train_accuracy": float(value),
                "validation_accuracy": float(max(value - 0.02, 0)),
                **counted,
            }
            for epoch, value in enumerate(accuracy)
        ]
        lost = run.cell in missing
        runs.append(
            {
                "run_id": run.run_id,
                "study": study,
                "site": site,
                "session": None,
                "cell": run.cell,
                "replicate": run.replicate,
                "block": run.block,
                "order_key": run.order_key,
                "seed": run.seed,
                **levels,
                "ranks": geometry.ranks,
                "replicas": geometry.replicas,
                "n_devices": max(geometry.ranks, geometry.replicas),
                "local_batch": geometry.local_batch,
                "effective_batch": geometry.effective_batch,
                "baseline": load_framework(levels["framework"]).baseline,
                "key": key,
                "status": "missing" if lost else "ok",
                "reason": "not run" if lost else None,
                "epoch_time_s": None,
            }
        )
        if not lost:
            epochs += rows
            runs[-1] |= counted | {
                "placement": loaded_site.placement,
                "cpu_share": loaded_site.cpu_share,
                "cpu_shares": None,
                "bandwidth_bytes_s": loaded_site.bandwidth_bytes_s,
                "transport": "a library over tcp eth0" if geometry.ranks > 1 else "none",
                "timing_scope": "ranks",
                "cores_per_rank": 1,
                "oversubscribed": False,
                "epoch_time_s": time,
                "epoch_time_median_s": time,
                "step_time_median_s": None,
                "throughput_samples_s": geometry.samples_per_epoch / time,
                "samples_per_epoch": geometry.samples_per_epoch,
                "train_accuracy": rows[-1]["train_accuracy"],
                "validation_accuracy": rows[-1]["validation_accuracy"],
                "memory_peak_bytes": int(4.2e8 + 1e6 * rng.random()),
                "max_other_cpu_share": loaded_site.max_other_cpu_share,
                "other_cpu_share": 0.004,
                "steal_share": 0.0,
                "deployment": "venv",
            }
    return pd.DataFrame(runs), pd.DataFrame(epochs)


WATTS = 40.0  # power of one node while it trains
IDLE_W = 25.0


def metered(
    runs: pd.DataFrame, epochs: pd.DataFrame, scope: str = "package", noise: float = NOISE, seed: int = 2
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the campaign with energy of this scope: WATTS of each node while it trains."""
    rng = np.random.default_rng(seed)
    watts = WATTS * runs["nodes"] * (1 + noise * rng.standard_normal(len(runs)))
    column, ok = f"energy_{scope}_j", runs["status"].eq("ok")
    joules = (watts * runs["epoch_time_s"].astype(float)).where(ok)
    runs = runs.assign(
        **{column: joules, "energy_j": joules, "energy_scope": pd.Series(scope, index=runs.index).where(ok)},
        **{f"idle_{scope}_w": pd.Series(IDLE_W, index=runs.index).where(ok)},
    )
    power = epochs["run_id"].map(watts.set_axis(runs["run_id"]))
    before = (1.2 * epochs.groupby("run_id")["epoch_time_s"].cumsum()) - 1.2 * epochs["epoch_time_s"]
    return runs, epochs.assign(
        **{column: power * epochs["epoch_time_s"], "opened_at": 1.76e9 + before, "energy_j": None}
    )


def power_over_time(runs: pd.DataFrame, epochs: pd.DataFrame, seed: int = 3) -> pd.DataFrame:
    """Return power.csv of a campaign of `metered`: 20 samples per epoch and node, idle between epochs."""
    rng = np.random.default_rng(seed)
    rows = []
    metered_runs = runs[runs["energy_scope"].notna()].set_index("run_id")
    for epoch in epochs[epochs["run_id"].isin(metered_runs.index)].to_dict("records"):
        run = metered_runs.loc[epoch["run_id"]]
        for share in np.arange(0, 1.2, 0.05):
            for node in range(run["nodes"]):
                watt = (WATTS if 0 < share < 1 else IDLE_W) * (1 + NOISE * rng.standard_normal())
                at = epoch["opened_at"] + share * epoch["epoch_time_s"]
                rows.append((epoch["run_id"], epoch["key"], at, f"node{node + 1}", run["energy_scope"], watt))
    return pd.DataFrame(rows, columns=["run_id", "key", "t", "host", "scope", "watt"])


REFERENCE_S = 0.3
LOAD = 0.6  # by which work takes longer on average while an intermittent load runs


def referenced(
    runs: pd.DataFrame, slope: float = 1.0, load: float = LOAD, noise: float = NOISE, seed: int = 4
) -> pd.DataFrame:
    """Return the campaign on a machine with intermittent CPU steal and a reference benchmark for every run.

    Epoch times grow as the power `slope` of the slow-down of the reference, which has noise of its own.
    """
    rng = np.random.default_rng(seed)
    order = runs["order_key"].rank().to_numpy(int) - 1
    is_loaded = np.cumsum(rng.random(len(runs)) < 0.25)[order] % 2 == 1
    ends = np.log1p(np.where(is_loaded, load * rng.uniform(0.5, 1.5, (2, len(runs))), 0.0))
    before, after = (
        REFERENCE_S
        * (1 + 0.1 * runs["nodes"].to_numpy())
        * np.exp(ends + noise * rng.standard_normal(ends.shape))
    )
    log_slowdown, ran = ends.mean(axis=0), runs["status"].eq("ok")
    columns = {
        "reference_kind": pd.Series("mixed-1", index=runs.index).where(ran),
        "reference_before_s": before,
        "reference_after_s": after,
        "reference_s": (before + after) / 2,
        "waited_s": np.where(is_loaded & (rng.random(len(runs)) < 0.1), 20.0, 0.0),
        "steal_share": np.round(1 - np.exp(-log_slowdown), 4),
    }
    columns = {name: pd.Series(values, index=runs.index).where(ran) for name, values in columns.items()}
    if "reference_kind" in columns:
        columns["reference_kind"] = columns["reference_kind"].astype("str").where(ran)
    return runs.assign(
        epoch_time_s=runs["epoch_time_s"].astype(float) * np.exp(slope * log_slowdown), **columns
    )


def benchmarks(
    framework: str, nodes: Collection[int] = (2, 3), noise: float = NOISE, seed: int = 1
) -> pd.DataFrame:
    """Return collective benchmarks of one framework: five rounds of three repetitions of every size."""
    rng = np.random.default_rng(seed)
    tables = [
        benchmark_rows(
            lambda size, count=count: [
                all_reduce_time(size, count) * (1 + noise * rng.standard_normal()) for _ in range(3)
            ],
            BENCHMARK_BYTES,
            nodes=count,
            framework=framework,
        )
        for count in nodes
    ]
    return pd.concat(tables, ignore_index=True)
