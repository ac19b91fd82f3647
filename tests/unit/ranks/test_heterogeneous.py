"""Ranks with different shares of a step's samples train as one rank with all of them does."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.graph import from_json
from ranks.worker.sampling import divide_step
from support.trainings import Trainings, assert_alike, assert_same, epochs, weights

BLOCK = 60
ONE_STEP = {"dataset": f"synthetic-8x8x1-10-{BLOCK}", "batch_size": BLOCK, "batch_scope": "global"}
GRADIENT = {
    **ONE_STEP,
    "momentum": 0.0,
    "learning_rate": 1.0,
}  # Then the change of weights in one step is the gradient.
NORMALIZED = {**GRADIENT, "model": "resnet-18", "dataset": f"synthetic-8x8x3-10-{BLOCK}"}


def drawn(ranks: int) -> str:
    """Return random shares of this number of ranks, in hundredths."""
    hundredths = divide_step(100, np.random.default_rng(ranks).uniform(0.05, 1, ranks).tolist(), 2)
    return "/".join(f"{share / 100:.2f}" for share in hundredths)


def shares(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())["shares"]


@pytest.mark.parametrize(
    ("ranks", "of_each"),
    [
        *((ranks, drawn(ranks)) for ranks in (2, 3)),
        (2, "measured"),
        *(
            pytest.param(ranks, of_each, marks=pytest.mark.thorough)
            for ranks, of_each in ((1, "equal"), (4, drawn(4)), (2, "0.98/0.02"))
        ),
    ],
)
def test_one_step_has_the_gradient_of_one_rank_with_all_samples(
    trainings: Trainings, ranks: int, of_each: str
) -> None:
    reference = trainings.train("pytorch-single", **GRADIENT)
    folder = trainings.train("pytorch-hybrid", nodes=ranks, shares=of_each, **GRADIENT)
    assert_alike(folder, reference, 1e-6, 0.01)
    (actual,), (alone,) = epochs(folder), epochs(reference)
    assert actual["samples_trained"] == alone["samples_trained"] == str(BLOCK)
    assert actual["train_accuracy"] == alone["train_accuracy"]
    for loss in ("train_loss", "validation_loss"):
        assert float(actual[loss]) == pytest.approx(float(alone[loss]), abs=1e-6)
    if of_each == "equal":
        assert shares(folder) is None
    elif of_each != "measured":
        expected_samples = divide_step(BLOCK, [float(share) for share in of_each.split("/")])
        assert shares(folder) == [{"samples": samples, "samples_s": None} for samples in expected_samples]
        assert [len(np.load(folder / f"seen.{rank}.npy")) for rank in range(ranks)] == expected_samples


def test_heterogeneous_accumulation_trains_like_whole_batches(trainings: Trainings) -> None:
    levels = {"batch_size": 64, "batch_scope": "global", "sync_every": 5}
    reference = trainings.weights("pytorch-single", **levels)
    assert_same(trainings.weights("pytorch-hybrid", nodes=2, shares="0.7/0.3", **levels), reference, 1e-5)


def test_running_statistics_are_averaged_by_samples(trainings: Trainings) -> None:
    """The first means are of values before any normalization, so they are the ranks' averages by samples.

    What lies above differs a little, since each rank normalizes by its own samples, as in every framework.
    """
    reference, folder = (
        trainings.train(name, **NORMALIZED, **further_levels)
        for name, further_levels in (
            ("pytorch-single", {}),
            ("pytorch-hybrid", {"nodes": 2, "shares": "0.8/0.2"}),
        )
    )
    graph = from_json(json.loads((folder / "rank_input.json").read_text())["model"])
    first = next(name for name in graph.statistics if name.endswith(".mean"))
    actual, expected = (weights(folder_of_run / "after.npz")[first] for folder_of_run in (folder, reference))
    np.testing.assert_allclose(actual, expected, atol=1e-6, rtol=0)
    assert np.abs(expected).max() > 1e-3


def test_speeds_measured_before_the_timed_epochs_decide_shares(trainings: Trainings) -> None:
    folder = trainings.train("pytorch-hybrid", nodes=2, shares="measured", **GRADIENT)
    first_rank, second_rank = shares(folder)
    assert first_rank["samples"] + second_rank["samples"] == BLOCK
    assert [first_rank["samples"], second_rank["samples"]] == divide_step(
        BLOCK, [first_rank["samples_s"], second_rank["samples_s"]]
    )
    assert min(first_rank["samples_s"], second_rank["samples_s"]) > 100
    (epoch,) = epochs(folder)
    assert (epoch["steps"], epoch["n_allreduces"]) == ("1", "1"), "what was trained to measure is in no epoch"
