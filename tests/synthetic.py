"""A made-up campaign of the quickstart design with known effects: runs.csv and epochs.csv without any training.

Epoch time is linear in what `epoch_time` says; each run adds independent noise of relative size NOISE.
"""

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd

from common.tables import write_table

BASES = {"pytorch-single": "pytorch-single", "tensorflow-single": "tensorflow-single"}
DISTRIBUTED = {
    "pytorch-ddp": "pytorch-single",
    "horovod-pytorch": "pytorch-single",
    "tensorflow-multiworker": "tensorflow-single",
    "horovod-tensorflow": "tensorflow-single",
}
BASE_OF = BASES | DISTRIBUTED
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
FAILURES = {
    "horovod-tensorflow.small-cnn.digits.b16.n2.s1.r2": ("failed", "rank 1 ended with exit status 1"),
    "pytorch-ddp.small-cnn.digits.b32.n2.s4.r1": ("timeout", "longer than 300 s"),
    "pytorch-ddp.small-cnn.digits.b32.n2.s4.r2": ("missing", "not run"),
    "pytorch-ddp.small-cnn.digits.b32.n2.s4.r3": ("invalid", "disturbed: foreign_cpu_share 0.09"),
}


def epoch_time(framework: str, batch_size: int, nodes: int, sync_every: int) -> float:
    """The true epoch time of a cell in seconds."""
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
    """The runs and the epochs of the campaign; `failures` says status and reason of the runs that did not succeed."""
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
                "local_batch": batch_size,
                "effective_batch": batch_size * nodes * sync_every,
                "base": BASE_OF[framework],
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
    """Write the campaign's runs.csv and epochs.csv into `folder`; their paths."""
    runs, epochs = campaign(**options)  # type: ignore[arg-type]
    return write_frames(folder, runs, epochs)


def write_frames(folder: Path, runs: pd.DataFrame, epochs: pd.DataFrame) -> tuple[Path, Path]:
    """Write these runs and epochs into `folder`; their paths."""
    write_table(runs, "runs", folder / "runs.csv")
    write_table(epochs, "epochs", folder / "epochs.csv")
    return folder / "runs.csv", folder / "epochs.csv"


def _cells() -> list[tuple[str, int, int, int]]:
    cells = []
    for framework in BASE_OF:
        for nodes in (1, 2) if framework in DISTRIBUTED else (1,):
            cells += [(framework, batch_size, nodes, 1) for batch_size in (16, 32, 64)]
            if framework in DISTRIBUTED:
                cells.append((framework, 32, nodes, 4))
    return cells


def _curve(
    rng: np.random.Generator,
    run_id: str,
    key: str,
    cell: tuple[str, int, int, int],
    noise: float,
) -> list[dict[str, object]]:
    """The epochs of one run. The mean of those after warm-up is the run's epoch time."""
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
            "exchanges": -(-steps // sync_every),
            "samples_trained": SAMPLES,
            "train_loss": float(-np.log(max(train[epoch], 1e-3))),
            "train_accuracy": float(train[epoch]),
            "validation_loss": float(-np.log(max(validation[epoch], 1e-3))),
            "validation_accuracy": float(validation[epoch]),
        }
        for epoch in range(EPOCHS)
    ]


def _result(rng: np.random.Generator, curve: list[dict[str, object]]) -> dict[str, object]:
    times = [float(epoch["epoch_time_s"]) for epoch in curve if not epoch["warm_up"]]  # type: ignore[arg-type]
    mean = sum(times) / len(times)
    last = curve[-1]
    return {
        "attempt": 1,
        "hosts": "one",
        "devices": "cpu",
        "placement": "emulated",
        "transport": "gloo",
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
        "exchanges": last["exchanges"],
        "train_loss": last["train_loss"],
        "train_accuracy": last["train_accuracy"],
        "validation_loss": last["validation_loss"],
        "validation_accuracy": last["validation_accuracy"],
        "memory_peak_bytes": int(4.2e8 + 1e6 * rng.random()),
        "foreign_cpu_share": 0.004,
        "steal_share": 0.0,
        "python_version": "3.12.0",
        "library_version": "library 1.0",
    }
