"""Memory and messages of a rank, compared with numbers computed by hand."""

from typing import Any

import pytest

from declared.models import model_graph
from models.mesh import Mesh
from models.messages import step_demands

SGD: dict[str, Any] = {
    "optimizer": "sgd", "momentum": 0.9, "sync_every": 1, "microbatches": 1, "schedule": "1f1b",
    "sharding": "parameters", "tensor_sharding": "layers",
}  # fmt: skip
CNN = model_graph("small-cnn", "digits")  # 8 x 8 images, convolutions of 32 and 64 filters, dense 128 and 10
CONVS, FIRST, LAST = (
    4 * (9 * 32 + 32 + 9 * 32 * 64 + 64),
    4 * 4096 * 128,
    4 * 128 * 10,
)  # bytes; of dense layers only the kernels
BIASES = 4 * 128, 4 * 10
ALL = CONVS + FIRST + LAST + sum(BIASES)


def test_data_parallelism_divides_activations_only() -> None:
    (alone,), (two,) = step_demands(CNN, Mesh(), 64, SGD), step_demands(CNN, Mesh(data=2), 32, SGD)
    assert (
        alone.parameters == alone.gradients == alone.optimizer == two.parameters == ALL == CNN.gradient_bytes
    )
    assert alone.activations == 64 * CNN.activation_bytes == 2 * two.activations
    assert not any(alone.sent.values()) and two.sent == dict.fromkeys(two.sent, 0.0) | {"all_reduce": ALL}
    assert step_demands(CNN, Mesh(data=2), 32, {**SGD, "sync_every": 4}) == [two], (
        "gradients travel once a step"
    )
    (adam,) = step_demands(CNN, Mesh(data=2), 32, {**SGD, "optimizer": "adam"})
    assert (
        adam.optimizer == 2 * ALL
        and step_demands(CNN, Mesh(), 64, {**SGD, "momentum": 0.0})[0].optimizer == 0
    )


@pytest.mark.parametrize(
    ("sharding", "shares", "gathered"),
    [("optimizer", (1, 1, 4), 1), ("gradients", (1, 4, 4), 1), ("parameters", (4, 4, 4), 3 + 1)],
)
def test_each_stage_of_zero_shares_one_more(
    sharding: str, shares: tuple[int, int, int], gathered: int
) -> None:
    (demand,) = step_demands(CNN, Mesh(sharded=4), 16, {**SGD, "sharding": sharding, "sync_every": 3})
    assert (demand.parameters, demand.gradients, demand.optimizer) == tuple(ALL / share for share in shares)
    assert (
        demand.sent["all_gather"] == gathered * 3 / 4 * ALL and demand.sent["reduce_scatter"] == 3 / 4 * ALL
    )


def test_tensor_axis_all_reduces_twice_a_batch() -> None:
    (demand,) = step_demands(CNN, Mesh(data=2, tensor=2), 32, {**SGD, "sync_every": 2})
    own = CONVS + (FIRST + BIASES[0] + LAST) / 2 + BIASES[1]
    assert demand.parameters == own
    assert demand.activations == 32 * (CNN.activation_bytes - 4 * (128 + 128) / 2), (
        "a dense output, and its relu's"
    )
    assert demand.sent["all_reduce"] == own + 2 * 32 * 4 * (10 + 4096), (
        "logits forward, what was flattened backward"
    )


GPT = model_graph("gpt-nano", "synthetic-tokens-100-16")  # 4 blocks of 64 units, tied embedding
UNITS, LENGTH, VOCABULARY, BLOCKS, SAMPLES = 64, 16, 100, 4, 8
OUTPUT, POSITION = 4 * SAMPLES * LENGTH * UNITS, 4 * SAMPLES * LENGTH  # bytes: of a block, of a number each
NORMS = 4 * 2 * UNITS * (2 * BLOCKS + 1)


