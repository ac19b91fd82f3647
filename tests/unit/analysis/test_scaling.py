"""Amdahl's law and Karp & Flatt's metric against exact cases, published tables and simulation."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from statsmodels.regression.linear_model import OLS

from analysis import conditions, scaling, speedup
from analysis.intervals import Estimate
from common.notes import codes, find_note
from support.synthetic import designed_campaign

# Quinn, Parallel Programming in C with MPI and OpenMP (2003), section 7.5: speed-up on 2 to 8 processors, and
# e.
QUINN = {
    "serial part": ([1.82, 2.50, 3.08, 3.57, 4.00, 4.38, 4.71], [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]),
    "overhead": (
        [1.87, 2.61, 3.23, 3.73, 4.14, 4.46, 4.71],
        [0.070, 0.075, 0.080, 0.085, 0.090, 0.095, 0.100],
    ),
}


@pytest.mark.parametrize("case", QUINN)
def test_karp_and_flatts_metric_of_published_tables(case):
    speedups, fractions = QUINN[case]
    fraction = [speedup.karp_flatt(Estimate(s), p).value for p, s in enumerate(speedups, start=2)]
    assert fraction == pytest.approx(fractions, abs=1.2e-3), "speed-ups are printed with two decimals"


def test_karp_flatt_interval_is_the_reversed_one_of_speedup():
    fraction = speedup.karp_flatt(Estimate(2.0, 1.6, 2.5, 5), 4)
    assert (fraction.value, fraction.n) == (pytest.approx(1 / 3), 5)
    assert fraction.low == pytest.approx(speedup.karp_flatt(Estimate(2.5), 4).value)
    assert fraction.high == pytest.approx(speedup.karp_flatt(Estimate(1.6), 4).value)
    assert math.isnan(speedup.karp_flatt(Estimate(1.0), 1).value)
    assert speedup.karp_flatt(Estimate(4.0), 4).value == 0
    assert speedup.karp_flatt(Estimate(1.0), 4).value == 1
    assert speedup.karp_flatt(Estimate(5.0), 4).value < 0


def seconds(n_devices, fraction=0.05, one_s=100.0):
    """Return epoch times by Amdahl's law."""
    return one_s * (fraction + (1 - fraction) / np.asarray(n_devices, dtype=float))


P = np.repeat([1, 2, 4, 8], 5)


@pytest.mark.parametrize("fraction", [-0.05, 0.0, 0.05, 0.5, 1.0, 3.0])
def test_times_that_follow_the_law_give_its_fraction_back(fraction):
    law = scaling.fit_amdahl(P.astype(float), seconds(P, fraction))
    assert law.fraction.value == pytest.approx(fraction, abs=1e-6)
    assert law.one_device_s.value == pytest.approx(100)


def test_a_twentieth_that_is_serial_allows_a_twentyfold_speedup():
    # Amdahl (1967); Hennessy & Patterson, section 1.9: the limit is 1 / f.
    limit = scaling.fit_amdahl(P.astype(float), seconds(P, 0.05)).limit
    assert limit.value == pytest.approx(20)
    assert scaling.fit_amdahl(P.astype(float), seconds(P, -0.01)).limit.value == math.inf
    assert scaling.fit_amdahl(P.astype(float), seconds(P, 2.0)).limit.value == 1


def noisy(seed, fraction=0.1, noise=0.05):
    rng = np.random.default_rng(seed)
    return seconds(P, fraction) * np.exp(noise * rng.standard_normal(len(P)))


def test_amdahl_fit_equals_the_linearized_model():
    times = noisy(1)
    law = scaling.fit_amdahl(P.astype(float), times)

    def squares(values):
        return ((np.log(times) - np.log(seconds(P, values[1], math.exp(values[0])))) ** 2).sum()

    best = minimize(
        squares, [4.6, 0.2], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14, "maxiter": 5000}
    )
    assert law.fraction.value == pytest.approx(best.x[1], abs=1e-5)
    # Gauss-Newton: a linear regression on the derivatives at the solution has the same errors.
    f = law.fraction.value
    slopes = np.column_stack([np.ones(len(P)), (1 - 1 / P) / (f + (1 - f) / P)])
    residuals = np.log(times) - np.log(seconds(P, f, law.one_device_s.value))
    linear = OLS(residuals, slopes).fit()
    assert linear.params == pytest.approx([0, 0], abs=1e-6)
    assert (law.fraction.low, law.fraction.high) == pytest.approx(f + linear.conf_int()[1], abs=1e-6)


