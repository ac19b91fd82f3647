"""LBANN, if a site has it (`make frameworks-test SITE=...`), computes the same as PyTorch."""

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from common.schemas import check_value, schema
from runs.phases import damage_reason, merge_phases
from support.installed_site import INSTALLED
from support.trainings import Trainings, epochs

pytestmark = pytest.mark.skipif(
    "lbann" not in INSTALLED, reason="this site has no LBANN installed (make frameworks-test)"
)

STILL = 1e-12  # a learning rate with which nothing is learnt
REPLICATES = 5
TEXT = "synthetic-text-64-16-4-1280"


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory, real: Any) -> Trainings:
    return Trainings(tmp_path_factory.mktemp("trainings"), real)


@pytest.mark.parametrize(
    ("model", "dataset"),
    [
        ("small-cnn", "digits"),
        ("lenet-5", "fashion-mnist-small"),
        ("small-cnn", "cifar-10-small"),
        ("rnn-nano", "text8-small"),
        ("gpt-nano", "wikitext-2-small"),
        ("rnn-text-nano", TEXT),
    ],
)
def test_lbann_computes_what_pytorch_computes_before_learning(
    trainings: Trainings, model: str, dataset: str
) -> None:
    """Both apply the same model with the same weights to the same normalized samples."""
    levels_of_both = {"model": model, "dataset": dataset, "batch_size": 64, "learning_rate": STILL}
    lbann, pytorch = (
        epochs(trainings.train(name, **levels_of_both))[0] for name in ("lbann", "pytorch-single")
    )
    assert float(lbann["validation_loss"]) == pytest.approx(float(pytorch["validation_loss"]), rel=1e-4)
    assert float(lbann["validation_accuracy"]) == pytest.approx(
        float(pytorch["validation_accuracy"]), abs=1e-4
    )
    # Other frameworks leave out the last samples of an epoch that fill no batch; LBANN trains them.
    assert float(lbann["train_loss"]) == pytest.approx(float(pytorch["train_loss"]), rel=2e-2)