def test_divided_vocabulary_all_reduces_embedding_and_loss() -> None:
    layers, vocabulary = (
        step_demands(GPT, Mesh(tensor=2), SAMPLES, {**SGD, "tensor_sharding": sharding})[0]
        for sharding in ("layers", "vocabulary")
    )
    assert layers.sent["all_reduce"] == 4 * BLOCKS * OUTPUT
    # the embedding forward, the head's input backward, three numbers of each position
    assert vocabulary.sent["all_reduce"] == (4 * BLOCKS + 2) * OUTPUT + 3 * POSITION
    assert layers.parameters - vocabulary.parameters == 4 * VOCABULARY * UNITS / 2
    assert layers.activations - vocabulary.activations == POSITION * VOCABULARY / 2
    assert layers.work - vocabulary.work == pytest.approx(UNITS * VOCABULARY * LENGTH / GPT.macs / 2)


def test_sequence_sends_as_much_and_keeps_less() -> None:
    (vocabulary,), (demand,) = (
        step_demands(GPT, Mesh(tensor=2), SAMPLES, {**SGD, "tensor_sharding": sharding, "sync_every": 3})
        for sharding in ("vocabulary", "sequence")
    )
    all_reduced = 3 * (4 * BLOCKS + 2) * OUTPUT  # gathered once for two all-reduces, and scattered once
    assert demand.sent["all_gather"] == demand.sent["reduce_scatter"] == all_reduced / 2
    assert demand.sent["all_reduce"] == 3 * 3 * POSITION + NORMS, "gradients of norms once a step"
    assert sum(demand.sent.values()) == sum(vocabulary.sent.values()) + NORMS
    assert vocabulary.parameters - demand.parameters == 4 * LENGTH * UNITS / 2, "positions"
    # embedding, positions, and of each block attention, projection and two additions; what is gathered stays
    assert vocabulary.activations - demand.activations == (2 + 4 * BLOCKS) * OUTPUT / 2


def test_stages_pass_shards_of_a_sequence_on() -> None:
    levels = {**SGD, "microbatches": 2}
    mesh = Mesh(pipeline=2, tensor=2)
    stages = (
        step_demands(GPT, mesh, SAMPLES, levels),
        step_demands(GPT, mesh, SAMPLES, {**levels, "tensor_sharding": "sequence"}),
    )
    for undivided, divided in zip(*stages, strict=True):
        assert divided.sent["point_to_point"] == undivided.sent["point_to_point"] / 2 == OUTPUT / 2
    tied = [message.bytes for message in stages[1][1].messages if message.axis == "tied"]
    assert tied == [4 * VOCABULARY * UNITS / 2]
    losses = [sum(message.bytes == POSITION / 2 for message in stage.messages) for stage in stages[1]]
    assert losses == [0, 1], "the last stage has the loss"


def test_stages_pass_outputs_on_and_keep_those_in_flight() -> None:
    levels = {**SGD, "microbatches": 4}
    first, last = step_demands(CNN, Mesh(pipeline=2), 64, levels)
    assert first.parameters + last.parameters == ALL
    boundary = 64 * 4 * 8 * 8 * 64
    assert first.sent["point_to_point"] == last.sent["point_to_point"] == boundary
    gpipe = step_demands(CNN, Mesh(pipeline=2), 64, {**levels, "schedule": "gpipe"})
    assert [
        stage.activations / full.activations for stage, full in zip((first, last), gpipe, strict=True)
    ] == [2 / 4, 1 / 4]
    assert gpipe[0].activations + gpipe[1].activations == 64 * CNN.activation_bytes + boundary, (
        "both have the boundary"
    )


def test_interleaved_stages_hand_on_three_times_on_two_ranks() -> None:
    levels = {**SGD, "microbatches": 2}
    gpt = model_graph("gpt-nano", "synthetic-tokens-100-16")
    plain = step_demands(gpt, Mesh(pipeline=2), 8, levels)
    interleaved = step_demands(gpt, Mesh(pipeline=2), 8, {**levels, "schedule": "interleaved-1f1b"})
    boundary = 8 * 4 * 16 * 64
    assert [demand.sent["point_to_point"] for demand in plain] == [boundary, boundary]
    assert [demand.sent["point_to_point"] for demand in interleaved] == [3 * boundary, 3 * boundary]
    assert sum(demand.parameters for demand in interleaved) == sum(demand.parameters for demand in plain)
    assert sum(demand.work for demand in interleaved) == pytest.approx(1)


