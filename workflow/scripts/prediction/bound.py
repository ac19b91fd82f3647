"""How short epochs could be: the bound on speed-up that computation and network leave, by the model of prediction.physics.

Computation is that of the runs on one replica, shared by all; messages take what the law of the swept network says. Nobody
waits for others, and the whole backward pass hides messages of frameworks that send while it goes on.
"""

from dataclasses import replace

import pandas as pd

from prediction import law, physics


def shortest(runs: pd.DataFrame, network: pd.DataFrame) -> dict[str, float]:
    """Epoch times in seconds by cell, of the measured cells that the model knows enough of; `network`: the sweeps."""
    cells = physics.prepared(runs)
    if cells.empty or network.empty:
        return {}
    plain = physics.plain(cells, law.points(network))
    best = replace(plain, hidden=dict.fromkeys(plain.laws, 1.0), scatter=dict.fromkeys(plain.laws, 0.0))
    seconds = pd.Series(best.predict(cells), index=cells["cell"]).dropna()
    return {str(cell): float(time) for cell, time in seconds.items()}
