"""What a slower device brings: found again from runs that were made of known speeds, and from which speed on
it pays.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.tables import read
from common.notes import codes, find_note
from prediction.hybrid import DECLARED, MEASURED, Ranks, break_even, build_rows, main, table
from support.known_heterogeneous import TRUTH, best_by_trying, heterogeneous_runs


def test_the_best_division_is_that_of_trying_all() -> None:
    for strengths in ((1.0, 0.5), (1.0, 0.5, 0.25), (1.0, 1.0, 0.05)):
        ranks = Ranks(TRUTH.batch_s, TRUTH.sample_s, 0.0, 96, "measured", strengths)
        tried = best_by_trying(96, strengths)
        assert ranks.seconds(ranks.balanced_samples()) == pytest.approx(ranks.seconds(tried), rel=0.03), (
            ranks.balanced_samples(),
            tried,
        )


def test_epoch_times_of_known_speeds_are_predicted() -> None:
    result = build_rows(*heterogeneous_runs())
    assert len(result) == 6 and set(result["source"]) == {DECLARED, MEASURED}
    assert result["error"].abs().max() < 0.05, result[["cell", "source", "error"]]
    equal, measured = (
        result[(result["ranks"] == 2) & (result["shares"] == level)].iloc[0]
        for level in ("equal", "measured")
    )
    assert equal["samples"] == "192/192" and measured["samples"] == measured["measured_samples"]
    assert equal["best_samples"] == measured["samples"] and equal["best_s"] == pytest.approx(
        measured["predicted_s"]
    )
    assert equal["saved"] < 0 < measured["saved"], (
        "half as fast a device costs with as many samples, and saves with its own"
    )
    assert np.sign(equal["measured_saved"]) == -1 and np.sign(measured["measured_saved"]) == 1
    assert set(result.loc[result["ranks"] == 3, "without"]) == {equal["cell"], measured["cell"]}


def test_where_no_rank_trains_alone_nothing_is_predicted() -> None:
    runs, network = heterogeneous_runs()
    built = table(multi_node := runs[runs["ranks"] > 1], network)
    assert build_rows(multi_node, network).empty and built.data.empty
    left = find_note(built.notes, "cells-not-predicted").facts["cells"]
    assert set(left) == set(multi_node["cell"]) and len(left) == multi_node["cell"].nunique()
    assert "cells-not-predicted" not in codes(table(runs, network).notes)


def test_device_of_break_even_speed_saves_nothing() -> None:
    item = Ranks(2.0, 0.1, 0.0, 100, "equal", (1.0,))
    before_s = item.seconds([100])
    for shares in ("equal", "measured"):
        two = Ranks(2.0, 0.1, 1.5, 100, shares, (1.0, 0.5))
        speed = break_even(two, before_s)
        weaker, stronger = (replace(two, strengths=(1.0, speed * factor)) for factor in (0.97, 1.03))
        assert stronger.seconds(stronger.samples()) <= before_s <= weaker.seconds(weaker.samples())
    assert break_even(replace(two, shares="equal"), before_s) == pytest.approx(
        (2 + 0.1 * 50) / (before_s - 1.5), rel=1e-3
    )
    assert break_even(replace(two, shares="measured"), before_s) < break_even(
        replace(two, shares="equal"), before_s
    )
    assert math.isinf(break_even(replace(two, allreduce_s=before_s), before_s)), (
        "the all-reduce alone takes as long"
    )


def test_the_table_says_from_which_speed_a_device_pays(tmp_path: Path) -> None:
    runs, network = heterogeneous_runs(tmp_path)
    main(runs=tmp_path / "runs.csv", network=tmp_path / "network.csv", out=tmp_path / "hybrid")
    written = read(tmp_path / "hybrid")
    assert written.display["speeds from"].tolist() == [DECLARED, DECLARED, MEASURED] * 2
    assert written.display["strengths"].tolist()[:2] == ["1/0.5", "1/0.5"]
    assert (written.data["break_even"] > 0).all() and (tmp_path / "hybrid.tex").exists()
    zero = table(runs[runs["nodes"] == 1], network.iloc[:0])
    assert zero.data.empty and codes(zero.notes)[0] == "nothing-to-predict"