def test_first_and_last_stage_all_reduce_a_tied_table() -> None:
    gpt = model_graph("gpt-nano", "synthetic-tokens-100-16")
    first, last = step_demands(gpt, Mesh(pipeline=2), 8, {**SGD, "microbatches": 2})
    table = 4 * 100 * 64
    assert first.sent["all_reduce"] == last.sent["all_reduce"] == table
    assert first.parameters + last.parameters == gpt.gradient_bytes + table


def test_ends_of_a_pipeline_on_one_rank_send_nothing() -> None:
    """Rank 0 has the first and the last of four stages, rank 1 the two between them."""
    ranks = step_demands(
        GPT, Mesh(pipeline=2), SAMPLES, {**SGD, "microbatches": 4, "schedule": "zero-bubble-v"}
    )
    for demand in ranks:
        assert sum(demand.sent.values()) == demand.sent["point_to_point"] == 2 * OUTPUT


def test_pipeline_reduces_once_a_batch() -> None:
    levels = {**SGD, "microbatches": 2, "sync_every": 3, "tensor_sharding": "sequence"}
    for mesh, n_reduced in ((Mesh(pipeline=2, sharded=2, tensor=2), 3), (Mesh(pipeline=2, tensor=2), 1)):
        messages = step_demands(GPT, mesh, SAMPLES, levels)[0].messages
        assert {sent.count for sent in messages if sent.axis == "sharded"} == {3} & {n_reduced}
        norms = [sent.count for sent in messages if sent.bytes == 4 * 2 * UNITS]
        assert norms == [n_reduced] * BLOCKS


def test_messages_have_the_ranks_of_their_axis() -> None:
    mesh = Mesh(pipeline=2, data=2, sharded=2, tensor=2)
    gpt, levels = model_graph("gpt-nano", "synthetic-tokens-100-16"), {**SGD, "microbatches": 2}
    first, _ = step_demands(gpt, mesh, 8, levels, unit_bytes=100_000)
    groups = {(message.axis, message.kind): (message.ranks, message.stride) for message in first.messages}
    assert groups == {
        ("sharded", "all_gather"): (2, 2),
        ("sharded", "reduce_scatter"): (2, 2),
        ("data", "all_reduce"): (2, 4),
        ("tensor", "all_reduce"): (2, 1),
        ("pipeline", "point_to_point"): (2, 8),
        ("tied", "all_reduce"): (2, 8),
    }
    (total,) = (
        sent.bytes for sent in step_demands(gpt, mesh, 8, levels)[0].messages if sent.kind == "reduce_scatter"
    )
    units = [sent.bytes for sent in first.messages if sent.kind == "reduce_scatter"]
    assert len(units) > 1 and sum(units) == total and min(units[:-1]) >= 100_000
    (boundary,) = (sent for sent in first.messages if sent.axis == "pipeline")
    assert (boundary.bytes, boundary.count) == (4 * 4 * 16 * 64, 2), "of a microbatch of 4 samples, twice"


@pytest.mark.parametrize(
    ("precision", "reduce_dtype", "stored", "computed", "reduced"),
    [
        ("fp32", "default", 4, 4, 4),
        ("tf32", "bf16", 4, 4, 2),
        ("amp", "default", 4, 2, 4),
        ("amp", "bf16", 4, 2, 2),
        ("bf16", "default", 2, 2, 2),
        ("bf16", "fp32", 2, 2, 4),
    ],
)
def test_bfloat16_halves_memory_and_messages(
    precision: str, reduce_dtype: str, stored: int, computed: int, reduced: int
) -> None:
    levels, mesh = {**SGD, "microbatches": 2}, Mesh(pipeline=2, data=2, sharded=2, tensor=2)
    gpt = model_graph("gpt-nano", "synthetic-tokens-100-16")
    plain, _ = step_demands(gpt, mesh, 8, levels)
    demand, _ = step_demands(gpt, mesh, 8, {**levels, "precision": precision, "reduce_dtype": reduce_dtype})
    pairs = [(demand.parameters, plain.parameters), (demand.gradients, plain.gradients)]
    pairs += [(demand.optimizer, plain.optimizer)]
    assert {own / of_fp32 for own, of_fp32 in pairs} == {stored / 4}
    assert demand.activations / plain.activations == computed / 4
    shares = {
        (message.axis, message.kind): message.bytes / of_fp32.bytes
        for message, of_fp32 in zip(demand.messages, plain.messages, strict=True)
    }
    assert shares == {
        ("sharded", "all_gather"): computed / 4,
        ("sharded", "reduce_scatter"): reduced / 4,
        ("data", "all_reduce"): reduced / 4,
        ("tensor", "all_reduce"): computed / 4,
        ("pipeline", "point_to_point"): computed / 4,
        ("tied", "all_reduce"): stored / 4,
    }


