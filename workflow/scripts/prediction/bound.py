"""Lower bounds on epoch times, and so upper bounds on speed-up, by the model of prediction.physics.

Computation comes from the single-device runs, divided among all replicas, and messages from the law of the
collective benchmark. No rank waits for another, and frameworks that send during the backward pass overlap all
of it.
"""

from dataclasses import replace

import pandas as pd

from prediction import law, physics


def shortest_epochs(runs: pd.DataFrame, network: pd.DataFrame) -> dict[str, float]:
    """Return the shortest possible epoch time in seconds of each predictable measured cell, by cell name.

    Args:
        runs: runs.csv of the study.
        network: network.csv of the study.
    """
    cells = physics.measured_cells(runs)
    if cells.empty or network.empty:
        return {}
    base = physics.base_model(cells, law.benchmark_points(network))
    best = replace(base, hidden=dict.fromkeys(base.laws, 1.0), scatter=dict.fromkeys(base.laws, 0.0))
    seconds = pd.Series(best.predict(cells), index=cells["cell"]).dropna()
    return {str(cell): float(time) for cell, time in seconds.items()}
