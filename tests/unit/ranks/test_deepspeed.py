"""DeepSpeed really trains on a sharded axis.

ZeRO's stages train as one rank does with the whole batch, and share what they say.
"""

from typing import Any

import pandas as pd
import pytest

from runs.phases import merge_phases
from support.trainings import Trainings, assert_alike, assert_same, epochs

EVERY = pytest.mark.every_framework
STAGES = [pytest.param("optimizer", marks=EVERY), pytest.param("gradients", marks=EVERY), "parameters"]
RECIPES = [
    {"momentum": 0.9, "weight_decay": 0.01, "lr_warmup_epochs": 5, "learning_rate": 0.05},
    {"optimizer": "adam", "weight_decay": 0.01, "learning_rate": 0.001},
]
SYNC_EVERY = 5
ALLREDUCING = {5, 10, 15, 20, 24}  # of 24 steps in groups of 5


def zero(sharding: str, **levels: Any) -> dict[str, Any]:
    """Return the levels of a training on two ranks with this level of `sharding`."""
    return {"batch_size": 32, "nodes": 2, "parallelism": "sharded", "sharding": sharding, **levels}


@pytest.mark.parametrize("sharding", STAGES)
def test_epoch_on_two_ranks_trains_like_one_on_all_samples(trainings: Trainings, sharding: str) -> None:
    alone = trainings.train("pytorch-single", batch_size=64, sync_every=SYNC_EVERY)
    shared = trainings.train("deepspeed", **zero(sharding, sync_every=SYNC_EVERY))
    assert_alike(shared, alone, 1e-4, 0.01)
    actual, expected = (float(epochs(folder)[0]["validation_loss"]) for folder in (shared, alone))
    assert actual == pytest.approx(expected, rel=1e-4)


@EVERY
@pytest.mark.parametrize("sharding", ["optimizer", "gradients", "parameters"])
@pytest.mark.parametrize("recipe", RECIPES, ids=["sgd", "adam"])
def test_momentum_decay_and_adam_are_those_of_one_rank(
    trainings: Trainings, sharding: str, recipe: dict[str, Any]
) -> None:
    levels_of_both = {"dataset": "synthetic-8x8x1-10-64", "epochs": 20, **recipe}
    alone = trainings.weights("pytorch-single", batch_size=64, **levels_of_both)
    assert_same(trainings.weights("deepspeed", **zero(sharding, **levels_of_both)), alone, 1e-4)


@EVERY
def test_ranks_with_different_batches_validate_shards(trainings: Trainings) -> None:
    levels_of_both = {"batch_size": 26, "nodes": 2}  # of 261 samples, one rank has 130, the other 131
    actual, expected = (
        epochs(trainings.train(name, **levels))[0]
        for name, levels in (
            ("deepspeed", zero("parameters", **levels_of_both)),
            ("pytorch-ddp", levels_of_both),
        )
    )
    assert float(actual["validation_loss"]) == pytest.approx(float(expected["validation_loss"]), rel=1e-4)
    assert actual["validation_accuracy"] == expected["validation_accuracy"]


@EVERY
def test_shards_in_mixed_precision_train_nearly_alike(trainings: Trainings) -> None:
    amp, fp32 = (trainings.losses("deepspeed", **zero("parameters", precision=p)) for p in ("amp", "fp32"))
    assert 0 < abs(amp[0] - fp32[0]) < 0.05
    levels = {"batch_size": 32, "nodes": 2, "precision": "amp", "reduce_dtype": "bf16"}
    (replicated,) = trainings.losses("deepspeed", **levels)
    assert 0 < abs(replicated - fp32[0]) < 0.05


@EVERY
@pytest.mark.parametrize(
    "levels_of_both",
    [
        {"model": "resnet-18", "dataset": "synthetic-8x8x3-10-64", "epochs": 2, "learning_rate": 1e-3},
        {
            "model": "gpt-nano",
            "dataset": "synthetic-tokens-2000-16-128",
            "optimizer": "adam",
            "learning_rate": 1e-3,
        },
    ],
    ids=["batch statistics", "a weight of two operators"],
)
def test_models_of_which_most_is_shared_train_as_with_ddp(
    trainings: Trainings, levels_of_both: dict[str, Any]
) -> None:
    expected = trainings.weights("pytorch-ddp", batch_size=32, nodes=2, **levels_of_both)
    assert_same(trainings.weights("deepspeed", **zero("parameters", **levels_of_both)), expected, 1e-4)


@EVERY
@pytest.mark.parametrize("sharding", ["optimizer", "gradients", "parameters"])
def test_what_ranks_communicate_tells_what_they_share(trainings: Trainings, sharding: str) -> None:
    folder = trainings.train("deepspeed", **zero(sharding, sync_every=SYNC_EVERY, trace="phases"))
    merge_phases(folder)
    phases = pd.read_csv(folder / "phases.csv").query("step > 0 and rank == 0")
    allreduces, own = phases[phases["phase"] == "communication"], phases[phases["phase"] != "communication"]

    def during(phase: str) -> set[int]:
        """Return the steps in which an all-reduce begins in this phase."""
        pairs = allreduces.merge(own[own["phase"] == phase], on="step", suffixes=("", "_of"))
        return set(pairs.query("start_of <= start <= end_of")["step"])

    assert during("backward") == (ALLREDUCING if sharding == "optimizer" else set(range(1, 25)))
    assert during("optimizer") >= ALLREDUCING, "parameters, of which each rank has updated a share"
    assert (len(during("forward")) > 20) == (sharding == "parameters")
    plain = trainings.train("deepspeed", **zero(sharding, sync_every=SYNC_EVERY))
    assert_alike(folder, plain, 1e-6)