def test_checkpointing_keeps_inputs_and_has_one_block_again() -> None:
    """gpt-nano's four blocks: two norms, two sums, attention, 256 units expanded, gelu, 64 units projected."""
    gpt, samples, length = model_graph("gpt-nano", "synthetic-tokens-100-16"), 8, 16
    (stored,), (selective,), (blocks,) = (
        step_demands(gpt, Mesh(tensor=2), samples, {**SGD, "checkpointing": level})
        for level in ("none", "selective", "blocks")
    )
    position = 4 * samples * length
    assert stored == step_demands(gpt, Mesh(tensor=2), samples, SGD)[0]
    assert stored.activations - blocks.activations == 3 * position * (5 * 64 + 2 * 256 / 2)
    assert stored.activations - selective.activations == 3 * position * (3 * 64 + 256 / 2)
    assert selective.sent == stored.sent, "sums over the tensor axis are kept"
    assert blocks.sent["all_reduce"] - stored.sent["all_reduce"] == 4 * 2 * position * 64


def test_clipping_all_reduces_one_number_where_ranks_have_parts() -> None:
    clipped = {**SGD, "clip_norm": 1.0}
    (plain,), (demand,) = (step_demands(CNN, Mesh(sharded=4), 16, levels) for levels in (SGD, clipped))
    (added,) = set(demand.messages) - set(plain.messages)
    assert (added.kind, added.axis, added.bytes, added.count, added.ranks) == ("all_reduce", "all", 4, 1, 4)
    assert step_demands(CNN, Mesh(data=4), 16, clipped) == step_demands(CNN, Mesh(data=4), 16, SGD)


def test_axis_of_experts_exchanges_slots_and_divides_experts() -> None:
    """Each of 4 layers has 4 experts of 64 x 96, and 10 slots for each of them and of 8 samples."""
    model, levels = model_graph("llama-moe-nano", "synthetic-tokens-100-16"), {**SGD, "sync_every": 3}
    (demand,) = step_demands(model, Mesh(data=2, experts=2), 8, levels)
    slots, experts = 4 * 4 * 10 * 64 * 8, 4 * 4 * 3 * 4 * 64 * 96
    assert demand.sent["all_to_all"] == 4 * 4 * 3 * slots / 2, "forth and back in two passes of three batches"
    assert demand.parameters == model.gradient_bytes - experts / 2
    dense = model.gradient_bytes - experts
    assert demand.sent["all_reduce"] == 2 * 3 / 4 * dense + experts / 2, (
        "experts between two ranks, others of four"
    )
    groups = {(message.axis, message.ranks): message.stride for message in demand.messages}
    assert groups == {("data", 4): 1, ("data", 2): 2, ("experts", 2): 1}
    (alone,) = step_demands(model, Mesh(experts=4), 8, levels)
    assert alone.sent["all_reduce"] == 2 * 3 / 4 * dense and alone.work == demand.work == 1


def test_ranks_share_multiplications_that_an_axis_divides() -> None:
    (two,) = step_demands(CNN, Mesh(tensor=2), 64, SGD)
    convolved = sum(operator.macs for operator in CNN.operators if operator.kind == "conv")
    assert two.work == pytest.approx((convolved + (CNN.macs - convolved) / 2) / CNN.macs) and two.calls == 1
    first, last = step_demands(CNN, Mesh(pipeline=2), 64, {**SGD, "microbatches": 4})
    assert first.work + last.work == pytest.approx(1) and first.calls < 1
