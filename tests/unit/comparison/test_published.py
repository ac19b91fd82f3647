"""Comparisons with published numbers: the same conditions only, equivalence tests, one line where none match."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy
import yaml

from analysis.records import read_timing_runs
from common.errors import InputError
from common.notes import find_note
from comparison.published import FASTER, OPEN, SLOWER, WITHIN, build_rows, make_table, match_cells
from declared.references import FOLDER, PublishedCell, Reference, load_reference, reference_names
from support.measured_elsewhere import DLPERF
from support.refusals import assert_refusal

MARGIN = 0.05
FRAMEWORK = "mindspore"


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    """Runs of four frameworks on 1 to 32 V100."""
    return read_timing_runs(DLPERF / "runs.csv")


def one_cell(runs: pd.DataFrame, devices: int = 8) -> pd.DataFrame:
    return runs[(runs["framework"] == FRAMEWORK) & (runs["n_devices"] == devices)]


def row_of(cell: pd.DataFrame, share: float = 1.0, **changes: object) -> PublishedCell:
    """Return a published row for a cell, with `share` times its throughput."""
    run = cell.iloc[0]
    conditions = {
        "model": ("resnet-50",),
        "device": run["devices"],
        "precision": "fp32",
        "nodes": int(run["nodes"]),
        "devices_per_node": int(run["devices_per_node"]),
        "global_batch": int(run["effective_batch"]),
        "batch_size": 128,
        "samples_s": share * float(scipy.stats.hmean(cell["throughput_samples_s"])),
    }
    return PublishedCell(**{**conditions, **changes})


def reference_of(*rows: PublishedCell) -> Reference:
    return replace(load_reference("dlperf"), rows=rows)


@pytest.mark.parametrize(
    ("share", "verdict"), [(1.0, WITHIN), (1.02, WITHIN), (1.1, SLOWER), (0.9, FASTER), (1.05, OPEN)]
)
def test_verdict_follows_the_ratio(runs: pd.DataFrame, share: float, verdict: str) -> None:
    cell = one_cell(runs)
    (row,) = build_rows(cell, reference_of(row_of(cell, share)), MARGIN).itertuples()
    assert row.verdict == verdict
    assert row.ratio == pytest.approx(1 / share) and row.ratio_low < row.ratio < row.ratio_high
    assert row.samples_s == pytest.approx(row.published_samples_s / share)


def test_interval_covers_the_spread_of_both(runs: pd.DataFrame) -> None:
    """With the runs of a cell as published ones, it is Welch's interval of the difference of mean logarithms."""
    cell = one_cell(runs)
    logs = np.log(1 / cell["throughput_samples_s"].to_numpy(float))
    spread, n = 0.02, 4
    exact = build_rows(cell, reference_of(row_of(cell)), MARGIN).iloc[0]
    spreading = build_rows(cell, reference_of(row_of(cell, runs=n, cv=spread)), MARGIN).iloc[0]
    errors = logs.var(ddof=1) / len(logs), spread**2 / n
    df = sum(errors) ** 2 / (errors[0] ** 2 / (len(logs) - 1) + errors[1] ** 2 / (n - 1))
    half = scipy.special.stdtrit(df, 0.975) * math.sqrt(sum(errors))
    assert math.log(spreading["ratio_high"] / spreading["ratio"]) == pytest.approx(half, rel=0.02)
    assert exact["ratio_high"] < spreading["ratio_high"]


def test_false_verdicts_are_rare(runs: pd.DataFrame) -> None:
    """At the edge of the margin, within and beyond are each claimed in 5 % of comparisons."""
    rng, n, studies = np.random.default_rng(3), 5, 500
    template = one_cell(runs).head(n)
    row = row_of(template)
    copies = pd.concat([template] * studies, ignore_index=True)
    names = np.repeat([f"cell{number}" for number in range(studies)], n)
    edge = row.samples_s / (1 + MARGIN) * rng.lognormal(0, 0.01, len(copies))
    drawn = copies.assign(cell=names, run_id=range(len(copies)), throughput_samples_s=edge)
    data = build_rows(drawn, reference_of(row), MARGIN)
    for name in ("p_within", "p_beyond"):
        assert 0.02 < (data[name] < 0.05).mean() < 0.08  # 5 %; standard error 1 %
    assert set(data["verdict"]) == {OPEN}, "after Holm's correction"


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"model": ("bert-base",)}, "model"),
        ({"device": "A100"}, "device"),
        ({"device": "NVIDIA"}, "device"),
        ({"precision": "amp"}, "precision"),
        ({"nodes": 2}, "devices"),
        ({"global_batch": 512}, "global batch size"),
        ({"batch_size": 64.0}, "batch size"),
    ],
)
def test_other_conditions_are_refused(runs: pd.DataFrame, change: dict[str, object], differs: str) -> None:
    cell = one_cell(runs)
    reference = reference_of(row_of(cell, **change))
    pairs, refused = match_cells(cell, reference)
    ((name, _, _),) = refused
    assert not pairs and name == differs
    with pytest.raises(InputError) as error:
        build_rows(cell, reference, MARGIN)
    assert error.value.code == "nothing-to-compare" and differs in str(error.value)


