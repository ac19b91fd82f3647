"""Device meshes that the planner enumerates, simulates and suggests."""

from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from common.notes import find_note
from declared.frameworks import load_framework
from declared.models import model_graph
from declared.site import load_site
from declared.study import load_study
from models.graph import Graph
from models.mesh import Mesh
from models.named import graph
from models.precision import AMP, FP32
from models.soap import divide
from plan.design import plan_design
from strategies import find, meshes
from strategies.costs import roofline
from strategies.mesh_costs import UNPARTITIONED, StepSimulator
from strategies.question import ALL_SPACES, MESH, build_question, choose_topology
from strategies.topology import NUMBER_BYTES, Topology

MODEL = graph("gpt-nano", (32,), 64, 64, "next")
MOE = graph("llama-moe-nano", (32,), 64, 64, "next")
SIMPLE = {
    "optimizer": "adam",
    "momentum": 0.9,
    "sync_every": 1,
    "microbatches": 1,
    "schedule": "1f1b",
    "sharding": "parameters",
    "tensor_sharding": "layers",
    "checkpointing": "none",
}


def devices(count: int, name: str = "h100", precision: str = FP32) -> Topology:
    return choose_topology(name, count, None, [], precision)


def step(mesh: Mesh, batch: int = 8, model: Graph = MODEL, **levels: object):
    return StepSimulator(model, devices(mesh.ranks), 4).simulate(mesh, batch, SIMPLE | levels)


@pytest.mark.slow
def test_large_model_is_sharded_and_recomputed() -> None:
    """13 billion parameters on eight devices of 80 GB, with the micro-batch of the public series of MPT."""
    model = graph("mpt-13b", (2048,), 50368, 50368, "next")
    answers, note = meshes.plan_meshes(model, devices(8, precision=AMP), 8 * 16, AMP, 4)
    (suggested,) = [answer for answer in answers if answer["suggested"]]
    assert suggested["start"] == "sharded 8, checkpointing blocks"
    assert suggested["levels"]["parallelism"] == "sharded8"
    (plain,) = [answer for answer in answers if answer["is_plain"]]
    assert plain["seconds"] is None and plain["weight_bytes"] > 2 * 80e9, "none fits without shards"
    assert 0 < note.facts["fitting"] < note.facts["meshes"]
    fitting = [answer["seconds"] for answer in answers if answer["seconds"]]
    assert fitting == sorted(fitting) and suggested["seconds"] < 1.2 * fitting[0]


def test_small_model_is_data_parallel() -> None:
    answers, note = meshes.plan_meshes(MODEL, devices(2), 8, FP32, 4)
    (suggested,) = [answer for answer in answers if answer["suggested"]]
    assert suggested["start"].startswith(("data 2", "sharded 2")) and note.facts["fitting"] > 10
    assert {answer["method"] for answer in answers} == {meshes.METHOD}


def test_what_the_framework_refuses_is_left_out() -> None:
    topology = devices(4)
    common = meshes.common_levels(MODEL, topology, 8, FP32, 4)
    acceptance = meshes.Acceptance(topology)
    by_answer = {True: [], False: []}
    for setting in meshes.settings(MODEL, topology, 8, common):
        by_answer[acceptance.accepts(setting)].append(setting)
    assert any(setting.levels["microbatches"] < setting.mesh.pipeline for setting in by_answer[False])
    framework = load_framework(meshes.FRAMEWORK)
    assert all(framework.supports(setting.levels) for setting in by_answer[True])
    kinds = {setting.mesh.axes for setting in by_answer[True]}
    assert {("data",), ("sharded",), ("tensor",), ("pipeline",), ("pipeline", "tensor")} <= kinds
    experts = [mesh for mesh in meshes.meshes(MOE, topology) if mesh.experts > 1]
    assert {mesh.name for mesh in experts} == {"data2-experts2", "experts4"}


def test_accumulation_divides_the_batch() -> None:
    topology = devices(4)
    common = meshes.common_levels(MODEL, topology, 8, FP32, 4)
    for setting in meshes.settings(MODEL, topology, 8, common):
        n_batches = setting.levels["sync_every"]
        assert setting.levels["batch_size"] * n_batches == 8
        assert setting.local_batch * setting.mesh.replicas * n_batches == 8


@pytest.mark.parametrize(
    ("model", "dataset"),
    [
        ("gpt-nano", "synthetic-tokens-64-32-100"),
        ("bert-nano", "synthetic-tokens-64-32-100"),
        ("rnn-text", "synthetic-text-64-32-5-100"),
        ("lenet-5", "synthetic-28x32x3-10-100"),
        ("unet-nano", "synthetic-regions-32x64x3-4-100"),
        ("dlrm-nano", "synthetic-clicks-100-100"),
    ],
)
def test_synthetic_data_have_the_samples_of_the_model(model: str, dataset: str) -> None:
    assert meshes.dataset_name(model_graph(model, dataset), 100) == dataset


def test_one_device_takes_the_roofline_of_its_layers() -> None:
    topology = choose_topology("p100", 1, None, [], FP32)
    simulator = StepSimulator(MODEL, topology, NUMBER_BYTES[FP32])
    space = divide(MODEL, 8)
    costs = [
        roofline(space, place, UNPARTITIONED, topology.device, update_bytes=32)
        for place in range(len(space.layers))
    ]
    seconds = simulator.simulate(Mesh(), 8, SIMPLE).seconds
    assert seconds == pytest.approx(sum(c.forward + c.backward + c.update for c in costs), rel=0.02)


