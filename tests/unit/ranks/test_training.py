"""Every framework trains the same model on the same samples in the same steps."""

import csv
import json
import os
import re
from typing import Any

import numpy as np
import pytest

from declared.frameworks import load_framework
from ranks.worker.trainer import RECOMPUTED
from runs.steps import quantiles
from support.trainings import (
    DAILY,
    DISTRIBUTED,
    FRAMEWORKS,
    IN_CI,
    REPLICAS,
    SAME_WEIGHTS,
    TEMPORARY,
    Trainings,
    able,
    assert_alike,
    assert_same,
    epochs,
    framework_params,
    of_64,
    weights,
)

COMPARED = [name for name in SAME_WEIGHTS if name != "pytorch-single"]


def test_four_accumulated_batches_of_16_train_like_one_of_64(trainings: Trainings) -> None:
    """The next test compares accumulation in other frameworks with this one."""
    accumulated = trainings.train("pytorch-single", batch_size=16, sync_every=4)
    assert_alike(accumulated, trainings.train("pytorch-single", batch_size=64), 1e-5, 0.01)


@pytest.mark.parametrize("framework", framework_params(able(COMPARED, sync_every=5), DAILY))
def test_frameworks_flush_the_last_group_and_average_replicas(trainings: Trainings, framework: str) -> None:
    reference = trainings.weights(
        "pytorch-single", batch_size=64, sync_every=5
    )  # 24 batches: groups of 5, 5, 5, 5 and 4
    assert_same(trainings.weights(framework, **of_64(framework), sync_every=5), reference, 1e-4)


@pytest.mark.parametrize(
    "framework",
    framework_params(
        name
        for name in SAME_WEIGHTS
        if any("fit" in e.get("training_loop", []) for e in load_framework(name).capabilities)
    ),
)
def test_fit_trains_like_the_custom_loop(trainings: Trainings, framework: str) -> None:
    fitted = trainings.weights(framework, **of_64(framework), training_loop="fit")
    assert_same(fitted, trainings.weights(framework, batch_size=64), 1e-4)


@pytest.mark.parametrize("framework", framework_params(FRAMEWORKS, DAILY))
def test_an_epoch_sees_every_sample_once_over_all_ranks(trainings: Trainings, framework: str) -> None:
    folder = trainings.train(
        framework, **of_64(framework), sync_every=5 if able([framework], sync_every=5) else 1
    )
    data = np.load(trainings.folder / "data" / "digits" / "train" / "images.npy")
    seen = [np.load(file) for file in sorted(folder.glob("seen.*.npy"))]
    assert len(seen) == (2 if framework in DISTRIBUTED else 1) and len({len(part) for part in seen}) == 1
    assert sorted(image.tobytes() for part in seen for image in part) == sorted(
        image.tobytes() for image in data
    )


TWO_NODES = {"nodes": 2, "batch_size": 32}
BERT = {"model": "bert-nano", "dataset": "synthetic-tokens-32-16-64"}
DLRM = {"model": "dlrm-nano", "dataset": "synthetic-clicks-20-64"}
UNET = {"model": "unet-nano", "dataset": "synthetic-regions-16x8x3-3-64"}
TOKENS = {"model": "gpt-nano", "dataset": "wikitext-2-small", "learning_rate": 0.1}


@pytest.mark.parametrize("framework", framework_params(COMPARED, ("tensorflow-single", "pytorch-ddp")))
def test_sequences_train_alike(trainings: Trainings, framework: str) -> None:
    reference = trainings.train("pytorch-single", batch_size=64, **TOKENS)
    folder = trainings.train(framework, **of_64(framework), **TOKENS)
    assert_alike(folder, reference, 1e-4, 0.01)
    (row,), (reference_row,) = epochs(folder), epochs(reference)
    for part in ("train", "validation"):
        assert float(row[f"{part}_loss"]) == pytest.approx(float(reference_row[f"{part}_loss"]), rel=1e-4)
    assert float(row["validation_accuracy"]) == pytest.approx(
        float(reference_row["validation_accuracy"]), abs=1e-3
    )
    assert row["train_accuracy"] == reference_row["train_accuracy"] == "", "no argmax in the timed step"
    assert int(row["samples_trained"]) == 1280, "samples are sequences"


