"""Measurements in the form of a search: costs of parts, links, messages; missing ones are named."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from common.notes import Note, find_note
from declared.virtual import burst_bytes
from models.soap import divide
from network.bus import bus_bandwidth
from strategies import study_search
from strategies.costs import measured_costs
from strategies.find import METHODS
from strategies.measured import (
    MissingMeasurement,
    measured_rows,
    measured_topology,
    message_cost,
    select_costs,
)
from strategies.problem import pose
from strategies.question import START_TITLES
from strategies.topology import LinkTier
from support.timed_parts import BANDWIDTH_BYTES_S, MEMORY, handled, network_rows, run_of, timed


def test_problem_has_measured_times_of_parts() -> None:
    run = run_of()
    space = divide(run.graph, 64)
    posed = pose(
        space,
        measured_topology(network_rows(), handled().iloc[:0], run, MEMORY),
        measured_costs(measured_rows(select_costs(timed(run), run))),
    )
    first, parts = posed.arrays.first_config, posed.arrays.parts
    for place in range(len(space.layers)):
        configurations = slice(first[place], first[place + 1])
        np.testing.assert_allclose(
            posed.arrays.forward[configurations], 1e12 * (1 + place) / parts[configurations], rtol=1e-9
        )
        np.testing.assert_allclose(
            posed.arrays.backward[configurations], 2e12 * (1 + place) / parts[configurations], rtol=1e-9
        )
    assert posed.arrays.memory_limit[0] == MEMORY


def test_unmeasured_part_is_refused() -> None:
    run = run_of()
    cost = measured_costs(measured_rows(select_costs(timed(run), run)))
    with pytest.raises(ValueError, match=r"^conv1: .*\(8, 1, 1, 1\)"):
        cost(divide(run.graph, 64), 0, (8, 1, 1, 1))


def test_links_are_fitted_to_matching_benchmarks() -> None:
    network = pd.concat(
        [network_rows(), network_rows(nodes=2), network_rows(bandwidth=100, seconds=1.0)], ignore_index=True
    )
    result = measured_topology(network, handled(), run_of(), MEMORY)
    (link,) = result.tiers
    assert (link.units, result.devices, result.device.memory_bytes) == (4, 4, MEMORY)
    assert (link.latency_s, link.bytes_s) == (pytest.approx(2e-4), pytest.approx(BANDWIDTH_BYTES_S))
    device = result.device
    assert (device.send_s, device.receive_byte_s) == (pytest.approx(5e-5), pytest.approx(2e-9))
    with_a_quota = measured_topology(network, handled(), run_of(), MEMORY, 0.5).device
    assert (with_a_quota.send_s, with_a_quota.receive_byte_s) == (pytest.approx(1e-4), pytest.approx(4e-9))
    assert link.ring_bytes_s == pytest.approx(BANDWIDTH_BYTES_S), "bus bandwidth"
    assert link.ring_latency_s == pytest.approx(9e-4 / 6), "of each of 2 (n - 1) steps"
    assert measured_topology(network, handled(), run_of(nodes=2), MEMORY).tiers[
        0
    ].ring_latency_s == pytest.approx(9e-4 / 2)
    assert measured_topology(network, handled(), run_of(nodes=1), MEMORY).tiers == (LinkTier(1, math.inf),)


def test_virtual_links_have_a_burst() -> None:
    rate, latency = 12.5e6, {"point_to_point": 5e-4, "all_reduce": 1.2e-2}
    network = network_rows(bandwidth=100, placement="virtual", link_bytes_s=rate)
    bus = [
        bus_bandwidth(size, 1, 4, collective)
        for size, collective in zip(network["bytes"], network["collective"], strict=True)
    ]
    network["seconds"] = np.maximum(network["collective"].map(latency), np.array(bus) / 11e6)
    (link,) = measured_topology(network, handled(), run_of(bandwidth=[100]), MEMORY).tiers
    assert (link.latency_s, link.ring_latency_s) == (pytest.approx(5e-4), pytest.approx(1.2e-2 / 6))
    assert (link.bytes_s, link.ring_bytes_s) == (pytest.approx(11e6), pytest.approx(11e6))
    assert link.burst_bytes == burst_bytes(rate) == 80_000
    elsewhere = network.assign(placement="distinct-nodes")
    assert measured_topology(elsewhere, handled(), run_of(bandwidth=[100]), MEMORY).tiers[0].burst_bytes == 0


@pytest.mark.parametrize(
    ("network", "code", "facts"),
    [
        (network_rows(nodes=2), "not-measured", {"table": "network.csv"}),
        (
            network_rows(status="failed", reason="rank 1 broke"),
            "measurement-failed",
            {"table": "network.csv", "status": "failed", "reason": "rank 1 broke"},
        ),
        (network_rows(seconds=1e-3), "times-do-not-grow", {}),
    ],
)
def test_missing_link_measurements_are_named(network: pd.DataFrame, code: str, facts: dict[str, Any]) -> None:
    with pytest.raises(MissingMeasurement) as missing:
        measured_topology(network, handled(), run_of(), MEMORY)
    request = {"framework": "pytorch-strategy", "collective": "point_to_point", "nodes": 4}
    assert (missing.value.note.code, missing.value.note.facts) == (code, request | facts)


def test_links_within_a_node_are_refused() -> None:
    with pytest.raises(MissingMeasurement) as missing:
        measured_topology(network_rows(nodes=2), handled(), run_of(nodes=2, ranks_per_node=2), MEMORY)
    assert missing.value.note.code == "links-within-node" and missing.value.note.facts == {
        "ranks_per_node": 2
    }


@pytest.mark.parametrize(
    ("change", "code", "facts"),
    [
        (
            {"status": "timeout", "reason": "not finished"},
            "measurement-failed",
            {"table": "costs.csv", "status": "timeout", "reason": "not finished"},
        ),
        ({"batch_size": 32}, "not-measured", {"table": "costs.csv"}),
        ({"devices": 2}, "too-few-devices", {"devices": 2, "ranks": 4}),
    ],
)
def test_missing_cost_measurements_are_named(
    change: dict[str, Any], code: str, facts: dict[str, Any]
) -> None:
    run = run_of()
    with pytest.raises(MissingMeasurement) as missing:
        select_costs(timed(run, **change), run)
    note = missing.value.note
    assert note.code == code and {name: note.facts[name] for name in facts} == facts
    assert (note.facts["model"], note.facts["framework"], note.facts["batch_size"]) == (
        "lenet-5",
        "pytorch-strategy",
        64,
    )


def test_message_cost_grows_with_bytes() -> None:
    cost = message_cost(handled())
    assert cost is not None
    lines = (cost.send_s, cost.send_byte_s, cost.receive_s, cost.receive_byte_s)
    assert lines == (pytest.approx(5e-5), pytest.approx(1e-9), pytest.approx(8e-5), pytest.approx(2e-9))
    assert message_cost(handled().assign(status="failed")) is None


def test_unbeaten_start_is_the_fastest_strategy() -> None:
    starts = [
        {"method": None, "start": name, "seconds": seconds}
        for name, seconds in (("data", 3.0), ("expert", 1.5))
    ]
    sizes = dict.fromkeys(("sent_activation_bytes", "gradient_bytes", "memory_bytes"), 7)
    answers = [
        {**start, **sizes} for start in [*starts, {"method": "metropolis", "start": "data", "seconds": 2.0}]
    ]
    row = study_search.answer_row(run_of(), answers)
    assert (row["data_s"], row["expert_s"], row["found_s"], row["method"]) == (3.0, 1.5, 1.5, "")
    too_large = [{**answer, "seconds": None, "memory_bytes": n} for n, answer in enumerate(answers, 7)]
    with pytest.raises(MissingMeasurement) as missing:
        study_search.answer_row(run_of(), too_large)
    assert (missing.value.note.code, missing.value.note.facts["least_bytes"]) == ("too-little-memory", 7)
    slower = {**row, "method": "metropolis", "start": "data", "bandwidth": 100}
    result = study_search.table([row, slower], {"another": Note("not-measured", "it was not measured")})
    assert result.display["bandwidth (Mbit/s)"].tolist() == ["0", "100"]
    by_start, by_search = result.display["found by"]
    assert (
        by_start == START_TITLES["expert"]
        and METHODS["metropolis"] in by_search
        and START_TITLES["data"] in by_search
    )
    assert result.display["speed-up"].tolist() == ["2.00"] * 2
    unanswered = find_note(result.below, "question-unanswered")
    assert unanswered.facts["question"] == "another" and unanswered.facts["reason"].code == "not-measured"
