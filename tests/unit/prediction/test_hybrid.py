"""What a slower device brings: found again from runs that were made of known speeds, and from which speed on it pays."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import known_physics as known
from analysis.tables import read
from known_physics import Truth
from prediction.hybrid import DECLARED, MEASURED, Ranks, break_even, main, predict, table

TRUTH = Truth(batch_s=0.004, sample_s=0.0004, update_s=0.0)
STRENGTHS = {1: (1.0,), 2: (1.0, 0.5), 3: (1.0, 0.5, 0.25)}
RATE = 125e6


def made(folder: Path | None = None, block: int = 96, noise: float = 0.0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs on one, two and three nodes of 0.8, 0.4 and 0.2 core, of the same samples a step, by a plain loop; and the network."""
    parts = [
        known.runs(
            TRUTH, nodes=(1,), batches=(block, 2 * block), rates=(RATE,), noise=noise, framework="pytorch-hybrid"
        )
    ]
    steps = known.SAMPLES // block
    for nodes, strengths in [(n, s) for n, s in STRENGTHS.items() if n > 1]:
        whole = known.runs(TRUTH, nodes=(nodes,), batches=(block,), rates=(RATE,), framework="pytorch-hybrid")
        for shares in ("equal", "measured"):
            samples = [block // nodes] * nodes if shares == "equal" else best_by_trying(block, strengths)
            speeds = [n / alone(n, k) for n, k in zip(samples, strengths, strict=True)]
            step_s = max(map(alone, samples, strengths)) + TRUTH.exchange("small-cnn", "digits", nodes, RATE, 0.0)
            cell = f"hybrid.b{block}.n{nodes}.{shares}"
            told = {
                "cell": cell, "shares": shares, "epoch_time_s": step_s * steps, "local_batch": block // nodes, "steps": steps,
                "exchanges": steps, "effective_batch": block, "samples_trained": steps * block,
                "cpu_shares": "/".join(f"{0.8 * k:g}" for k in strengths),
                "rank_samples": "/".join(map(str, samples)) if shares == "measured" else None,
                "rank_speeds": "/".join(f"{speed:.6g}" for speed in speeds) if shares == "measured" else None,
            }  # fmt: skip
            runs = whole.astype(object).assign(**told, run_id=[f"{cell}.r{r}" for r in whole["replicate"]])
            parts.append(runs)
    runs = known.written(pd.concat([part.astype(object) for part in parts], ignore_index=True), "runs", folder)
    return runs, known.network(TRUTH, folder, nodes=(2, 3), rates=(RATE,), noise=0.0, framework="pytorch-hybrid")


def alone(samples: int, strength: float) -> float:
    """A step of one rank."""
    return (TRUTH.batch_s + TRUTH.sample_s * samples) / strength


def best_by_trying(block: int, strengths: tuple[float, ...]) -> list[int]:
    """The division with the shortest step, by trying all of them."""
    if len(strengths) == 2:
        every = [[n, block - n] for n in range(1, block)]
    else:
        every = [[n, m, block - n - m] for n in range(1, block - 1) for m in range(1, block - n)]
    return min(every, key=lambda samples: max(map(alone, samples, strengths)))


def test_the_best_division_is_that_of_trying_all() -> None:
    for strengths in ((1.0, 0.5), (1.0, 0.5, 0.25), (1.0, 1.0, 0.05)):
        ranks = Ranks(TRUTH.batch_s, TRUTH.sample_s, 0.0, 96, "measured", strengths)
        tried = best_by_trying(96, strengths)
        assert ranks.seconds(ranks.best()) == pytest.approx(ranks.seconds(tried), rel=0.03), (ranks.best(), tried)


def test_epoch_times_of_known_speeds_are_predicted_from_either_source() -> None:
    found = predict(*made())
    assert len(found) == 6 and set(found["source"]) == {DECLARED, MEASURED}
    assert found["error"].abs().max() < 0.05, found[["cell", "source", "error"]]
    equal, measured = (
        found[(found["ranks"] == 2) & (found["shares"] == level)].iloc[0] for level in ("equal", "measured")
    )
    assert equal["samples"] == "48/48" and measured["samples"] == measured["measured_samples"]
    assert equal["best_samples"] == measured["samples"] and equal["best_s"] == pytest.approx(measured["predicted_s"])
    assert equal["saved"] < 0 < measured["saved"], (
        "half as fast a device costs with as many samples, and saves with its own"
    )
    assert np.sign(equal["measured_saved"]) == -1 and np.sign(measured["measured_saved"]) == 1
    assert set(found.loc[found["ranks"] == 3, "without"]) == {equal["cell"], measured["cell"]}


def test_a_device_of_the_break_even_speed_neither_saves_nor_costs() -> None:
    one = Ranks(2.0, 0.1, 0.0, 100, "equal", (1.0,))
    before_s = one.seconds([100])
    for shares in ("equal", "measured"):
        two = Ranks(2.0, 0.1, 1.5, 100, shares, (1.0, 0.5))
        speed = break_even(two, before_s)
        weaker, stronger = (replace(two, strengths=(1.0, speed * factor)) for factor in (0.97, 1.03))
        assert stronger.seconds(stronger.samples()) <= before_s <= weaker.seconds(weaker.samples())
    assert break_even(replace(two, shares="equal"), before_s) == pytest.approx(
        (2 + 0.1 * 50) / (before_s - 1.5), rel=1e-3
    )
    assert break_even(replace(two, shares="measured"), before_s) < break_even(replace(two, shares="equal"), before_s)
    assert math.isinf(break_even(replace(two, exchange_s=before_s), before_s)), "the exchange alone takes as long"


def test_the_table_says_from_which_speed_a_device_pays(tmp_path: Path) -> None:
    runs, network = made(tmp_path)
    main(
        [
            "--runs",
            str(tmp_path / "runs.csv"),
            "--network",
            str(tmp_path / "network.csv"),
            "--out",
            str(tmp_path / "hybrid"),
        ]
    )
    written = read(tmp_path / "hybrid")
    assert written.shown["speeds from"].tolist() == [DECLARED, DECLARED, MEASURED] * 2
    assert written.shown["strengths"].tolist()[:2] == ["1/0.5", "1/0.5"]
    assert (written.data["break_even"] > 0).all() and (tmp_path / "hybrid.tex").exists()
    nothing = table(runs[runs["nodes"] == 1], network.iloc[:0])
    assert nothing.data.empty and nothing.notes[0].startswith("Nothing to predict")
