"""The fit recovers latency and bandwidth, and its intervals cover the true values."""

import numpy as np
import pandas as pd
import pytest

from analysis import tables
from common.notes import codes, find_note
from common.schemas import schema
from common.tables import write_table
from models.collectives import COLLECTIVES
from network import fit
from network.gather import bus_bandwidth

from .conftest import BANDWIDTH_BYTES_S, LATENCY_S, benchmark_rows, failed_row


def test_without_noise_the_fit_is_exact():
    model = fit.fit_benchmark(benchmark_rows(noise=0))
    assert model.latency_s.value == pytest.approx(LATENCY_S, rel=1e-9)
    assert model.bandwidth_bytes_s.value == pytest.approx(BANDWIDTH_BYTES_S, rel=1e-9)
    assert model.deviation < 1e-9


def test_small_messages_decide_latency_large_ones_bandwidth():
    model = fit.fit_benchmark(benchmark_rows(noise=0.03))
    assert model.latency_s.value == pytest.approx(LATENCY_S, rel=0.03)
    assert model.bandwidth_bytes_s.value == pytest.approx(BANDWIDTH_BYTES_S, rel=0.03)
    late = benchmark_rows(noise=0)
    late.loc[late["bytes"] <= 16384, "seconds"] *= 2
    assert fit.fit_benchmark(late).latency_s.value > 1.3 * LATENCY_S
    assert fit.fit_benchmark(late).bandwidth_bytes_s.value == pytest.approx(BANDWIDTH_BYTES_S, rel=0.1)
    assert fit.fit_benchmark(late).deviation > 0.2


@pytest.mark.parametrize("round_noise", [0, 0.1])
def test_intervals_cover_the_true_value(round_noise):
    models = [
        fit.fit_benchmark(benchmark_rows(noise=0.03, round_noise=round_noise, seed=seed))
        for seed in range(200)
    ]
    for truth, estimates in (
        (LATENCY_S, [model.latency_s for model in models]),
        (BANDWIDTH_BYTES_S, [model.bandwidth_bytes_s for model in models]),
    ):
        coverage = np.mean([estimate.low <= truth <= estimate.high for estimate in estimates])
        assert 0.90 <= coverage <= 0.99
        widths = [(estimate.high - estimate.low) / truth for estimate in estimates]
        assert np.median(widths) < (0.05 if round_noise == 0 else 0.25), "intervals are not trivially wide"


def test_one_round_has_no_interval_and_one_size_no_fit():
    model = fit.fit_benchmark(benchmark_rows(rounds=1))
    assert np.isnan(model.latency_s.low) and np.isnan(model.bandwidth_bytes_s.low) and model.latency_s.n == 1
    rows = benchmark_rows()
    assert fit.fit_benchmark(rows[rows["bytes"] == 1024]) is None


# Minimum traffic of each of four ranks, and of each of two nodes with two ranks, for messages of size 1.
SENT = {
    "all_reduce": (2 * 3 / 4, 2 * 1 / 2),  # Patarasuk & Yuan 2009
    "all_gather": (3 / 4, 1 / 2),  # its share to three ranks; the shares of two ranks to the other node
    "reduce_scatter": (
        3 / 4,
        1 / 2,
    ),  # what it has of three shares; what a node has of the other's two shares
    "all_to_all": (3 / 4, 2 * 2 / 4),  # three shares; two ranks' two shares each
    "point_to_point": (1, 1),  # its message; that of the node's last rank
}


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_bus_bandwidth_is_what_a_rank_sends(collective):
    sent, _ = SENT[collective]
    assert bus_bandwidth(1000, 2, 4, collective) == 1000 * sent / 2


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_link_bounds_what_leaves_a_node(collective):
    assert fit.bandwidth_bound(125e6, 3, 3, collective) == pytest.approx(125e6)
    seconds = SENT[collective][1] * 1000 / 125e6
    assert bus_bandwidth(1000, seconds, 4, collective) == pytest.approx(
        fit.bandwidth_bound(125e6, 2, 4, collective)
    )
    assert np.isnan(fit.bandwidth_bound(float("nan"), 2, 2, collective))