def test_lack_of_fit_is_detected_where_overhead_grows():
    p_values = [scaling.fit_amdahl(P.astype(float), noisy(seed)).lack_of_fit_p for seed in range(200)]
    assert np.mean(np.array(p_values) < 0.05) < 0.1
    grown = scaling.fit_amdahl(P.astype(float), noisy(1) + 3.0 * (P - 1))
    assert grown.lack_of_fit_p < 0.001


@pytest.fixture
def quickstart_like():
    """Return a maker of runs of one framework on 1, 2 and 4 nodes, with times of a law."""

    def runs_by_law(times_of, replicates=5, nodes=(1, 2, 4), noise=0.02):
        runs, _ = designed_campaign()
        rng = np.random.default_rng(1)
        first = runs[
            (runs["model"] == "small-cnn") & (runs["batch_size"] == 32) & (runs["training_loop"] == "custom")
        ]
        first = first[(first["sync_every"] == 1) & (first["replicate"] <= replicates)]
        chosen = first[first["nodes"] <= len(nodes)].copy()
        chosen["nodes"] = chosen["n_devices"] = chosen["nodes"].map(dict(enumerate(nodes, start=1)))
        chosen["epoch_time_s"] = times_of(chosen["nodes"].to_numpy(float)) * (
            1 + noise * rng.standard_normal(len(chosen))
        )
        chosen["cell"] = "n" + chosen["nodes"].astype(str)
        return chosen

    return runs_by_law


@pytest.mark.parametrize(
    ("times_of", "reads"),
    [
        (lambda p: seconds(p, 0.2), "law fits"),
        (lambda p: seconds(p, 0.02) + 5.0 * (p - 1), "overhead grows"),
        (lambda p: seconds(p, 0.02) + 30.0 * (p > 1), "overhead at once"),
        (lambda p: seconds(p, 3.0), "slower; law fits"),
        (lambda p: seconds(p, -0.1), "faster than p; law fits"),
        (lambda p: seconds(p, 0.0), "no limit seen; law fits"),
        (lambda p: seconds(p, 1.0), "no gain seen; law fits"),
    ],
)
def test_what_a_fit_says_is_read_in_words(quickstart_like, times_of, reads):
    (row,) = scaling.build_rows(quickstart_like(times_of))[0].itertuples()
    assert row.reads_as == reads


def test_row_has_largest_speedup_and_its_baseline_in_seconds(quickstart_like):
    runs = quickstart_like(lambda p: seconds(p, 0.1) + 12.0 * (p - 1))
    (row,) = scaling.build_rows(runs)[0].itertuples()
    single, two = (runs.loc[runs["nodes"] == n, "epoch_time_s"] for n in (1, 2))
    assert (row.baseline_n_devices, row.speedup_n_devices, row.n) == (1, 2, 15)
    assert row.baseline_epoch_time_s == pytest.approx(single.mean())
    assert row.speedup == pytest.approx(np.mean(single) / np.mean(two))
    assert row.speedup_low < row.speedup < row.speedup_high
    assert row.efficiency == pytest.approx(row.speedup / 2)
    assert row.karp_flatt_first == pytest.approx(speedup.karp_flatt(Estimate(row.speedup), 2).value)
    assert row.karp_flatt_last > row.karp_flatt_first


def test_without_one_device_the_baseline_is_the_fewest(quickstart_like):
    runs = quickstart_like(lambda p: seconds(p, 0.1), nodes=(2, 4, 8), noise=0.0)
    table = scaling.table(runs)
    (row,) = table.data.itertuples()
    assert row.serial_fraction == pytest.approx(0.1)
    assert row.baseline_n_devices == 2
    assert row.speedup == pytest.approx(seconds(2, 0.1) / seconds(8, 0.1))
    assert row.efficiency == pytest.approx(row.speedup / 4)
    assert row.karp_flatt_first == pytest.approx(0.1)


def test_two_device_counts_have_no_law(quickstart_like):
    table = scaling.table(quickstart_like(lambda p: seconds(p, 0.3), nodes=(1, 2)))
    assert table.data.empty
    assert find_note(table.notes, "few-device-counts").facts["series"] == ["the study"]


@pytest.mark.parametrize(
    ("options", "code", "facts"),
    [
        ({"nodes": (1,)}, "few-device-counts", {"series": ["the study"]}),
        ({"replicates": 1}, "reads-as", {"readings": ["untested"]}),
        ({"noise": 0.0}, "reads-as", {"readings": ["untested"]}),
        ({"replicates": 2}, "reads-as", {"readings": ["law fits"]}),
    ],
)
def test_a_poor_study_gives_a_table_that_says_so(quickstart_like, options, code, facts):
    table = scaling.table(quickstart_like(lambda p: seconds(p, 0.3), **options))
    assert find_note(table.notes, code).facts == facts
    assert "nan" not in table.display.to_string()


