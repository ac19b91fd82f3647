"""Captions say that a model is a PyTorch module of the user's own, and no size of it is invented."""

from pathlib import Path

import pandas as pd
import pytest

from analysis import conditions
from analysis.efficiency import COUNTED, FROM_GRAPH, notes, summarize
from analysis.efficiency import measure as measure_efficiency
from analysis.strategies import cell_requirements
from declared.factors import factor_table
from support.sentences import sentence
from support.user_models import user_models_in


def test_captions_name_user_models(tmp_path: Path, runs: pd.DataFrame) -> None:
    model = runs["model"].iloc[0]
    mixed = runs.assign(model=runs["model"].where(runs["framework"] != "pytorch-ddp", "ours"))
    assert conditions.user_models_note(mixed) == ""
    with user_models_in(tmp_path, ours={}):
        note = conditions.user_models_note(mixed)
        assert note.facts["models"] == ["ours"] and model not in note
        for render in (conditions.measurement_note, conditions.circumstances_note):
            assert sentence([render(mixed)], "own-models") == note
        elsewhere = mixed.assign(framework="a-framework-of-others")
        assert conditions.user_models_note(elsewhere) == ""


def test_counted_operations_give_utilization(tmp_path: Path, runs: pd.DataFrame) -> None:
    counted = runs.assign(model="ours", sample_flops=2e6, peak_flops_s=1e12)
    with user_models_in(tmp_path, ours={}):
        measured = measure_efficiency(counted)
        assert set(measured["operations_source"]) == {COUNTED} and set(measured["sample_flops"]) == {2e6}
        assert measured["mfu"].gt(0).all() and len(summarize(measured))
        assert notes(measured)[0].facts["flops"] == [2e6]
    assert set(measure_efficiency(runs)["operations_source"]) == {FROM_GRAPH}


@pytest.mark.parametrize(("model", "is_known"), [("ours", False), ("small-cnn", True)])
def test_bytes_of_a_user_model_are_unknown(tmp_path: Path, model: str, is_known: bool) -> None:
    defaults = {name: entry["default"] for name, entry in factor_table().items() if "default" in entry}
    levels = {
        **defaults, "framework": "deepspeed", "model": model, "dataset": "digits", "parallelism": "sharded",
        "sync_every": 1, "nodes": 2,
    }  # fmt: skip
    run = {"ranks": 2, "local_batch": 32, "placement": "emulated"}
    with user_models_in(tmp_path, ours={}):
        assert (cell_requirements(levels, run) is not None) == is_known