def test_the_table_has_a_row_for_every_benchmark(network):
    table = fit.table(network)
    assert table.data[["framework", "nodes", "status"]].values.tolist() == [
        ["horovod-pytorch", 2, "failed"],
        ["pytorch-ddp", 2, "ok"],
        ["pytorch-ddp", 3, "ok"],
        ["tensorflow-multiworker", 2, "ok"],
    ]
    ok = table.data[table.data["status"] == "ok"]
    assert ok["share"].to_numpy() == pytest.approx(BANDWIDTH_BYTES_S / 125e6, rel=0.05)
    assert (ok["share_low"] < ok["share"]).all() and (ok["n"] == 5).all()
    assert ok["largest_bytes"].tolist() == [64 * 2**20] * 3
    assert ok["achieved_bytes_s"].to_numpy() == pytest.approx(BANDWIDTH_BYTES_S, rel=0.05)
    assert "share of the link (%)" in table.display and "at 64 MiB (MB/s)" in table.display
    failed = ("failed", "rank 1 ended with status 1: it broke")
    assert find_note(table.notes, "missing-benchmarks").facts == {
        "benchmarks": {"horovod-pytorch on 2 nodes": failed}
    }
    facts = {"rounds": [5], "placements": ["virtual"], "repetitions": [25]}
    assert find_note(table.notes, "circumstances").facts == facts
    assert find_note(table.notes, "link-rates").facts == {"bytes_s": [125e6]}


def test_each_collective_has_its_own_rows(network):
    additional = [
        benchmark_rows(nodes=2, seed=seed, collective=name)
        for seed, name in enumerate(("reduce_scatter", "all_gather"))
    ]
    table = fit.table(pd.concat([network, *(rows.astype(object) for rows in additional)], ignore_index=True))
    ok = table.data[(table.data["status"] == "ok") & (table.data["nodes"] == 2)]
    assert ok[["collective", "framework"]].values.tolist() == [
        ["all_reduce", "pytorch-ddp"],
        ["all_reduce", "tensorflow-multiworker"],
        ["all_gather", "pytorch-ddp"],
        ["reduce_scatter", "pytorch-ddp"],
    ]
    for name, truth in (("latency_s", LATENCY_S), ("bandwidth_bytes_s", BANDWIDTH_BYTES_S)):
        assert ok[name].to_numpy() == pytest.approx(truth, rel=0.05)
    assert table.display["collective"].tolist()[-2:] == ["all-gather", "reduce-scatter"]
    factors = {"2 (n − 1) / n": ["all_reduce"], "(n − 1) / n": ["all_gather", "reduce_scatter"]}
    assert find_note(table.notes, "how-fitted").facts == {"factors": factors}
    assert "faster-than-link" not in codes(table.notes)
    assert "collective" not in fit.table(network).data, "tables of all-reduce alone are as they were"


def test_a_poor_fit_shows_no_latency_and_bandwidth(network):
    table = fit.table(network.assign(seconds=network["seconds"].where(network["bytes"] != 2**20, 9.0)))
    assert (table.data["deviation"].dropna() > fit.MAX_FIT_DEVIATION).all()
    fitted = [name for name in table.display if name.startswith(("latency", "bandwidth"))]
    assert len(fitted) == 2 and (table.display[fitted] == tables.DASH).all(axis=None)
    assert "rough-fits" in codes(table.notes)


def test_without_the_links_rate_no_share_is_shown(network):
    table = fit.table(network.assign(link_bytes_s=float("nan")))
    assert "share of the link (%)" not in table.display
    assert "no-link-rate" in codes(table.notes) and "link-rates" not in codes(table.notes)


@pytest.mark.parametrize("case", ["no benchmark", "all failed"])
def test_study_without_numbers_has_a_table_with_reasons(case, tmp_path):
    empty = pd.DataFrame(columns=list(schema("network")["properties"]))
    write_table(empty if case == "no benchmark" else failed_row(), "network", tmp_path / "network.csv")
    fit.main(network=tmp_path / "network.csv", out=tmp_path / "table")
    text = (tmp_path / "table.md").read_text()
    assert (fit.NO_BENCHMARK if case == "no benchmark" else "it broke") in text
    assert {path.suffix for path in tmp_path.glob("table.*")} == {".csv", ".md", ".tex"}


@pytest.mark.parametrize(
    ("size", "text"), [(512, "512 B"), (1024, "1 KiB"), (65536, "64 KiB"), (2**30, "1 GiB"), (2**32, "4 GiB")]
)
def test_sizes_have_binary_units(size, text):
    assert fit.bytes_text(size) == text


def test_a_fit_above_the_link_is_named():
    rows = benchmark_rows(nodes=2, noise=0.001, link_bytes_s=BANDWIDTH_BYTES_S)
    between = (rows["bytes"] > 4096) & (rows["bytes"] < 16 * 2**20)
    rows.loc[between, "seconds"] *= 0.6  # bursts
    table = fit.table(rows)
    assert table.data["bandwidth_bytes_s"][0] > BANDWIDTH_BYTES_S
    assert table.data["share"][0] == pytest.approx(1, abs=0.02)
    assert find_note(table.notes, "faster-than-link").facts == {"benchmarks": ["pytorch-ddp on 2 nodes"]}
    assert "faster-than-link" not in codes(fit.table(benchmark_rows()).notes)