def test_refusal_names_the_most_similar_row(runs: pd.DataFrame) -> None:
    cell = one_cell(runs)
    differing_rows = [
        row_of(cell, model=("other",)),
        row_of(cell, global_batch=96),
        row_of(cell, precision="amp"),
    ]
    _, refused = match_cells(cell, reference_of(*differing_rows))
    assert [reason[::2] for reason in refused] == [("global batch size", ["96"])]


def test_devices_are_counted_by_node(runs: pd.DataFrame) -> None:
    cell = one_cell(runs, devices=16)
    row = row_of(cell)
    assert (row.nodes, row.devices_per_node) == (2, 8)
    assert [published for _, published in match_cells(cell, reference_of(row))[0]] == [row]


def test_unknown_devices_and_failed_runs_are_not_compared(runs: pd.DataFrame) -> None:
    cell = one_cell(runs)
    reference = reference_of(row_of(cell))
    _, ((name, _, _),) = match_cells(cell.assign(devices=None), reference)
    assert name == "device"
    with pytest.raises(InputError) as error:
        build_rows(cell.assign(status="failed"), reference, MARGIN)
    assert error.value.code == "nothing-to-compare"


def test_spread_of_one_published_run_is_none(runs: pd.DataFrame) -> None:
    cell = one_cell(runs)
    rows = [row_of(cell, runs=n, cv=cv) for n, cv in ((1, 0.02), (4, None), (4, 0.02))]
    notes = make_table(cell, "mine", reference_of(*rows), MARGIN).notes
    assert find_note(notes, "no-published-spread").facts["rows"] == 2
    assert find_note(notes, "published").facts["by_verdict"]["yes"] >= 1


def test_sequence_length_is_a_condition_if_known(runs: pd.DataFrame) -> None:
    cell = one_cell(runs)
    tokens = cell.assign(throughput_tokens_s=512 * cell["throughput_samples_s"])
    rows = [row_of(cell, sequence_length=length) for length in (512, 2048)]
    assert [row for _, row in match_cells(tokens, reference_of(*rows))[0]] == rows[:1]
    assert [row for _, row in match_cells(cell, reference_of(*rows))[0]] == rows


def test_a_single_run_has_no_verdict(runs: pd.DataFrame) -> None:
    cell = one_cell(runs).head(1)
    (row,) = build_rows(cell, reference_of(row_of(cell)), MARGIN).itertuples()
    assert row.verdict == OPEN and math.isnan(row.ratio_low)


def test_table_states_margin_source_and_refusals(runs: pd.DataFrame) -> None:
    reference = load_reference("nvidia-resnet-50")
    table = make_table(runs.assign(devices="Tesla V100-SXM2-16GB"), "mine", reference, MARGIN)
    assert len(table.data) == len(table.display) == 8, "four frameworks on 1 and on 8 devices"
    assert find_note(table.notes, "margin").facts["margin"] == MARGIN
    assert find_note(table.notes, "no-published-spread").facts["rows"] == 8
    assert find_note(table.notes, "source").facts["licence"].startswith("Apache-2.0")
    reasons = find_note(table.notes, "not-compared").facts["reasons"]
    assert {name for name, _, _ in reasons} == {"devices", "global batch size"}


def test_dlperf_agrees_with_its_own_campaign(runs: pd.DataFrame) -> None:
    data = build_rows(runs, load_reference("dlperf"), MARGIN)
    same_framework = data[data["published_framework"] == data["framework"]]
    assert len(same_framework) and same_framework["ratio"].to_numpy() == pytest.approx(1, abs=1e-4)
    assert set(same_framework["verdict"]) <= {WITHIN, OPEN}


@pytest.mark.parametrize("name", reference_names())
def test_shipped_reference_is_right(name: str) -> None:
    for cell in load_reference(name).rows:
        assert cell.batch_size is None or cell.global_batch % cell.batch_size == 0
        flops = {"resnet-50-v15": 24e9, "bert-base": 6 * 110e6 * 128, "llama2-70b-lora": 4 * 70e9 * 8192}
        by_device = cell.samples_s / cell.nodes / cell.devices_per_node * flops.get(cell.model[0], 4.7e14)
        assert 5e12 < by_device < 3e15, "operations per second and device, roughly"


@pytest.mark.parametrize(
    ("change", "code", "key"),
    [
        ({"samples_s": None}, "missing-key", "rows.0.samples_s"),
        ({"samples_s": 0}, "out-of-range", "rows.0.samples_s"),
        ({"cv": 1.0}, "out-of-range", "rows.0.cv"),
        ({"precision": "int8"}, "not-one-of", "rows.0.precision"),
        ({"model": []}, "too-few", "rows.0.model"),
        ({"model": " "}, "bad-pattern", "rows.0.model"),
        ({"devices": 8}, "unknown-key", "rows.0.devices"),
    ],
)
def test_wrong_reference_is_refused(tmp_path: Path, change: dict[str, object], code: str, key: str) -> None:
    content = yaml.safe_load((FOLDER / "nvidia-resnet-50.yaml").read_text())
    row = {name: value for name, value in (content["rows"][0] | change).items() if value is not None}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(content | {"rows": [row]}))
    with pytest.raises(InputError) as error:
        load_reference("own", tmp_path)
    assert_refusal(error.value, code, key)


def test_unknown_reference_is_refused() -> None:
    with pytest.raises(InputError) as error:
        load_reference("nvidia-resnet-5")
    assert error.value.code == "unknown-name" and error.value.suggestion == "nvidia-resnet-50"