def test_loss_and_accuracy_are_those_of_positions(trainings: Trainings) -> None:
    """Before training, all 200 tokens are equally likely; afterwards, prediction beats token frequencies."""
    levels = {**TOKENS, "optimizer": "adam", "learning_rate": 0.01, "epochs": 4, "batch_size": 64}
    rows = epochs(trainings.train("pytorch-single", **levels))
    losses = [float(row["validation_loss"]) for row in rows]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.65 * np.log(200)
    assert float(rows[-1]["validation_accuracy"]) < 0.9, "some words are rare"
    tokens = np.load(trainings.folder / "data" / "wikitext-2-small" / "validation" / "labels.npy")
    frequent = np.bincount(tokens.ravel()).max() / tokens.size
    assert float(rows[-1]["validation_accuracy"]) > 2 * frequent


@pytest.mark.parametrize(
    ("framework", "levels"),
    [
        pytest.param(
            "tensorflow-single",
            {"model": "gpt-nano", "dataset": "synthetic-tokens-32-16-64", "epochs": 2},
            marks=pytest.mark.every_framework,
        ),
        *(
            pytest.param(framework, {**model, "epochs": 2}, marks=pytest.mark.every_framework)
            for framework in ("tensorflow-single", "jax-single")
            for model in (BERT, DLRM, UNET)
        ),
        *(
            pytest.param("pytorch-fsdp", {**model, **TWO_NODES}, marks=pytest.mark.every_framework)
            for model in (BERT, DLRM)
        ),
        ("tensorflow-single", {"model": "rnn-text-nano", "dataset": "synthetic-text-32-8-4-64", "epochs": 2}),
        pytest.param(
            "tensorflow-single", {**TOKENS, "training_loop": "fit"}, marks=pytest.mark.every_framework
        ),
        pytest.param(
            "pytorch-hybrid",
            {**TOKENS, "nodes": 2, "batch_size": 32, "shares": "0.25/0.75"},
            marks=pytest.mark.every_framework,
        ),
        pytest.param(
            "tensorflow-multiworker",
            {**TOKENS, "nodes": 2, "batch_size": 32, "training_loop": "fit"},
            marks=pytest.mark.every_framework,
        ),
    ],
)
def test_other_tokens_and_loops_train_alike(
    trainings: Trainings, framework: str, levels: dict[str, Any]
) -> None:
    plain = {
        name: level for name, level in levels.items() if name not in ("training_loop", "shares", "nodes")
    }
    folder = trainings.train(framework, **{"batch_size": 64, **levels})
    reference = trainings.train("pytorch-single", **{**plain, "batch_size": 64})
    assert_alike(folder, reference, 1e-4)
    for column in ("train_loss", "validation_loss", "train_accuracy", "validation_accuracy"):
        values = [[float(row[column] or -1) for row in epochs(run)] for run in (folder, reference)]
        np.testing.assert_allclose(*values, atol=1e-3, err_msg=column)


RECIPES = {
    "sgd": {"momentum": 0.9, "weight_decay": 0.01, "lr_warmup_epochs": 5, "learning_rate": 0.05},
    # By this seed no activation comes as close to a relu's kink as libraries' rounding is apart.
    "adam": {"optimizer": "adam", "weight_decay": 0.01, "learning_rate": 0.001, "seed": 7},
}
TWENTY_STEPS = {"dataset": "synthetic-8x8x1-10-64", "epochs": 20}  # of one step each, with images of its own


# Three steps, in which gradients are clipped, of published recipes: nanoGPT's of GPT-2 (adamw), and one of ResNet
# with step and smoothing. The rate is small, since Adam amplifies the rounding of small gradients.
THREE_STEPS: dict[str, dict[str, Any]] = {
    "adamw": {
        "model": "gpt-nano",
        "dataset": "synthetic-tokens-32-16-64",
        "optimizer": "adamw",
        "adam_beta2": 0.95,
        "adam_epsilon": 1e-6,
        "learning_rate": 1e-4,
        "weight_decay": 0.1,
        "decayed_weights": "matrices",
        "clip_norm": 0.05,
        "lr_schedule": "cosine",
        "lr_final_share": 0.1,
        "lr_warmup_epochs": 1,
        "epochs": 3,
    },
    "sgd": {
        "dataset": "synthetic-8x8x1-10-64",
        "learning_rate": 0.1,
        "weight_decay": 0.01,
        "decayed_weights": "all",
        "clip_norm": 0.05,
        "label_smoothing": 0.1,
        "lr_schedule": "step",
        "lr_step_epochs": 2,
        "epochs": 3,
        "seed": 7,  # as of adam above
    },
}


