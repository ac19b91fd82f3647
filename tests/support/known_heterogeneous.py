"""Generate runs of heterogeneous ranks with known speeds, which prediction.hybrid has to recover.

The loops are independent of the prediction's code.
"""

from pathlib import Path

import pandas as pd

from support import known_physics as physics
from support.known_physics import Truth

TRUTH = Truth(batch_s=0.004, sample_s=0.0004, update_s=0.0)
STRENGTHS = {1: (1.0,), 2: (1.0, 0.5), 3: (1.0, 0.5, 0.25)}
RATE = 125e6


def heterogeneous_runs(
    folder: Path | None = None, block: int = 384, noise: float = 0.0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return runs on 1 to 3 nodes of 0.8, 0.4 and 0.2 core with equal samples per step, and the network."""
    parts = [
        physics.runs(
            TRUTH,
            nodes=(1,),
            batches=(block, 2 * block),
            rates=(RATE,),
            noise=noise,
            framework="pytorch-hybrid",
        )
    ]
    steps = physics.SAMPLES // block
    for nodes, strengths in [(n, s) for n, s in STRENGTHS.items() if n > 1]:
        template = physics.runs(
            TRUTH, nodes=(nodes,), batches=(block,), rates=(RATE,), framework="pytorch-hybrid"
        )
        for shares in ("equal", "measured"):
            samples = [block // nodes] * nodes if shares == "equal" else best_by_trying(block, strengths)
            speeds = [n / alone(n, k) for n, k in zip(samples, strengths, strict=True)]
            step_s = max(map(alone, samples, strengths)) + TRUTH.communication_s(
                "small-cnn", "digits", nodes, RATE, 0.0
            )
            cell = f"hybrid.b{block}.n{nodes}.{shares}"
            columns = {
                "cell": cell, "shares": shares, "epoch_time_s": step_s * steps, "local_batch": block // nodes,
                "steps": steps, "n_allreduces": steps, "effective_batch": block,
                "samples_trained": steps * block, "cpu_shares": "/".join(f"{0.8 * k:g}" for k in strengths),
                "rank_samples": "/".join(map(str, samples)) if shares == "measured" else None,
                "rank_speeds": "/".join(f"{speed:.6g}" for speed in speeds) if shares == "measured" else None,
            }  # fmt: skip
            runs = template.astype(object).assign(
                **columns, run_id=[f"{cell}.r{r}" for r in template["replicate"]]
            )
            parts.append(runs)
    runs = physics.written(
        pd.concat([part.astype(object) for part in parts], ignore_index=True), "runs", folder
    )
    return runs, physics.network(
        TRUTH, folder, nodes=(2, 3), rates=(RATE,), noise=0.0, framework="pytorch-hybrid"
    )


def alone(samples: int, strength: float) -> float:
    """Return the computation time of one rank's step in s."""
    return (TRUTH.batch_s + TRUTH.sample_s * samples) / strength


def best_by_trying(block: int, strengths: tuple[float, ...]) -> list[int]:
    """Return the samples of each rank with the shortest step, found by trying all."""
    if len(strengths) == 2:
        every = [[n, block - n] for n in range(1, block)]
    else:
        every = [[n, m, block - n - m] for n in range(1, block - 1) for m in range(1, block - n)]
    return min(every, key=lambda samples: max(map(alone, samples, strengths)))