def test_every_series_stands_once():
    table = scaling.table(designed_campaign()[0])
    assert len(table.data) == 18
    assert set(table.data["n_devices"]) == {"1, 2, 3"}


def test_missing_runs_leave_the_others(quickstart_like):
    runs = quickstart_like(lambda p: seconds(p, 0.3))
    runs.loc[runs["nodes"] == 2, ["status", "epoch_time_s"]] = ["failed", None]
    assert scaling.build_rows(runs)[0].empty, "two counts are left"
    table = scaling.table(runs.assign(status="failed"))
    assert table.data.empty
    assert table.notes[0] == conditions.NO_SUCCESS


@pytest.mark.parametrize(
    ("scope", "text"),
    [("local", "the effective batch grows"), ("global", "the number of optimizer steps stay the same")],
)
def test_what_scales_is_said_for_each_batch_scope(quickstart_like, scope, text):
    note = conditions.work_note(quickstart_like(lambda p: seconds(p, 0.3)).assign(batch_scope=scope))
    assert note.facts["scopes"] == [scope] and text in note


def test_speedup_table_has_the_fraction_of_parallel_cells(runs):
    data = speedup.build_rows(runs)
    parallel = data[(data["n_devices"] > 1) & data["speedup"].notna()]
    expected = (1 / parallel["speedup"] - 1 / parallel["n_devices"]) / (1 - 1 / parallel["n_devices"])
    assert parallel["karp_flatt"].to_numpy() == pytest.approx(expected.to_numpy())
    assert (parallel["karp_flatt_low"] < parallel["karp_flatt"]).all()
    assert data.loc[data["n_devices"] == 1, "karp_flatt"].isna().all()
    assert "serial fraction" in speedup.table(runs).display


@pytest.fixture
def two_ways():
    """Return a maker of runs on 1, 2 and 4 nodes with 1, 2 and 4 devices each."""
    runs, _ = designed_campaign(noise=0.0)
    first = runs[
        (runs["model"] == "small-cnn") & (runs["batch_size"] == 32) & (runs["training_loop"] == "custom")
    ]
    first = first[(first["sync_every"] == 1) & (first["nodes"] == 1)]

    def runs_by_law(times_of):
        rng = np.random.default_rng(1)
        cells = []
        for nodes, devices in itertools.product((1, 2, 4), (1, 2, 4)):
            cell = first.assign(
                nodes=nodes, devices_per_node=devices, n_devices=nodes * devices, cell=f"n{nodes}.d{devices}"
            )
            noise = np.exp(0.02 * rng.standard_normal(len(cell)))
            cells.append(cell.assign(epoch_time_s=times_of(nodes, devices) * noise))
        return pd.concat(cells, ignore_index=True)

    return runs_by_law


def test_a_series_varies_either_nodes_or_devices(two_ways):
    table = scaling.table(two_ways(lambda nodes, devices: seconds(nodes * devices, 0.1)))
    data = table.data
    assert data[["nodes", "devices_per_node", "n_devices"]].astype(str).to_numpy().tolist() == [
        ["1, 2, 4", "1", "1, 2, 4"],
        ["1, 2, 4", "2", "2, 4, 8"],
        ["1, 2, 4", "4", "4, 8, 16"],
        ["1", "1, 2, 4", "1, 2, 4"],
        ["2", "1, 2, 4", "2, 4, 8"],
        ["4", "1, 2, 4", "4, 8, 16"],
    ]
    assert data["scaled"].tolist() == ["nodes"] * 3 + ["devices_per_node"] * 3
    assert ((data["serial_fraction_low"] < 0.1) & (data["serial_fraction_high"] > 0.1)).all(), (
        "p is the devices"
    )
    assert scaling.SERIES_OF_EITHER in table.notes
    assert "few-device-counts" not in codes(table.notes)
    assert table.rules_above == [3]


def test_cells_that_scale_one_way_are_not_said_to_scale_no_way(two_ways):
    runs = two_ways(lambda nodes, devices: seconds(nodes * devices, 0.1))
    corner = runs[(runs["nodes"] == 1) | (runs["devices_per_node"] == 1)]
    data, notes = scaling.build_rows(corner)
    assert data["n_devices"].tolist() == ["1, 2, 4", "1, 2, 4"] and not notes
    apart = runs[runs["nodes"] + runs["devices_per_node"] == 3]
    (notes,) = scaling.build_rows(apart)[1]
    assert notes.facts["series"] == ["devices per node 2", "devices per node 1", "1 node", "2 nodes"]
    assert notes.endswith("fits: devices per node 2; devices per node 1; 1 node; 2 nodes.")
