"""Factors of the user's own are factors like any other, from a study's file to tables and figures."""

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis import cells, effects
from analysis.level_words import title
from analysis.records import Records, levels_in_order, read_runs, varying
from analysis.speedup import build_rows as speedup_rows
from common.errors import InputError
from common.tables import read_table, write_table
from declared.figure_specs import FigureSpec
from declared.site import load_site
from declared.study import load_study
from figures.kinds import by_factor
from plan.design import plan_design, to_csv
from support.refusals import assert_refusal
from support.synthetic import campaign, write_frames

FACTORS = {
    "framework": "pytorch-ddp", "model": "small-cnn", "dataset": "digits", "nodes": 1, "batch_size": 16,
    "sync_every": 1,
}  # fmt: skip
STUDY = {"title": "t", "question": "q", "seed": 1, "design": "full", "replicates": 2}
SPEEDUP = {1: 1.0, 2: 1.6, 4: 2.2}


def write_study(folder, custom, **keys):
    """Write the study s.yaml with factors of the user's own, and other keys."""
    content = {**STUDY, "factors": {**FACTORS, "custom": custom}, **keys}
    (folder / "s.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


@pytest.fixture
def frames():
    """Runs and epochs whose epoch time depends on the factor custom_tp alone."""
    runs, epochs = campaign(failures={}, noise=0.002)
    runs = runs[(runs["framework"] == "pytorch-ddp") & (runs["nodes"] == 1) & (runs["batch_size"] == 16)]
    parts = []
    for tp, speedup in SPEEDUP.items():
        renamed = {name: runs[name].str.replace(".r", f".tp={tp}.r") for name in ("run_id",)}
        own = runs.assign(**renamed, cell=runs["cell"] + f".tp={tp}", custom_tp=tp)
        times = {name: own[name] / speedup for name in ("epoch_time_s", "epoch_time_median_s")}
        parts.append(
            (own.assign(**times), epochs.assign(run_id=epochs["run_id"].str.replace(".r", f".tp={tp}.r")))
        )
    epochs = pd.concat([own[own["run_id"].isin(set(runs["run_id"]))] for runs, own in parts])
    return pd.concat([runs for runs, _ in parts], ignore_index=True), epochs.reset_index(drop=True)


def test_a_study_declares_factors_of_its_own(tmp_path):
    study = load_study("s", write_study(tmp_path, {"tp": [1, 2, 4], "impl": "fused"}, answer="custom_tp"))
    assert study.factors["custom_tp"] == [1, 2, 4] and study.factors["custom_impl"] == ["fused"]
    assert study.varied == ["custom_tp"] and study.answer_factors == ("custom_tp",)
    assert load_study("s", write_study(tmp_path, {"tp": [1, 2]})).answer_factors == ("custom_tp",)
    assert study._n_coefficients == 2  # intercept and slope


@pytest.mark.parametrize(
    ("custom", "code", "key"),
    [
        ({"nodes": [1, 2]}, "reserved-name", "factors.custom.nodes"),
        ({"Tp": [1]}, "bad-pattern", "factors.custom"),
        ({"tp": [1, 1]}, "duplicate", "factors.custom.tp"),
        ({"tp": [True]}, "wrong-type", "factors.custom.tp"),
        ({"tp": []}, "too-few", "factors.custom.tp"),
        ({"tp": ["two words"]}, "bad-pattern", "factors.custom.tp"),
        ([1], "wrong-type", "factors.custom"),
    ],
)
def test_a_wrong_factor_of_ones_own_is_refused(tmp_path, custom, code, key):
    with pytest.raises(InputError) as refused:
        load_study("s", write_study(tmp_path, custom))
    assert_refusal(refused.value, code, key)


def test_a_framework_without_the_factor_is_not_run_twice(tmp_path):
    with pytest.raises(InputError) as refused:
        plan_design(load_study("s", write_study(tmp_path, {"tp": [1, 2]})), load_site("local"))
    assert refused.value.code == "duplicate" and refused.value.got == {
        "framework": "pytorch-ddp",
        "custom_tp": 2,
    }
    study = load_study("s", write_study(tmp_path, {"tp": 2, "impl": "fused"}))
    runs = plan_design(study, load_site("local"))
    assert runs[0].cell.endswith(".tp=2.impl=fused")
    file = tmp_path / "design.csv"
    file.write_text(to_csv(runs))
    design = read_table(file, "design")
    assert list(design)[-2:] == ["custom_tp", "custom_impl"]
    assert set(design["custom_tp"]) == {2} and set(design["custom_impl"]) == {"fused"}


def test_columns_of_own_factors_are_read_and_written(tmp_path, frames):
    runs = frames[0].assign(custom_impl=np.repeat(["fused", "plain", "2"], 3), custom_size=0.5)
    write_table(runs.drop(columns="n_devices"), "runs", tmp_path / "runs.csv")
    read = read_runs(tmp_path / "runs.csv")
    assert levels_in_order(read, "custom_tp") == [1, 2, 4] and read["custom_size"].tolist() == [0.5] * 9
    assert levels_in_order(read, "custom_impl") == [2, "fused", "plain"]
    text = (tmp_path / "runs.csv").read_text()
    write_table(read.drop(columns="n_devices"), "runs", tmp_path / "again.csv")
    assert read_table(tmp_path / "again.csv", "runs").equals(read_table(tmp_path / "runs.csv", "runs"))
    for column in ("custom_Tp", "tp", "custom_"):
        (tmp_path / "runs.csv").write_text(text.replace("custom_tp", column, 1))
        with pytest.raises(InputError) as refused:
            read_runs(tmp_path / "runs.csv")
        assert_refusal(refused.value, "unknown-key", column)


def test_rows_of_a_cell_agree_in_own_factors(tmp_path, frames):
    runs = frames[0]
    runs.loc[1, "custom_tp"] = 8
    write_table(runs.drop(columns="n_devices"), "runs", tmp_path / "runs.csv")
    with pytest.raises(InputError) as refused:
        read_runs(tmp_path / "runs.csv")
    assert_refusal(refused.value, "contradicting-rows", "custom_tp")


def test_tables_and_figures_have_own_factors(tmp_path, frames):
    records = Records(*write_frames(tmp_path, *frames))
    assert varying(records.runs) == ["custom_tp"] and title("custom_tp") == "tp"
    compared = effects.build_rows(records.runs)
    assert set(compared["factor"]) == {"custom_tp"}
    assert compared["ratio"].tolist() == pytest.approx([1 / SPEEDUP[2], 1 / SPEEDUP[4]], rel=0.01)
    assert cells.summarize(records.runs)["custom_tp"].tolist() == [1, 2, 4]
    assert "custom_tp" in speedup_rows(records.runs)
    figure, _ = by_factor.draw(records, FigureSpec("by_tp", "by_factor", x="custom_tp"))
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "4"]
    assert figure.get_supxlabel() == "tp"
