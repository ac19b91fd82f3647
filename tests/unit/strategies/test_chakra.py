"""Execution traces of simulated steps: read by the package's reader, and replayed to the picosecond."""

import json
from functools import partial
from pathlib import Path

import pytest

from common.errors import InputError
from models.named import graph
from models.operations import FLOPS_PER_MAC
from models.soap import divide
from strategies import chakra, starts
from strategies.costs import roofline
from strategies.problem import FASTEST, GRADIENTS, MESSAGES, RING, Posed, pose
from strategies.topology import LinkTier, Topology
from support.chakra_traces import Node, Replay, check_traces, read_traces
from support.planned_models import HANDLING, SLOW, SMALL_DEVICE, SMALL_MODELS
from traces.chakra import GROUPS, write

TOPOLOGIES = {
    2: Topology(SMALL_DEVICE, (LinkTier(2, 1e9, 1e-6),)),
    4: Topology(HANDLING, (LinkTier(2, 1e9, 1e-6), SLOW)),
    8: Topology(SMALL_DEVICE, (LinkTier(2, 1e9, 1e-6), LinkTier(2, 5e8, 5e-6), LinkTier(2, 1e8, 1e-5))),
}
BATCH = 8


@pytest.fixture(scope="module")
def python(real) -> Path:
    """Return the interpreter that has the schema."""
    return Path(real("chakra")["python"]["executable"])


def pose_model(name: str, devices: int, gradients: str) -> Posed:
    topology = TOPOLOGIES[devices]
    cost = partial(roofline, device=topology.device, update_bytes=32)
    return pose(divide(graph(name, *SMALL_MODELS[name]), BATCH), topology, cost, gradients=gradients)


def write_traces(posed: Posed, folder: Path, names: list[str], python: Path) -> dict[str, int]:
    """Write the traces of these starts, and return their simulated steps in ps."""
    strategies = {**starts.all_strategies(posed, 1), "other": starts.random_strategy(posed, 7)}
    steps = {}
    for name in names:
        nodes, steps[name] = chakra.build_graph(posed, strategies[name])
        write(nodes, folder, name, {"strategy": name}, str(python))
    return steps


@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize(("model", "devices"), list(zip(sorted(SMALL_MODELS), (4, 2, 8, 4), strict=True)))
def test_replayed_trace_takes_the_simulated_step(
    tmp_path: Path, python: Path, model: str, devices: int, gradients: str
) -> None:
    posed = pose_model(model, devices, gradients)
    steps = write_traces(posed, tmp_path, ["data", "units", "random", "other"], python)
    for name, ranks in zip(steps, read_traces(python, [tmp_path / name for name in steps]), strict=True):
        groups = json.loads((tmp_path / f"{name}.{GROUPS}").read_text())
        assert len(ranks) == devices
        check_traces(ranks, groups)
        assert Replay(posed.topology, gradients == RING).step_ps(ranks, groups) == steps[name]
        check_computations(ranks, gradients)
        check_types(ranks)


def check_computations(ranks: list[list[Node]], gradients: str) -> None:
    """Check that rounding costs at most a microsecond of a rank's time."""
    for nodes in ranks:
        computed = [node for node in nodes if node["type"] == "COMP_NODE"]
        rounded, exact = (sum(node[unit] for node in computed) for unit in ("duration_micros", "duration_ps"))
        assert abs(rounded - exact / 1e6) <= 1
        on_cpu = [node for node in computed if node["is_cpu_op"]]
        assert not on_cpu or gradients == MESSAGES


def check_types(ranks: list[list[Node]]) -> None:
    """Check that attributes have the types that ASTRA-sim's feeder reads."""
    expected = {
        **dict.fromkeys(("comm_src", "comm_dst", "comm_tag"), "int32_val"),
        **dict.fromkeys(("comm_size", "comm_type", "num_ops"), "int64_val"),
        "tensor_size": "uint64_val",
        "is_cpu_op": "bool_val",
    }
    types = {item for nodes in ranks for node in nodes for item in node["types"].items()}
    assert {name: kind for name, kind in types if name in expected}.items() <= expected.items()
    assert ("tensor_size", "uint64_val") in types


def test_data_parallelism_has_one_collective_for_each_bucket(tmp_path: Path, python: Path) -> None:
    posed = pose_model("lenet-5", 2, FASTEST)
    write_traces(posed, tmp_path, ["data"], python)
    (ranks,) = read_traces(python, [tmp_path / "data"])
    kinds = [[node["type"] for node in nodes] for nodes in ranks]
    assert kinds[0] == kinds[1] and not {"COMM_SEND_NODE", "COMM_RECV_NODE"} & set(kinds[0])
    (gradients,) = [node for node in ranks[0] if node["type"] == "COMM_COLL_NODE"]
    assert gradients["comm_size"] == graph("lenet-5", *SMALL_MODELS["lenet-5"]).gradient_bytes
    assert (gradients["comm_type"], gradients["pg_name"]) == (0, "1")
    n_operations = sum(node.get("num_ops", 0) for nodes in ranks for node in nodes)
    assert n_operations == 3 * FLOPS_PER_MAC * sum(layer.macs for layer in posed.space.layers)
    assert ranks[0][-1]["name"] == "optimizer" and gradients["id"] in ranks[0][-1]["data_deps"]


def test_files_of_a_larger_trace_are_removed(tmp_path: Path, python: Path) -> None:
    for devices in (4, 2):
        write_traces(pose_model("lenet-5", devices, FASTEST), tmp_path, ["data"], python)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data.0.et", "data.1.et", f"data.{GROUPS}"]


def test_strategy_of_a_trace_is_the_fastest_or_named() -> None:
    answers = [{"seconds": 2.0}, {"seconds": 1.0}, {"seconds": None}]
    names = ["data parallelism", "an expert's rule", "a random strategy"]
    assert chakra.choose_answer(answers, names, None) == 1
    assert chakra.choose_answer(answers, names, "data parallelism") == 0
    for name, code in (("data", "unknown-name"), ("a random strategy", "too-little-memory")):
        with pytest.raises(InputError) as refused:
            chakra.choose_answer(answers, names, name)
        assert (refused.value.code, refused.value.file, refused.value.got) == (code, "--strategy", name)