@pytest.mark.parametrize(
    ("model", "dataset", "nodes", "rate"),
    [
        ("rnn-nano", "wikitext-2-small", 1, 4.0),
        ("gpt-nano", "wikitext-2-small", 2, 0.5),
        ("rnn-text-nano", TEXT, 1, 40.0),
    ],
)
def test_a_step_on_all_samples_changes_the_loss_as_pytorch_does(
    trainings: Trainings, model: str, dataset: str, nodes: int, rate: float
) -> None:
    """Such a step does not depend on the order of samples.

    Drawn ones are others in PyTorch's second epoch.
    """
    levels_of_both = {
        "model": model,
        "dataset": dataset,
        "learning_rate": rate,
        "epochs": 1 if dataset == TEXT else 3,
    }
    lbann = epochs(trainings.train("lbann", batch_size=1280 // nodes, nodes=nodes, **levels_of_both))
    pytorch = epochs(trainings.train("pytorch-single", batch_size=1280, **levels_of_both))
    for loss in ("train_loss", "validation_loss"):
        expected = [float(row[loss]) for row in pytorch]
        assert [float(row[loss]) for row in lbann] == pytest.approx(expected, rel=1e-4)
    changed = abs(float(pytorch[-1]["validation_loss"]) / float(pytorch[0]["train_loss"]) - 1)
    assert changed > 2e-3, "by much more than that"


@pytest.mark.parametrize("levels", [{}, {"parallelism": "dense"}], ids=["data", "dense"])
def test_two_ranks_train_like_one(trainings: Trainings, levels: dict[str, str]) -> None:
    """They agree to five digits in the first epoch, before rounding makes them differ."""
    single_rank = trainings.losses("lbann", batch_size=64, epochs=3)
    two = trainings.losses("lbann", batch_size=32, nodes=2, epochs=3, **levels)
    assert two[0] == pytest.approx(single_rank[0], rel=1e-4)
    assert two == pytest.approx(single_rank, rel=0.05)


def test_weight_decay_is_that_of_the_others(trainings: Trainings) -> None:
    levels_of_both = {"batch_size": 64, "learning_rate": STILL}
    plain, decayed = (
        objective(trainings.train("lbann", weight_decay=decay, **levels_of_both)) for decay in (0.0, 0.1)
    )
    weights = trainings.weights("pytorch-single", weight_decay=0.1, **levels_of_both)
    kernels = sum(float((weight**2).sum()) for name, weight in weights.items() if name.endswith(".kernel"))
    assert decayed - plain == pytest.approx(0.05 * kernels, rel=1e-3)
    losses = [trainings.losses("lbann", weight_decay=decay, **levels_of_both)[0] for decay in (0.0, 0.1)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4), "the loss is told apart from it"


def objective(folder: Path) -> float:
    """Return the objective that LBANN minimized, in the last epoch of an attempt."""
    objectives: list[float] = json.loads((folder / "result.json").read_text())["program_report"]["objective"]
    return objectives[-1]


def test_every_epoch_tells_what_lbann_prints(trainings: Trainings) -> None:
    folder = trainings.train("lbann", batch_size=32, nodes=2, epochs=3)
    rows = epochs(folder)
    assert len(rows) == 3
    for row in rows:
        assert (row["steps"], row["samples_trained"]) == ("24", "1536")
        assert float(row["epoch_time_s"]) > 0 < float(row["validation_time_s"])
        assert row["closed_time_s"] == row["imbalance_s"] == "", "what LBANN does not print is not invented"
        assert float(row["sent_bytes"]) > 24 * 544_522 * 4 / 2, "gradients go through the interface"
    result = json.loads((folder / "result.json").read_text())
    assert result["transport"] == "mpi" and "LBANN" in result["library_version"]
    report = result["program_report"]
    assert len(report["steps_s"]) == 3 and all(epoch["mean"] > 0 for epoch in report["steps_s"])
    assert 0 < report["forward_share"] < 1 and 0 < report["backward_share"] < 1
    assert (folder / "experiment.prototext").read_text().startswith("data_reader {")
    assert result["other_cpu_share"] < 0.5, "what LBANN uses is the run's own"


def test_a_traced_run_tells_of_every_step_of_every_rank(trainings: Trainings) -> None:
    folder = trainings.train("lbann", batch_size=32, nodes=2, epochs=2, trace="full")
    merge_phases(folder)
    assert damage_reason(folder, ranks=2, epochs=2, steps=24) is None
    phases = pd.read_csv(folder / "phases.csv")
    steps = phases[phases["step"] > 0]
    assert steps.groupby(["rank", "epoch"])["step"].nunique().to_list() == [24] * 4
    assert set(steps["phase"]) == {"data", "forward", "backward", "metrics", "optimizer"}
    for row in epochs(folder):
        own = steps[steps["epoch"] == int(row["epoch"])]
        for _, intervals in own.groupby("rank"):
            took = intervals["end"].max() - intervals["start"].min()
            assert took == pytest.approx(float(row["epoch_time_s"]), rel=0.05), "by LBANN's own clock"
    # Ranks synchronize in every step: none starts the next step before all have computed their gradients.
    forward = steps[steps["phase"] == "forward"].groupby(["epoch", "step"])["start"].max().to_numpy()
    done = steps[steps["phase"] == "optimizer"].groupby(["epoch", "step"])["end"].min().to_numpy()
    assert (forward < done + 5e-3).all()
    for rank in range(2):
        events = json.loads((folder / f"operators-{rank}.json").read_text())["traceEvents"]
        assert {"conv1", "dense2", "conv1.kernel"} <= {event["name"] for event in events}
    assert not list(folder.glob("timeline*"))


def test_what_diverged_is_told_without_numbers_that_are_none(trainings: Trainings) -> None:
    folder = trainings.train("lbann", batch_size=64, epochs=2, learning_rate=1e6)
    assert not all(math.isfinite(float(row["train_loss"])) for row in epochs(folder))
    report = json.loads((folder / "result.json").read_text(), parse_constant=pytest.fail)["program_report"]
    assert None in report["objective"]
    check_value(
        report,
        schema("record")["properties"]["measured"]["properties"]["program_report"],
        "program_report",
        folder,
    )
