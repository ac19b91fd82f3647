"""What computation and network allow at most: never beaten by the truth, and reached where all hides and
nobody waits.
"""

import pandas as pd
import pytest

from common.schemas import schema
from prediction.bound import shortest_epochs
from support import known_physics as synthetic
from support.known_physics import Truth

NO_BENCHMARK = pd.DataFrame(columns=list(schema("network")["properties"]))


def measured(truth):
    runs, network = synthetic.runs(truth, noise=0, replicates=1), synthetic.network(truth, noise=0)
    return runs.set_index("cell")["epoch_time_s"], pd.Series(shortest_epochs(runs, network))


def test_full_overlap_without_waiting_reaches_the_bound():
    times, least = measured(Truth(hidden=1.0, sigma=0.0, update_s=0.0))
    assert set(least.index) == set(times.index)
    assert least.to_numpy() == pytest.approx(times[least.index].to_numpy(), rel=0.01)


@pytest.mark.parametrize(
    "truth", [Truth(hidden=0.3, sigma=0.0, update_s=0.0), Truth(hidden=1.0, sigma=0.3, update_s=0.0)]
)
def test_what_waits_or_does_not_hide_stays_above_it(truth):
    times, least = measured(truth)
    beyond = times[least.index] / least
    assert beyond.min() > 0.99
    assert beyond.max() > 1.1


def test_without_a_benchmark_there_is_none():
    assert shortest_epochs(synthetic.runs(), NO_BENCHMARK) == {}
    failed = synthetic.runs().assign(status="failed", epoch_time_s=float("nan"))
    assert shortest_epochs(failed, synthetic.network()) == {}