@pytest.mark.parametrize(
    ("recipe", "framework"),
    [
        pytest.param(recipe, *case.values, marks=case.marks, id=f"{recipe}-{case.values[0]}")
        for recipe, levels in THREE_STEPS.items()
        for case in framework_params(able(COMPARED, **levels), ("pytorch-ddp", "tensorflow-single"))
    ],
)
def test_three_steps_of_recipes_agree_to_1e_6(trainings: Trainings, recipe: str, framework: str) -> None:
    levels = THREE_STEPS[recipe]
    reference = trainings.weights("pytorch-single", batch_size=64, **levels)
    assert_same(trainings.weights(framework, **of_64(framework), **levels), reference, 1e-6)


@pytest.mark.parametrize(
    "framework",
    framework_params(
        [name for name in COMPARED if "experts" not in load_framework(name).missing_operators.get("cpu", [])],
        ("pytorch-ddp",),
    ),
)
def test_experts_train_and_drop_alike(trainings: Trainings, framework: str) -> None:
    levels = {
        "model": "llama-moe-nano",
        "dataset": "synthetic-tokens-32-16-64",
        "learning_rate": 0.1,
        "epochs": 3,
    }
    reference = trainings.train("pytorch-single", batch_size=64, **levels)
    folder = trainings.train(framework, **of_64(framework), **levels)
    assert_alike(folder, reference, 1e-6)
    results = (json.loads((run / "result.json").read_text()) for run in (folder, reference))
    shares, expected = (result["ranks"][0]["dropped_token_shares"] for result in results)
    assert list(shares) == [f"block{n}_experts" for n in range(1, 5)]
    assert shares == pytest.approx(expected, abs=1e-6) and 0 < min(shares.values()) < 0.5
    load = weights(folder / "after.npz")["block1_experts.load"]
    assert load.sum() == pytest.approx(3), "batches"
    assert shares["block1_experts"] == pytest.approx(load[-1] / 3)


LLAMA = {
    "model": "llama-nano",
    "dataset": "synthetic-tokens-32-16-64",
    "learning_rate": 0.1,
    "epochs": 3,
    "batch_size": 64,
    "batch_scope": "global",
}
RECOMPUTING: list[tuple[str, dict[str, Any]]] = [
    ("pytorch-single", {}),
    ("pytorch-ddp", {"nodes": 2}),
    ("pytorch-fsdp", {"nodes": 2}),
    ("pytorch-mesh", {"nodes": 2, "parallelism": "tensor2"}),
    ("pytorch-mesh", {"nodes": 2, "parallelism": "tensor2", "tensor_sharding": "sequence"}),
    ("pytorch-mesh", {"nodes": 4, "parallelism": "pipeline2-sharded2", "microbatches": 2}),
    ("deepspeed", {"nodes": 2, "parallelism": "sharded"}),
    ("deepspeed", {"nodes": 2, "parallelism": "sharded", "sharding": "gradients"}),
    ("jax", {"nodes": 2, "parallelism": "sharded2"}),
    ("jax-single", {}),
]


@pytest.mark.parametrize(
    ("framework", "levels", "checkpointing"),
    [
        pytest.param(*case, level, marks=[pytest.mark.every_framework] * (case[0] != "pytorch-single"))
        for case in RECOMPUTING
        for level in ("blocks", "selective")
        if able(case[:1], **LLAMA, **case[1], checkpointing=level)
    ],
)
def test_blocks_computed_again_train_alike(
    trainings: Trainings, framework: str, levels: dict[str, Any], checkpointing: str
) -> None:
    folder = trainings.train(framework, **LLAMA, **levels, checkpointing=checkpointing)
    assert_same(weights(folder / "after.npz"), trainings.weights(framework, **LLAMA, **levels), 1e-6)
    ranks = json.loads((folder / "result.json").read_text())["ranks"]
    assert {rank["settings"]["activations"] for rank in ranks} == {RECOMPUTED[checkpointing]}


@pytest.mark.parametrize(
    ("recipe", "factor", "level"),
    [
        ("adamw", "optimizer", "adam"),
        ("adamw", "adam_beta2", 0.999),
        ("adamw", "weight_decay", 0.0),
        ("adamw", "decayed_weights", "kernels"),
        ("adamw", "clip_norm", 0.0),
        ("adamw", "lr_schedule", "constant"),
        ("sgd", "label_smoothing", 0.0),
        ("sgd", "clip_norm", 0.0),
        ("sgd", "lr_schedule", "constant"),
    ],
)
def test_every_part_of_a_recipe_moves_weights(
    trainings: Trainings, recipe: str, factor: str, level: Any
) -> None:
    levels = {"batch_size": 64, **THREE_STEPS[recipe]}
    weights_of_recipe = trainings.weights("pytorch-single", **levels)
    changed = trainings.weights("pytorch-single", **{**levels, factor: level})
    difference = max(float(np.abs(weights_of_recipe[name] - changed[name]).max()) for name in changed)
    assert difference > 1e-6, "more than what frameworks may be apart"


