"""Topologies are read and checked."""

from pathlib import Path

import pytest

from common.errors import InputError
from declared.topologies import load_topology, topology_names
from strategies.topology import read_topology
from support.refusals import assert_refusal


@pytest.mark.parametrize("name", topology_names())
def test_those_that_are_shipped_are_right(name: str) -> None:
    topology = read_topology(load_topology(name))
    assert topology.devices >= 4 and topology.tier_between(0, topology.devices - 1) == len(topology.tiers) - 1
    assert topology.unit(0, 3) == 3 and topology.tier_between(0, 1) == 0


def test_a_mistake_is_told_with_file_and_key(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "title: t\nsource: s\ndevice: {tflops: 1, memory_gb_s: 1, memory_gb: 1}\nlevels: [{of: 0, gbit_s: "
        "1}]\n"
    )
    with pytest.raises(InputError) as refused:
        load_topology("mine", tmp_path)
    assert_refusal(refused.value, "out-of-range", "levels.0.of", file=f"{tmp_path}/mine.yaml", got=0)
    with pytest.raises(InputError) as refused:
        load_topology("other", tmp_path)
    assert_refusal(refused.value, "unknown-name", file="--topology", got="other", expected=["mine"])


@pytest.mark.parametrize(
    ("key", "value"), [("latency_us", "1.0e+308"), ("gbit_s", "1.0e-300"), ("gbit_s", "1.0e+300")]
)
def test_numbers_have_bounds(tmp_path: Path, key: str, value: str) -> None:
    level = {"of": "2", "gbit_s": "1", key: value}
    entries = ", ".join(f"{name}: {number}" for name, number in level.items())
    (tmp_path / "mine.yaml").write_text(
        f"title: t\nsource: s\ndevice: {{tflops: 1, memory_gb_s: 1, memory_gb: 1}}\nlevels: [{{{entries}}}]\n"
    )
    with pytest.raises(InputError) as refused:
        load_topology("mine", tmp_path)
    assert (refused.value.code, refused.value.key) == ("out-of-range", f"levels.0.{key}")
