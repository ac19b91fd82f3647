"""Times to train lie on a lattice; times that only vary, or have outliers, do not."""

import numpy as np
import pytest

from common.lattice import find_lattices, fit_lattice
from support.published import mlperf_runs

MLPERF = mlperf_runs()


@pytest.mark.parametrize(("benchmark", "at_least"), [("llama2_70b_lora", 13), ("llama31_8b", 8)])
def test_times_to_train_lie_on_a_lattice(benchmark, at_least):
    cells = dict(list(MLPERF[MLPERF["benchmark"] == benchmark].groupby("cell")))
    lattices = find_lattices({name: runs["run_s"].to_numpy() for name, runs in cells.items()})
    assert len(lattices) >= at_least
    matches = [
        len(set(lattice.indices)) == cells[name]["evals"].nunique()
        and lattice.step
        == pytest.approx(np.polyfit(cells[name]["evals"], cells[name]["run_s"], 1)[0], rel=0.05)
        for name, lattice in lattices.items()
    ]
    assert np.mean(matches) > 0.9


def test_step_times_lie_on_no_lattice():
    for _, runs in MLPERF.dropna().groupby("benchmark"):
        assert not find_lattices({name: own["step_s"].to_numpy() for name, own in runs.groupby("cell")})


@pytest.mark.parametrize("n", [4, 5, 10])
@pytest.mark.parametrize("tails", ["normal", "heavy", "outliers"])
def test_times_that_vary_otherwise_lie_on_no_lattice(n, tails):
    rng = np.random.default_rng(n)
    draws = {
        "normal": lambda: rng.standard_normal(n),
        "heavy": lambda: rng.standard_t(2, n),
        "outliers": lambda: rng.standard_normal(n) + rng.uniform(5, 50, n) * (rng.random(n) < 0.1),
    }
    studies = [{str(cell): np.exp(0.01 * draws[tails]()) for cell in range(16)} for _ in range(40)]
    assert sum(bool(find_lattices(study)) for study in studies) <= 1


def test_one_distant_run_of_each_cell_is_no_lattice():
    rng = np.random.default_rng(1)
    cells = {str(cell): np.append(rng.normal(100, 0.1, 9), 110.0) for cell in range(8)}
    assert not find_lattices(cells)
    repeated = np.append(rng.normal(100, 0.1, 5), rng.normal(110, 0.1, 5))
    assert set(find_lattices({"a": cells["0"], "b": repeated})) == {"a", "b"}


def test_lattice_has_its_step_and_indices():
    lattice = fit_lattice(np.array([106.01, 100.0, 103.0, 112.0, 102.99, 106.0, 99.99, 100.01]))
    assert lattice.indices.tolist() == [2, 0, 1, 4, 1, 2, 0, 0]
    assert lattice.step == pytest.approx(3, abs=0.01) and lattice.origin == pytest.approx(100, abs=0.02)
    assert lattice.n_repeated == 3


@pytest.mark.parametrize("values", [[1.0] * 5, [1.0, 2.0, 1.0], []])
def test_equal_or_few_values_lie_on_no_lattice(values):
    assert find_lattices({"a": np.array(values)}) == {}