@pytest.mark.parametrize(
    "framework", framework_params((name for name in FRAMEWORKS if name != "pytorch-single"), DAILY)
)
def test_a_run_names_every_library_that_trains_with_its_version(trainings: Trainings, framework: str) -> None:
    folder = trainings.train(
        framework, **of_64(framework), sync_every=5 if able([framework], sync_every=5) else 1
    )
    result = json.loads((folder / "result.json").read_text())
    named = result["library_version"].split(", ")
    assert len(named) == len({module.partition(".")[0] for module in load_framework(framework).modules})
    assert all(re.fullmatch(r"\S+ \d+\.\S+", part) for part in named), named
    assert all(rank["system"].endswith(f"Linux {os.uname().release}") for rank in result["ranks"])


@pytest.mark.parametrize(
    ("recipe", "framework"),
    [
        pytest.param(recipe, *case.values, marks=case.marks, id=f"{recipe}-{case.values[0]}")
        for recipe, in_ci in (("sgd", IN_CI), ("adam", ("pytorch-ddp", "tensorflow-multiworker")))
        for case in framework_params(COMPARED, in_ci)  # Horovod with Adam: below
    ],
)
def test_first_twenty_losses_agree(trainings: Trainings, recipe: str, framework: str) -> None:
    levels = {**RECIPES[recipe], **TWENTY_STEPS}
    reference = trainings.train("pytorch-single", batch_size=64, **levels)
    folder = trainings.train(framework, **of_64(framework), **levels)
    losses, expected = ([float(row["train_loss"]) for row in epochs(run)] for run in (folder, reference))
    assert len(expected) == 20 and np.ptp(expected) > 0.02, "the steps differ from each other"
    np.testing.assert_allclose(losses, expected, atol=1e-3, rtol=0)
    assert_alike(folder, reference, 2e-4)


@pytest.mark.parametrize("framework", framework_params(COMPARED, ("pytorch-ddp", "tensorflow-multiworker")))
def test_images_are_augmented_alike(trainings: Trainings, framework: str) -> None:
    reference = trainings.train("pytorch-single", batch_size=64, augmentation="flip-crop")
    folder = trainings.train(framework, **of_64(framework), augmentation="flip-crop")
    folders = (folder, reference)
    images, reference_images = (
        sorted(image.tobytes() for file in folder_of_run.glob("seen.*.npy") for image in np.load(file))
        for folder_of_run in folders
    )
    data = np.load(trainings.folder / "data" / "digits" / "train" / "images.npy")
    assert images == reference_images != sorted(image.tobytes() for image in data)
    losses = [float(epochs(folder_of_run)[0]["train_loss"]) for folder_of_run in folders]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


@pytest.mark.parametrize(
    "framework", framework_params(name for name in FRAMEWORKS if name.startswith("horovod"))
)
def test_horovod_counts_updates_and_not_batches(trainings: Trainings, framework: str) -> None:
    levels = {
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "batch_size": 16,
        "sync_every": 5,
        "lr_warmup_epochs": 1,
    }
    levels |= {"dataset": "synthetic-8x8x1-10-768", "epochs": 2}
    reference = trainings.weights("pytorch-single", **levels)
    assert_same(trainings.weights(framework, **levels), reference, 5e-4)


@pytest.mark.parametrize(
    "framework",
    framework_params((name for name in REPLICAS if name in COMPARED and name != "pytorch-ddp"), ()),
)
def test_replicas_have_own_batch_statistics_averaged_to_validate(
    trainings: Trainings, framework: str
) -> None:
    levels = {"model": "resnet-18", "dataset": "synthetic-8x8x3-10-64", "epochs": 3, "learning_rate": 1e-3}
    reference, folder = (
        trainings.train(name, **of_64(name), **levels) for name in ("pytorch-ddp", framework)
    )
    for column in ("train_loss", "validation_loss"):
        values, reference_values = (
            [float(row[column]) for row in epochs(folder_of_run)] for folder_of_run in (folder, reference)
        )
        np.testing.assert_allclose(values, reference_values, rtol=2e-3, err_msg=column)


