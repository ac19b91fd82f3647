"""Comparisons with published numbers: the same conditions only, equivalence tests, one line where none match."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy
import yaml

from analysis.measured import read_timing_runs
from common.errors import InputError
from common.notes import find_note
from comparison import published
from comparison.published import FASTER, OPEN, SLOWER, WITHIN, build_rows, cell_facts, make_table, match_cells
from declared.references import FOLDER, PublishedCell, Reference, load_reference, reference_names
from support.measured_elsewhere import DLPERF, MLPERF
from support.refusals import assert_refusal

MARGIN = 0.05
MODEL, FRAMEWORK = "resnet-50", "mindspore"


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    """Runs of four frameworks on 1 to 32 V100."""
    return read_timing_runs(DLPERF / "runs.csv")


def one_cell(runs: pd.DataFrame, devices: int = 8) -> pd.DataFrame:
    return runs[(runs["framework"] == FRAMEWORK) & (runs["replicas"] == devices)]


def row_of(cell: pd.DataFrame, share: float = 1.0, **changes: object) -> PublishedCell:
    """Return the published row of a cell whose throughput is `share` times the cell's own."""
    ((_, facts),) = cell_facts(cell).items()
    conditions = {name: value for name, value in vars(facts).items() if value is not None}
    mean = float(scipy.stats.hmean(cell["throughput_samples_s"]))
    return PublishedCell(**{**conditions, "samples_s": share * mean, **changes})


def reference_of(*rows: PublishedCell) -> Reference:
    keys = load_reference("dlperf").keys
    return Reference("test", keys, rows)


@pytest.mark.parametrize(
    ("share", "verdict"), [(1.0, WITHIN), (1.02, WITHIN), (1.1, SLOWER), (0.9, FASTER), (1.05, OPEN)]
)
def test_verdict_follows_the_ratio(runs: pd.DataFrame, share: float, verdict: str) -> None:
    cell = one_cell(runs)
    (row,) = build_rows(cell, reference_of(row_of(cell, share)), MARGIN).itertuples()
    assert row.verdict == verdict
    assert row.ratio == pytest.approx(1 / share) and row.ratio_low < row.ratio < row.ratio_high


def test_interval_covers_the_spread_of_both(runs: pd.DataFrame) -> None:
    """It is Welch's interval of the difference of mean logarithms, if the published runs are those of a cell."""
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
    edge = row.throughput / (1 + MARGIN) * rng.lognormal(0, 0.01, len(copies))
    drawn = copies.assign(cell=names, run_id=range(len(copies)), throughput_samples_s=edge)
    data = build_rows(drawn, reference_of(row), MARGIN)
    for name in ("p_within", "p_beyond"):
        assert 0.02 < (data[name] < 0.05).mean() < 0.08  # 5 %; standard error 1 %
    assert set(data["verdict"]) == {OPEN}, "after Holm's correction"


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"model": "bert-base"}, "model"),
        ({"device": "A100"}, "device"),
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
    ((_, reason),) = refused.items()
    assert not pairs and reason.facts["differs"] == differs
    with pytest.raises(InputError) as error:
        build_rows(cell, reference, MARGIN)
    assert error.value.code == "nothing-to-compare" and differs in str(error.value)


def test_refusal_names_the_most_similar_row(runs: pd.DataFrame) -> None:
    cell = one_cell(runs)
    differing_rows = [
        row_of(cell, model="other"),
        row_of(cell, global_batch=96),
        row_of(cell, precision="amp"),
    ]
    _, refused = match_cells(cell, reference_of(*differing_rows))
    (reason,) = refused.values()
    assert reason.facts["published"] == ["96"]


def test_sequence_length_is_a_condition() -> None:
    tokens = read_timing_runs(MLPERF / "runs.csv")
    facts = next(iter(cell_facts(tokens).values()))
    long = replace(facts, sequence_length=8192)
    row = PublishedCell(**vars(replace(facts, sequence_length=2048)) | {"samples_s": 1.0})
    assert [name for name, _, _ in published.differences(long, row)] == ["sequence length"]
    assert not list(published.differences(replace(long, sequence_length=None), row))


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
    differing = {
        note.facts["differs"] for note in find_note(table.notes, "not-compared").facts["cells"].values()
    }
    assert differing == {"devices", "global batch size"}


def test_dlperf_agrees_with_its_own_campaign(runs: pd.DataFrame) -> None:
    data = build_rows(runs, load_reference("dlperf"), MARGIN)
    own = data[data["published_framework"] == data["framework"]]
    assert len(own) and own["ratio"].to_numpy() == pytest.approx(1, abs=1e-4)
    assert set(own["verdict"]) <= {WITHIN, OPEN}


@pytest.mark.parametrize("name", reference_names())
def test_shipped_reference_is_right(name: str) -> None:
    reference = load_reference(name)
    assert reference.cells and all(cell.throughput > 0 for cell in reference.cells)
    for cell in reference.cells:
        devices = cell.nodes * cell.devices_per_node
        assert cell.batch_size is None or cell.global_batch % cell.batch_size == 0
        assert cell.samples_s is None or 10 < cell.throughput / devices < 5000


@pytest.mark.parametrize(
    ("change", "code", "key"),
    [
        ({"samples_s": None}, "wrong-count", "rows.0"),
        ({"step_time_s": 1.0}, "wrong-count", "rows.0"),
        ({"precision": "int8"}, "not-one-of", "rows.0.precision"),
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
