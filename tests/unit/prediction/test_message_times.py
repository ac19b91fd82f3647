"""The law of all-reduce finds what benchmarks were made from, and says no more than they do."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from models.collectives import COLLECTIVES
from prediction.message_times import (
    LARGEST,
    PIPELINED,
    SUM,
    MessageTimeModel,
    benchmark_points,
    fit_message_times,
    rate_text,
)
from support import known_physics as synthetic
from support.known_physics import Truth

ALPHA, BETA = 2e-5, 1e-9  # a message's latency and time per byte, as in the papers


def seconds(law, size, nodes, rate=np.nan, ranks=None):
    (value,) = law.times(*map(np.atleast_1d, (size, nodes, ranks or nodes, rate)))[0]
    return float(value)


def benchmarks(
    time,
    nodes=(2, 3, 4, 8),
    rates=(125e6,),
    sizes=(1024, 4096, 65536, 2**20, 2**22, 2**24),
    collective="all_reduce",
):
    rows = [(n, n, rate, float(size), time(size, n, rate)) for n in nodes for rate in rates for size in sizes]
    frame = pd.DataFrame(rows, columns=["nodes", "ranks", "link_bytes_s", "bytes", "seconds"]).astype(float)
    return frame.assign(framework="made-up", collective=collective)


@pytest.mark.parametrize(("p", "size"), [(2, 1), (4, 2**20), (8, 10**8)])
def test_a_ring_costs_what_thakur_et_al_say(p, size):
    """2 (p - 1) alpha + 2 (p - 1) / p n beta: their section 4.5, without the cost of adding up."""
    law = MessageTimeModel("ring", PIPELINED, 0.0, 2 * ALPHA, 1.0, 0.0)
    assert seconds(law, size, p, 1 / BETA) == pytest.approx(
        2 * (p - 1) * ALPHA + 2 * (p - 1) / p * size * BETA
    )


def test_two_ranks_are_hockneys_line():
    """t = (n + n_half) / r_inf (Hockney 1994, equation 1)."""
    r_inf, n_half = 1e8, 2e4
    law = fit_message_times(benchmarks(lambda size, n, rate: (size + n_half) / r_inf, nodes=(2,)))
    assert law.round_latency_s == pytest.approx(n_half / r_inf, rel=1e-6)
    assert law.link / 125e6 == pytest.approx(1 / r_inf, rel=1e-6)
    assert np.isnan(law.misfit)  # one place


@pytest.mark.parametrize(("algorithm", "growth"), [("ring", lambda n: n - 1), ("tree", np.log2)])
def test_the_algorithm_is_found(algorithm, growth):
    truth = lambda size, n, rate: 1e-3 * growth(n) + 2 * (n - 1) / n * size / (0.9 * rate)  # noqa: E731
    law = fit_message_times(benchmarks(truth))
    assert law.algorithm == algorithm
    assert law.round_latency_s == pytest.approx(1e-3, rel=0.01)
    assert 1 / law.link == pytest.approx(0.9, rel=0.01)
    assert seconds(law, 3e6, 64, 125e6) == pytest.approx(truth(3e6, 64, 125e6), rel=0.01)
    assert (
        fit_message_times(benchmarks(truth, nodes=(2, 3))).algorithm == "ring"
    )  # two numbers of ranks cannot tell


@pytest.mark.parametrize("way", [PIPELINED, SUM, LARGEST])
def test_what_happens_at_once_is_found_and_other_rates_follow(way):
    truth = Truth(byte_s=20e-9, step_s=0.002, way=way)
    law = fit_message_times(benchmark_points(synthetic.network(truth, noise=0.01)))
    assert law.mode == way
    assert 1 / law.link == pytest.approx(truth.share, rel=0.02)
    assert law.cost_s == pytest.approx(truth.byte_s, rel=0.02)
    assert law.round_latency_s == pytest.approx(truth.step_s, rel=0.05)
    for rate in (6e6, 60e6, 12.5e9):
        for size in (100.0, 1e5, 4e6):
            assert seconds(law, size, 5, rate) == pytest.approx(truth.all_reduce(size, 5, rate), rel=0.03)


def test_bytes_keep_others_from_the_link_and_latency_does_not():
    size_and_place = np.array([[4e6], [3], [3], [125e6]])
    for way, expected in ((PIPELINED, 1e-3), (LARGEST, 0.0)):
        seconds, occupied = MessageTimeModel("ring", way, 0.0, 0.5e-3, 1.0, 0.0).times(*size_and_place)
        assert occupied == pytest.approx(2 * 2 / 3 * 4e6 / 125e6)
        assert seconds - occupied == pytest.approx(expected)


def test_one_rate_is_all_of_links_and_no_rate_all_of_processors():
    built = synthetic.network(Truth(byte_s=1e-9), rates=(125e6,), noise=0.0)
    law = fit_message_times(benchmark_points(built))
    assert law.cost_s == 0
    assert seconds(law, 4e6, 3, 1.25e9) < seconds(law, 4e6, 3, 125e6) / 5
    law = fit_message_times(benchmark_points(built.assign(link_bytes_s=np.nan)))
    assert law.link == 0
    assert law.cost_s == pytest.approx(1 / (0.9 * 125e6), rel=0.01)


def test_a_shaped_and_an_unshaped_network_make_one_law():
    shaped, free = (
        synthetic.network(Truth(byte_s=3e-9), rates=(rate,), noise=0.01) for rate in (125e6, 1e15)
    )
    law = fit_message_times(benchmark_points(pd.concat([shaped, free.assign(link_bytes_s=np.nan)])))
    assert 1 / law.link == pytest.approx(0.9, rel=0.02)
    assert law.cost_s == pytest.approx(3e-9, rel=0.02)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_has_a_law(collective):
    """There are two ranks on each node; the latency of a point-to-point message does not grow with them."""
    grows = (lambda p: 1) if collective == "point_to_point" else (lambda p: p - 1)
    leaves = {
        "all_reduce": lambda n: 2 * (n - 1) / n,
        "all_to_all": lambda n: 2 * (n - 1) / n,
        "point_to_point": lambda n: 1,
    }.get(collective, lambda n: (n - 1) / n)
    truth = lambda size, n, rate: 1e-3 * grows(2 * n) + leaves(n) * size / (0.9 * rate)  # noqa: E731
    law = fit_message_times(
        benchmarks(truth, collective=collective).assign(ranks=lambda built: 2 * built["nodes"])
    )
    assert (law.collective, 1 / law.link) == (collective, pytest.approx(0.9, rel=0.01))
    for nodes, rate in ((16, 125e6), (5, 1e9)):
        assert seconds(law, 3e6, nodes, rate, 2 * nodes) == pytest.approx(truth(3e6, nodes, rate), rel=0.01)
    assert seconds(law, 3e6, 1, 125e6, ranks=1) == 0


def test_what_a_library_does_by_size_is_kept():
    odd = lambda size, n, rate: (3 if size == 2**20 else 1) * (1e-3 * (n - 1) + size / 1e8)  # noqa: E731
    law = fit_message_times(benchmarks(odd))
    assert seconds(law, 2**20, 3, 125e6) == pytest.approx(odd(2**20, 3, 0), rel=1e-6)
    even = fit_message_times(benchmarks(lambda size, n, rate: 1e-3 * (n - 1) + size / 1e8))
    at_1_mib, at_4_mib = (
        seconds(law, size, 5, 125e6) / seconds(even, size, 5, 125e6) for size in (2**20, 2**22)
    )
    assert at_1_mib / at_4_mib == pytest.approx(3, rel=0.3)  # on nodes that were not benchmarked, too


def test_the_median_of_a_round_is_not_moved_by_one_hiccup():
    built = synthetic.network(rates=(125e6,), noise=0.0)
    built = pd.concat([built.assign(repetition=k) for k in (1, 2, 3)])
    built.loc[built["repetition"] == 3, "seconds"] = 9.0
    assert benchmark_points(built)["seconds"].max() < 9


def test_misfit_is_the_noise_of_a_point_with_two_parameters():
    rng = np.random.default_rng(3)
    squares = [
        fit_message_times(
            benchmarks(
                lambda size, n, rate: (
                    (1e-3 * (n - 1) + 2 * (n - 1) / n * size / 1e8) * np.exp(0.05 * rng.standard_normal())
                ),
                (2, 3),
            )
        ).misfit
        ** 2
        for _ in range(60)
    ]
    assert 0.04 < np.sqrt(np.mean(squares)) < 0.06


def test_of_a_size_that_is_not_known_nothing_is_known():
    built = fit_message_times(benchmarks(lambda size, n, rate: 1e-3 + size / rate))
    assert np.isnan(seconds(built, np.nan, 2, 125e6)) and seconds(built, 1e6, 2, 125e6) > 0


def test_no_law_without_two_sizes():
    assert fit_message_times(benchmarks(lambda *_: 1.0, sizes=(1024,))) is None
    assert fit_message_times(benchmark_points(synthetic.network()).iloc[:0]) is None


def test_one_rank_communicates_nothing():
    law = dataclasses.replace(MessageTimeModel("tree", SUM, 1.0, 1.0, 1.0, 1.0))
    assert seconds(law, 1e6, 1, 1e9) == 0


@pytest.mark.parametrize(
    ("rate", "text"), [(12.5e6, "100 Mbit/s"), (3.125e9, "25 Gbit/s"), (np.nan, "no known rate")]
)
def test_rates_are_read_as_people_write_them(rate, text):
    assert rate_text(rate) == text