@pytest.mark.every_framework
def test_fsdp_shards_a_model_of_many_units(trainings: Trainings) -> None:
    """If units had activations, some would begin with one that overwrites its input."""
    levels = {
        "model": "vgg-16",
        "dataset": "synthetic-8x8x3-10-64",
        "batch_size": 32,
        "nodes": 2,
        "learning_rate": 1e-3,
    }
    actual, expected = (
        epochs(trainings.train(name, **levels))[0] for name in ("pytorch-fsdp", "pytorch-ddp")
    )
    assert float(actual["train_loss"]) == pytest.approx(float(expected["train_loss"]), rel=1e-4)


@pytest.mark.every_framework
def test_fsdp_shards_blocks_unevenly(trainings: Trainings) -> None:
    """Three ranks share blocks of 64 units, accumulate two batches, and validate 1, 2 and 2 batches."""
    levels = {
        "model": "gpt-nano",
        "dataset": "synthetic-tokens-32-16-264",
        "batch_size": 8,
        "sync_every": 2,
        "nodes": 3,
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "epochs": 2,
    }
    actual, expected = (trainings.train(name, **levels) for name in ("pytorch-fsdp", "pytorch-ddp"))
    assert_alike(actual, expected, 1e-4)
    for row, reference in zip(epochs(actual), epochs(expected), strict=True):
        assert float(row["validation_loss"]) == pytest.approx(float(reference["validation_loss"]), rel=1e-4)
        assert row["validation_accuracy"] == reference["validation_accuracy"]


@pytest.mark.parametrize(
    "framework", framework_params(DISTRIBUTED, ("pytorch-ddp", "tensorflow-multiworker"))
)
def test_every_rank_drops_out_of_its_own(trainings: Trainings, framework: str) -> None:
    folder = trainings.train(
        framework, nodes=2, model="cnn-cifar10", dataset="synthetic-16x16x3-10-64", batch_size=32
    )
    first, second = (np.load(folder / f"noise.{rank}.npy") for rank in (0, 1))
    assert np.abs(first - second).max() > 1e-3 and np.abs(first[0] - first[1]).max() > 1e-3, (
        "masks of ranks and of calls"
    )


@pytest.mark.parametrize(
    ("framework", "levels"),
    [
        ("pytorch-single", {"memory_format": "channels-last"}),
        pytest.param(
            "pytorch-ddp", {"compiler": "torch-compile", "sync_every": 5}, marks=pytest.mark.every_framework
        ),
        pytest.param(
            "horovod-pytorch", {"compiler": "torch-compile", "nodes": 1}, marks=pytest.mark.every_framework
        ),
        pytest.param("pytorch-ddp", {"compiler": "torch-compile"}, marks=pytest.mark.every_framework),
        ("tensorflow-single", {"compiler": "xla"}),
        *(
            pytest.param(name, {"compiler": "xla", **levels}, marks=pytest.mark.every_framework)
            for name, levels in (
                ("tensorflow-single", {"training_loop": "fit"}),
                ("tensorflow-multiworker", {"sync_every": 5}),
                ("horovod-tensorflow", {"sync_every": 5}),
            )
        ),
    ],
)
def test_other_ways_to_compute_train_alike(
    trainings: Trainings, framework: str, levels: dict[str, Any]
) -> None:
    base_levels = {name: level for name, level in levels.items() if name in ("sync_every", "nodes")}
    folder, reference = (
        trainings.train(framework, **of_64(framework) | levels_of_run)
        for levels_of_run in (levels, base_levels)
    )
    actual, expected = (weights(run / "after.npz") for run in (folder, reference))
    assert_same(actual, expected, 1e-3)
    if levels.get("compiler") == "xla":
        assert any((actual[name] != expected[name]).any() for name in expected), "XLA rounds differently"


@pytest.mark.parametrize(
    "levels",
    [{"sync_every": 5}, pytest.param({"memory_format": "channels-last"}, marks=pytest.mark.every_framework)],
)
def test_ddp_warns_of_nothing(trainings: Trainings, levels: dict[str, Any]) -> None:
    """The images of digits have one channel, so their layout fits both memory formats."""
    folder = trainings.train("pytorch-ddp", nodes=2, batch_size=32, **levels)
    ranks = json.loads((folder / "result.json").read_text())["ranks"]
    assert [rank["warnings"] for rank in ranks] == [[], []]


