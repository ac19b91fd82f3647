"""Tables of cells, speed-up and missing runs recover known effects."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import cells, conditions, effects, missing, speedup, tables
from analysis.cell_means import estimate_means
from common.notes import codes, find_note
from support.sentences import sentence, sentences
from support.synthetic import FAILURES, epoch_time

DDP_64_2 = "pytorch-ddp.small-cnn.digits.b64.n2.s1"


def test_a_row_per_cell_with_the_numbers_of_scipy(runs):
    data = cells.summarize(runs)
    assert len(data) == runs["cell"].nunique() == 38
    x = runs.loc[runs["cell"] == DDP_64_2, "epoch_time_s"]
    row = data.set_index("cell").loc[DDP_64_2]
    prior = estimate_means(runs).prior
    s = math.sqrt((prior.df * prior.variance + 2 * np.log(x).var(ddof=1)) / (prior.df + 2))
    low, high = stats.t.interval(0.95, prior.df + 2, loc=np.log(x.mean()), scale=s / math.sqrt(3))
    assert row["epoch_time_s_mean"] == pytest.approx(x.mean())
    assert np.log([row["epoch_time_s_low"], row["epoch_time_s_high"]]) == pytest.approx([low, high])
    assert row["epoch_time_s_cv"] == pytest.approx(x.std() / x.mean())
    assert row["epoch_time_s_median"] == np.median(x)
    assert row["throughput_samples_s_mean"] == pytest.approx(stats.hmean(1536 / x))
    assert row["throughput_samples_s_low"] == pytest.approx(1536 / row["epoch_time_s_high"])
    accuracy = runs.loc[runs["cell"] == DDP_64_2, "validation_accuracy"]
    low, high = stats.t.interval(0.95, 2, loc=accuracy.mean(), scale=stats.sem(accuracy))
    assert (row["validation_accuracy_low"], row["validation_accuracy_high"]) == pytest.approx(
        (low, min(high, 1))
    )


def test_medians_are_resampled_from_ten_runs_on(read):
    nine, ten = (read(replicates=n, failures={}) for n in (9, 10))
    assert "epoch_time_s_median_low" not in cells.table(nine).data
    row = cells.summarize(ten).set_index("cell").loc[DDP_64_2]
    x = ten.loc[ten["cell"] == DDP_64_2, "epoch_time_s"].to_numpy()
    drawn = stats.bootstrap((x,), np.median, n_resamples=9999, rng=1).confidence_interval
    assert row["epoch_time_s_median_low"] == pytest.approx(drawn.low, rel=0.005)
    assert row["epoch_time_s_median_high"] == pytest.approx(drawn.high, rel=0.005)


def test_without_noise_the_means_are_the_true_times(read):
    data = cells.summarize(read(noise=0.0))
    truth = [epoch_time(c.framework, c.batch_size, c.nodes, c.sync_every) for c in data.itertuples()]
    measured = data["n"] > 0
    assert np.allclose(data["epoch_time_s_mean"][measured], np.array(truth)[measured])


def test_failed_runs_are_counted_not_averaged(runs):
    runs.loc[runs["status"] == "failed", "epoch_time_s"] = 99.0
    data = cells.summarize(runs).set_index("cell")
    row = data.loc["horovod-tensorflow.small-cnn.digits.b16.n2.s1"]
    assert (row["n"], row["unsuccessful"]) == (2, 1)
    assert row["epoch_time_s_mean"] < 1
    assert data.loc["pytorch-ddp.small-cnn.digits.b32.n2.s4", "n"] == 0
    assert "2 of 3" in set(cells.table(runs).display["n"])
    assert sentence(cells.table(runs).notes, "cells-missing").facts == {"cells": 1, "of": 38}


def test_table_lists_varying_factors_and_names_the_rest(runs):
    table = cells.table(runs)
    assert list(table.display)[:4] == ["framework", "batch size", "nodes", "gradient accumulation steps"]
    assert list(dict.fromkeys(table.display["framework"]))[:2] == ["pytorch-single", "tensorflow-single"]


def test_speedup_is_relative_to_the_single_device_baseline(runs):
    data = speedup.build_rows(runs).set_index("cell")
    row = data.loc[DDP_64_2]
    baseline = runs.loc[runs["cell"] == "pytorch-single.small-cnn.digits.b64.n1.s1", "epoch_time_s"]
    own = runs.loc[runs["cell"] == DDP_64_2, "epoch_time_s"]
    assert row["baseline_cell"] == "pytorch-single.small-cnn.digits.b64.n1.s1"
    assert row["baseline_epoch_time_s"] == pytest.approx(baseline.mean())
    assert row["speedup"] == pytest.approx(baseline.mean() / own.mean())
    assert row["efficiency"] == pytest.approx(row["speedup"] / 2)
    assert row["speedup_low"] < row["speedup"] < row["speedup_high"]
    by_cell = cells.summarize(runs).set_index("cell").loc[DDP_64_2]
    for bound in ("low", "high"):
        assert row[f"epoch_time_s_{bound}"] == by_cell[f"epoch_time_s_{bound}"], "tables agree"


def test_baseline_without_a_factor_serves_all_its_levels(runs):
    data = speedup.build_rows(runs).set_index("cell")
    baseline = data.loc["horovod-pytorch.small-cnn.digits.b32.n2.s4", "baseline_cell"]
    assert baseline == "pytorch-single.small-cnn.digits.b32.n1.s1"


def test_a_baseline_is_its_own_without_an_interval(runs):
    row = speedup.build_rows(runs).set_index("cell").loc["tensorflow-single.small-cnn.digits.b16.n1.s1"]
    assert row["speedup"] == 1
    assert math.isnan(row["speedup_low"])


def test_without_single_device_baseline_a_framework_is_its_own(runs):
    alone = runs[runs["framework"] == "pytorch-ddp"]
    data = speedup.build_rows(alone).set_index("cell")
    assert data.loc[DDP_64_2, "baseline_cell"] == "pytorch-ddp.small-cnn.digits.b64.n1.s1"


def test_a_cell_without_a_successful_baseline_is_named(runs):
    at_one = (runs["batch_size"] == 64) & (runs["nodes"] == 1)
    runs.loc[at_one, ["status", "epoch_time_s"]] = ["failed", None]
    table = speedup.table(runs)
    assert table.data.set_index("cell").loc[DDP_64_2, ["baseline_cell", "speedup"]].isna().all()
    assert DDP_64_2 in find_note(table.notes, "cells-without-baseline").facts["cells"]


def test_the_methods_note_says_all_that_captions_shorten(runs):
    within_blocks = effects.build_rows(runs)["within_blocks"]
    paragraphs = list(sentences(conditions.methods_notes(runs, within_blocks)))
    replicates = find_note(paragraphs, "replicates").facts
    assert (replicates["fewest"], replicates["most"], replicates["moderated"]) == (2, 3, True)
    assert find_note(paragraphs, "intervals-of-contrasts").facts["blocks"]
    assert find_note(paragraphs, "placement").facts["placements"] == ["emulated"]
    assert find_note(paragraphs, "batch-scope").facts["scopes"] == ["local"]
    assert find_note(paragraphs, "timing-scope").facts == {"slowest_rank": True, "masters": []}
    assert "work-of-an-epoch" in codes(paragraphs)
    assert find_note(paragraphs, "cells-missing").facts == {"cells": 1, "of": 38}
    levels = find_note(paragraphs, "constants").facts["levels"]
    assert (levels["model"], levels["dataset"]) == ("small-cnn", "digits")


def test_short_notes_stand_below_a_table(tmp_path):
    short, long, last = "Short.", "word " * 60 + "end.", "It is the last, and long: " + "last " * 50 + "end."
    frame = pd.DataFrame({"a": ["1"]})
    table = tables.Table("Title", frame, frame, [short, long, last])
    assert (table.below, table.endnotes) == ([short, last], [long])
    tables.write(table, tmp_path / "t")
    assert tables.read(tmp_path / "t").notes == table.notes
    assert (
        "Short." in (tmp_path / "t.tex").read_text() and "word word" not in (tmp_path / "t.tex").read_text()
    )
    notes = tables.Table("Title", frame, frame, ["word " * 19 + "end."] * 9)
    assert sum(len(note.split()) for note in notes.below) <= tables.MAX_WORDS_BELOW


def test_missing_runs_are_listed_with_the_reason_in_one_line(runs):
    runs.loc[runs["status"] == "failed", "reason"] = "Traceback:\n  line 2"
    table = missing.table(runs)
    assert set(table.data["run_id"]) == set(FAILURES)
    assert "Traceback: line 2" in set(table.data["reason"])
    (note,) = table.notes
    assert note.facts == {"of": 114, "by_status": {"failed": 1, "invalid": 1, "missing": 1, "timeout": 1}}
    assert note == "4 of 114 runs did not succeed: 1 failed, 1 invalid, 1 missing, 1 timeout."


def test_a_campaign_without_failures_says_so(read):
    runs = read(failures={})
    for subset, count in ((runs, 114), (runs.head(1), 1)):
        assert find_note(missing.table(subset).notes, "runs-without-success").facts == {
            "of": count,
            "by_status": {},
        }


def test_one_device_is_the_baseline_at_every_rate_of_the_links(runs):
    """One device does not communicate, so a study measures it at one rate only."""
    parallel = runs[runs["n_devices"] > 1]
    names = {name: parallel[name] + ".bandwidth=250" for name in ("cell", "run_id")}
    slower = parallel.assign(bandwidth=250, epoch_time_s=2 * parallel["epoch_time_s"].astype(float), **names)
    rates = pd.concat([runs.assign(bandwidth=1000), slower], ignore_index=True)
    before, baselines = speedup.baseline_cells(runs), speedup.baseline_cells(rates)
    assert {cell: baseline for cell, baseline in baselines.items() if "bandwidth" not in cell} == before
    assert {cell: baselines[f"{cell}.bandwidth=250"] for cell in set(parallel["cell"]) & set(before)} == {
        cell: before[cell] for cell in set(parallel["cell"]) & set(before)
    }


def test_a_narrow_interval_says_what_it_does_not_contain(read):
    narrow = read(failures={}, noise=0.0003)
    note = find_note(cells.table(narrow).notes, "one-allocation")
    assert note.facts == {"half_width": estimate_means(narrow).half_widths.median(), "recorded": True}
    assert note.facts["half_width"] < 0.001
    elsewhere = conditions.one_allocation_note(narrow.assign(session=None))
    assert elsewhere.facts == note.facts | {"recorded": False} and elsewhere != note
    by_block = narrow.assign(session=narrow["block"].astype(str))
    wide, single = read(failures={}, noise=0.05), read(failures={}, replicates=1)
    for runs in (by_block, wide, single, narrow.assign(status="failed")):
        assert conditions.one_allocation_note(runs) is None


def test_steps_of_single_runs_are_no_replicates(read):
    runs = read(failures={}, replicates=2).assign(step_time_median_s=0.1)
    assert conditions.single_run_steps_note(runs) is None
    alone = runs[(runs["replicate"] == 1) | (runs["cell"] != DDP_64_2)]
    assert conditions.single_run_steps_note(alone).facts == {"cells": 1}
    assert "steps-of-single-runs" in codes(cells.table(alone).notes)
    assert conditions.single_run_steps_note(alone.assign(step_time_median_s=np.nan)) is None