def test_axes_and_recomputation_trade_memory_for_time() -> None:
    data, sharded = step(Mesh(data=4)), step(Mesh(sharded=4))
    assert sharded.weight_bytes == pytest.approx(data.weight_bytes / 4)
    assert sharded.gradient_bytes > data.gradient_bytes * 0.9 and data.output_bytes == 0
    full, blocks = step(Mesh(sharded=4), 64), step(Mesh(sharded=4), 64, checkpointing="blocks")
    selective = step(Mesh(sharded=4), 64, checkpointing="selective")
    assert blocks.memory_bytes < selective.memory_bytes < full.memory_bytes
    assert full.seconds < selective.seconds < blocks.seconds
    tensor, twice = step(Mesh(tensor=4)), step(Mesh(tensor=4), checkpointing="blocks")
    assert twice.output_bytes > tensor.output_bytes > 0
    assert step(Mesh(sharded=4), sync_every=4).seconds > 2 * sharded.seconds


def test_more_microbatches_shorten_the_bubble_of_a_pipeline() -> None:
    large = replace(devices(4).device, launch_s=0.0, large_share=None)
    topology = replace(devices(4), device=large)
    simulator = StepSimulator(MODEL, topology, 4)
    seconds = [
        simulator.simulate(Mesh(pipeline=4), 4096, SIMPLE | {"microbatches": count}).seconds
        for count in (4, 16)
    ]
    assert seconds[0] > 1.3 * seconds[1]


def test_a_pipeline_waits_for_each_message_that_it_hands_on() -> None:
    """Four microbatches on four stages: six turns of each pass end with a message."""
    model, tier, added_s = graph("llama-nano", (32,), 64, 64, "next"), devices(4).tiers[0], 1e-3
    slower = replace(devices(4), tiers=(replace(tier, latency_s=tier.latency_s + added_s),))
    levels = SIMPLE | {"microbatches": 4}
    fast_s, slow_s = (
        StepSimulator(model, topology, 4).simulate(Mesh(pipeline=4), 8, levels).seconds
        for topology in (devices(4), slower)
    )
    assert slow_s - fast_s == pytest.approx(2 * (4 + 4 - 2) * added_s)


def test_sent_bytes_are_those_of_all_replicas() -> None:
    replica, replicas = step(Mesh(tensor=2), 8), step(Mesh(data=2, tensor=2), 8)
    assert replicas.output_bytes == 2 * replica.output_bytes > 0 == replica.gradient_bytes


def test_sharded_parameters_are_gathered_by_units() -> None:
    """Reducing gradients alone keeps all parameters; else two units and what lies outside of blocks."""
    simulator = StepSimulator(MODEL, devices(4), 4)
    estimates = [
        simulator.simulate(Mesh(sharded=4), 8, SIMPLE | {"sharding": sharding})
        for sharding in ("gradients", "parameters")
    ]
    model_bytes, unit_bytes = (estimate.memory_bytes - estimate.weight_bytes for estimate in estimates)
    units = 2 * max(simulator.block_weights) + simulator.root_weights
    assert model_bytes - unit_bytes == pytest.approx(4 * (simulator.parameters - units))


def test_experts_exchange_positions() -> None:
    apart, together = step(Mesh(experts=4), model=MOE), step(Mesh(data=4), model=MOE)
    assert apart.output_bytes > 0 == together.output_bytes
    assert apart.weight_bytes < together.weight_bytes


def test_a_planned_mesh_is_a_study(tmp_path: Path) -> None:
    answers, _ = meshes.plan_meshes(MODEL, devices(4), 8, FP32, 4)
    site = replace(load_site("local"), ranks_per_node=4)
    for number, answer in enumerate(answers):
        (tmp_path / f"mesh-{number}.yaml").write_text(meshes.study_text(answer["levels"]))
        runs = plan_design(load_study(f"mesh-{number}", tmp_path), site)
        assert {run.geometry.effective_batch for run in runs} == {8}


def test_note_names_the_suggested_mesh() -> None:
    question = build_question(
        model="gpt-nano", batch_size=8, tokens="32:64", topology="h100", devices=2, space=MESH
    )
    answers, notes = find.all_answers(question)
    table = find.table(question, answers, notes)
    assert find_note(table.notes, "meshes").facts["suggested"] in {answer["start"] for answer in answers}
    assert list(table.data["step_s"].dropna()) == sorted(table.data["step_s"].dropna())


@pytest.mark.parametrize(
    ("model", "space"), [("gpt-nano", ALL_SPACES), ("llama-moe-nano", MESH), ("llama-3-8b", MESH)]
)
def test_layers_of_large_models_are_not_searched_by_default(model: str, space: str) -> None:
    assert build_question(model=model, batch_size=8, topology="h100", devices=8).space == space


def test_measured_parts_and_traces_are_of_strategies_of_layers(tmp_path: Path) -> None:
    question = {"model": "lenet-5", "batch_size": 8, "devices": 2, "topology": "h100"}
    with pytest.raises(InputError) as refused:
        build_question(**question, space=MESH, measure=True)
    assert (refused.value.code, refused.value.file) == ("conflicting-keys", "--measure")
    with pytest.raises(InputError) as refused:
        find.search(build_question(**question, space=MESH), traces=tmp_path)
    assert (refused.value.code, refused.value.file) == ("conflicting-keys", "--chakra")