@pytest.mark.parametrize(
    "framework",
    framework_params(
        ("pytorch-single", "tensorflow-single", "tensorflow-mirrored"),
        ("pytorch-single", "tensorflow-single"),
    ),
)
def test_mixed_precision_trains_nearly_alike(trainings: Trainings, framework: str) -> None:
    amp, fp32 = (trainings.train(framework, **of_64(framework), precision=level) for level in ("amp", "fp32"))
    losses = [float(epochs(folder)[0]["train_loss"]) for folder in (amp, fp32)]
    assert 0 < abs(losses[0] - losses[1]) < 0.05, losses


def test_each_epoch_leaves_a_line_and_each_run_a_result(trainings: Trainings) -> None:
    folder = trainings.train("pytorch-ddp", batch_size=32, sync_every=5, nodes=2)
    (epoch,) = epochs(folder)
    assert (epoch["steps"], epoch["n_allreduces"], epoch["samples_trained"]) == ("24", "5", "1536")
    assert 0 < float(epoch["epoch_time_s"]) <= float(epoch["closed_time_s"])
    steps = list(csv.DictReader((folder / "steps.csv").open()))
    assert [(row["rank"], row["step"]) for row in steps] == [
        (str(rank), str(step)) for rank in (0, 1) for step in range(1, 25)
    ]
    assert sum(float(row["step_time_s"]) for row in steps) / 2 == pytest.approx(
        float(epoch["epoch_time_s"]), rel=0.1
    )
    slowest = np.array(
        [[float(row["step_time_s"]) for row in steps if row["rank"] == rank] for rank in "01"]
    ).max(axis=0)
    step_quantiles = quantiles(folder / "steps.csv", warmup_epochs=0)
    assert step_quantiles is not None and quantiles(folder / "steps.csv", warmup_epochs=1) is None
    assert list(step_quantiles.values()) == pytest.approx(np.quantile(slowest, [0.5, 0.95, 0.99, 1]))
    assert float(epoch["sent_bytes"]) > 5 * 4 * 544_522, (
        "each all-reduce sends all gradients through the interface"
    )
    result = json.loads((folder / "result.json").read_text())
    assert result["transport"] == "gloo" and len(result["ranks"]) == 2
    assert all(rank["memory_peak_bytes"] > 5e7 and 0 < rank["import_s"] < 120 for rank in result["ranks"])
    assert all(rank["weights_finite"] for rank in result["ranks"])
    names = {"optimizer implementation", "compiler", "threads", "input pipeline", "gradient messages"}
    assert all(names <= set(rank["settings"]) for rank in result["ranks"])


@pytest.mark.parametrize(
    ("framework", "levels"),
    [("tensorflow-single", {"training_loop": "fit"}), ("pytorch-ddp", {"sync_every": 5})],
)
def test_a_training_leaves_no_temporary_files(
    trainings: Trainings, framework: str, levels: dict[str, Any]
) -> None:
    """Keras writes its rewritten functions to files, and removes them only at a normal exit."""
    folder = trainings.train(framework, **of_64(framework), **levels)
    assert list((folder / TEMPORARY).iterdir()) == []


@pytest.mark.parametrize("framework", ["pytorch-single", "tensorflow-single"])
def test_a_training_that_diverged_is_told_by_its_weights(trainings: Trainings, framework: str) -> None:
    folder = trainings.train(framework, batch_size=64, learning_rate=1000.0, epochs=2)
    assert not all(np.isfinite(weight).all() for weight in weights(folder / "after.npz").values())
    (rank,) = json.loads((folder / "result.json").read_text())["ranks"]
    assert rank["weights_finite"] is False


@pytest.mark.parametrize(
    ("levels", "changed"),
    [
        ({"attention": "unfused"}, {"attention": "two matrix products and a softmax"}),
        pytest.param(
            {"precision": "amp", "compiler": "torch-compile"},
            {"mixed precision": "autocast to bfloat16", "compiler": "torch.compile"},
            marks=pytest.mark.every_framework,
        ),
    ],
)
def test_settings_follow_the_levels(
    trainings: Trainings, levels: dict[str, str], changed: dict[str, str]
) -> None:
    plain, changed_run = (
        trainings.train("pytorch-single", batch_size=64, **TOKENS, **own) for own in ({}, levels)
    )
    before, after = (
        json.loads((folder / "result.json").read_text())["ranks"][0]["settings"]
        for folder in (plain, changed_run)
    )
    assert {name: value for name, value in after.items() if value != before[name]} == changed
    if "attention" in levels:
        assert_alike(changed_run, plain, 1e-4)
