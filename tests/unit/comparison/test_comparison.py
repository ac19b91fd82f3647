"""Comparisons of two synthetic campaigns: changes are detected, other cells are refused with a reason."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.records import read_runs
from common.errors import InputError
from common.notes import find_note
from common.tables import write_table
from comparison import matched
from comparison.changes import changes, summary, table
from comparison.compare import compare_campaigns
from comparison.draw import draw
from comparison.matched import Compared
from declared import frameworks
from support.measured_elsewhere import DLPERF
from support.published import SLEEP
from support.synthetic import campaign, write_frames

NAMES = ("before", "after")
SLOWER = 1.2
DATA = "0" * 64


@pytest.fixture(scope="module")
def base() -> pd.DataFrame:
    """Return five replicates, all successful."""
    return campaign(replicates=5, failures={})[0].assign(
        started_at="2026-11-20T12:00:00.000Z", data_digest=DATA
    )


@pytest.fixture
def later() -> pd.DataFrame:
    """Return the same campaign on another day."""
    runs = campaign(replicates=5, failures={}, seed=2)[0]
    return runs.assign(
        started_at="2026-12-01T12:00:00.000Z", session="2026-12-01T12:00:00Z", data_digest=DATA
    )


@pytest.fixture
def compare(tmp_path):
    """Compare tables as the program does: written and read again."""

    def read_both(base: pd.DataFrame, later: pd.DataFrame) -> Compared:
        return Compared(NAMES, *(read(frame, name) for frame, name in zip((base, later), NAMES, strict=True)))

    def read(frame: pd.DataFrame, name: str) -> pd.DataFrame:
        return read_runs(write_frames(tmp_path / name, frame, campaign(1)[1])[0])

    for name in NAMES:
        (tmp_path / name).mkdir()
    return read_both


def test_change_of_a_framework_is_found_in_its_cells_only(compare, base, later) -> None:
    hit = later["framework"] == "horovod-pytorch"
    later.loc[hit, "epoch_time_s"] *= SLOWER
    data = changes(compare(base, later)).set_index("cell")
    slow = data.index.str.startswith("horovod-pytorch")
    assert set(data.loc[slow, "verdict"]) == {"slower"}
    assert set(data.loc[~slow, "verdict"]) == {"no change shown"}
    assert np.log(data.loc[slow, "ratio"]).mean() == pytest.approx(np.log(SLOWER), abs=0.015)
    assert ((data["ratio_low"] < data["ratio"]) & (data["ratio"] < data["ratio_high"])).all()


@pytest.mark.simulation
def test_intervals_cover_the_true_value_without_false_findings(compare, base, later) -> None:
    first, second = compare(base, later).base_runs, compare(base, later).other_runs
    rng, inside, n_studies_with_findings, studies = np.random.default_rng(1), [], 0, 40
    for _ in range(studies):
        drawn = [runs.assign(epoch_time_s=rng.lognormal(0, 0.03, len(runs))) for runs in (first, second)]
        data = changes(Compared(NAMES, *drawn))
        inside += ((data["ratio_low"] < 1) & (data["ratio_high"] > 1)).tolist()
        n_studies_with_findings += bool((data["p_holm"] < 0.05).any())
    assert 0.93 < np.mean(inside) < 0.97  # 95 %; binomial standard error 0.6 %
    assert n_studies_with_findings / studies < 0.16  # 5 %; standard error 3 %


def test_p_values_and_intervals_agree_with_r(compare, base, later) -> None:
    """R: t.test(extra ~ group, data = sleep): t = -1.8608, df = 17.776, p-value = 0.07939.

    The values of sleep are used as logarithms.
    """
    frames = []
    for times, runs in zip(SLEEP, (base, later), strict=True):
        row = runs[runs["cell"] == runs["cell"].iloc[0]].head(1)
        frame = pd.concat([row] * len(times), ignore_index=True)
        frame["run_id"] = [f"{run}{number}" for number, run in enumerate(frame["run_id"])]
        frame["replicate"] = frame["block"] = range(1, len(times) + 1)
        columns = {
            "epoch_time_s": np.exp(times / 100),
            "key": f"{len(frames)}" * 12,
        }  # small enough that arithmetic and geometric means agree
        frames.append(frame.assign(**columns))
    data = changes(compare(*frames)).iloc[0]
    assert data["p"] == pytest.approx(0.07939, rel=0.02)
    bounds = 100 * np.log([data["ratio_low"], data["ratio_high"]])
    assert bounds == pytest.approx([-0.2054832, 3.3654832], abs=0.01)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("data_digest", "f" * 64),
        ("samples_per_epoch", 100),
        ("timing_scope", "master"),
        ("effective_batch", 7),
    ],
)
def test_cells_that_trained_something_else_are_refused(compare, base, later, column, value) -> None:
    cell = later["cell"].iloc[0]
    later.loc[later["cell"] == cell, column] = value
    compared = compare(base, later)
    assert list(compared.refused) == [cell]
    reason = compared.refused[cell]
    assert (reason.code, reason.facts["column"]) == ("measured-differently", column)
    assert matched.MUST_MATCH[column] in reason
    assert cell not in set(changes(compared)["cell"])
    note = find_note(table(compared).notes, "not-compared")
    assert note.facts["cells"] == {reason: [cell]} and cell in note


def changed(compared: Compared, column: str) -> tuple[str, str]:
    """Return the levels of a column in both campaigns, according to the differences."""
    (note,) = (note for note in compared.differences if note.facts.get("column") == column)
    return note.facts["before"], note.facts["after"]


def test_emulated_nodes_are_not_compared_with_real_ones(compare, base, later) -> None:
    compared = compare(base, later.assign(placement="distinct-nodes"))
    refused = compared.cells.set_index("cell").loc[list(compared.refused), "nodes"]
    assert set(refused) == {2}
    assert set(compared.cells.set_index("cell").loc[compared.common, "nodes"]) == {1}
    assert set(compared.refused.values()) == {matched.EMULATED_IN_ONE}
    assert changed(compared, "placement") == ("emulated", "distinct-nodes")


def test_column_recorded_in_one_campaign_is_reported(compare, base, later) -> None:
    compared = compare(base, later.assign(data_digest=None))
    assert not compared.refused
    assert find_note(compared.differences, "recorded-in-one").facts["columns"] == ["data_digest"]


def test_cells_of_one_campaign_only_are_refused(compare, base, later) -> None:
    missing, failed = later["cell"].unique()[:2]
    later = later[later["cell"] != missing]
    later.loc[later["cell"] == failed, ["status", "reason", "epoch_time_s"]] = ["failed", "lost", None]
    compared = compare(base, later)
    assert {cell: (reason.code, reason.facts["campaign"]) for cell, reason in compared.refused.items()} == {
        missing: ("no-such-cell", "after"),
        failed: ("no-successful-run", "after"),
    }


def test_differences_are_reported_by_framework(compare, base, later) -> None:
    assert compare(base, later).differences == ["dates: 2026-11-20 → 2026-12-01"], "the wording, once"
    later.loc[later["framework"].str.contains("tensorflow"), "library_version"] = "tensorflow 3.0"
    loaded = find_note(compare(base, later.assign(other_cpu_share=0.8)).differences, "other-cpu-time")
    assert loaded.facts["shares"] == pytest.approx([0.004, 0.8], abs=5e-4)
    kernel = base["systems"].iloc[0].replace("6.1.0", "6.12.3")
    compared = compare(base, later.assign(site="elsewhere", systems=kernel))
    assert changed(compared, "dates") == ("2026-11-20", "2026-12-01")
    assert changed(compared, "site") == ("local", "elsewhere")
    assert changed(compared, "systems") == (base["systems"].iloc[0], kernel)
    libraries = [note.facts for note in compared.differences if note.facts.get("column") == "library_version"]
    assert {facts["after"] for facts in libraries} == {"tensorflow 3.0"}
    hit = {name for facts in libraries for name in facts["frameworks"]}
    assert hit == {name for name in base["framework"].unique() if "tensorflow" in name}


def test_own_algorithms_are_reported_with_accuracies(compare, base, later, monkeypatch) -> None:
    base, later = (runs.assign(validation_accuracy=share) for runs, share in ((base, 0.9), (later, 0.8)))
    assert compare(base, later).algorithms == ""
    altered = replace(frameworks.load_framework("pytorch-ddp"), algorithm=frameworks.OWN_ALGORITHM)
    load = frameworks.load_framework
    monkeypatch.setattr(
        frameworks, "load_framework", lambda name: altered if name == altered.name else load(name)
    )
    compared = compare(base, later)
    by_campaign = compared.algorithms.facts["by_campaign"]
    assert {name: note.facts["frameworks"] for name, note in by_campaign.items()} == {
        name: ["pytorch-ddp"] for name in NAMES
    }
    assert [by_campaign[name].facts["accuracy"] for name in NAMES] == [
        pytest.approx([0.9] * 2),
        pytest.approx([0.8] * 2),
    ]
    result = table(compared)
    assert compared.algorithms in result.notes and compared.algorithms in draw(compared, result.data)[1]


def folders(tmp_path, *frames: pd.DataFrame) -> list[str]:
    paths = []
    for name, frame in zip(NAMES, frames, strict=True):
        (tmp_path / name).mkdir()
        write_frames(tmp_path / name, frame, campaign(1)[1])
        paths.append(str(tmp_path / name))
    return paths


@pytest.mark.parametrize(
    ("change", "code", "facts"),
    [
        (lambda runs: runs, "all-cells-refused", {"reasons": {"same-runs": 38}, "of": 38}),
        (
            lambda runs: runs.assign(cell=runs["cell"] + ".x", model="lenet-5"),
            "no-common-cell",
            {"levels": {"model": ("small-cnn", "lenet-5")}},
        ),
    ],
)
def test_campaigns_with_nothing_to_compare_are_refused(tmp_path, base, change, code, facts) -> None:
    first, second = folders(tmp_path, base, change(base))
    with pytest.raises(InputError) as refused:
        matched.read(first, second)
    reason = refused.value.got
    assert (refused.value.code, reason.code, reason.facts) == ("nothing-to-compare", code, facts)
    assert first in refused.value.file and second in refused.value.file and reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_campaign_without_a_successful_run_is_refused(tmp_path, base) -> None:
    failed = base.assign(status="failed", reason="lost", epoch_time_s=None)
    first, second = folders(tmp_path, base, failed)
    with pytest.raises(InputError) as refused:
        matched.read(first, second)
    assert (refused.value.code, refused.value.file) == ("no-successful-run", f"{second}/runs.csv")


def test_one_run_a_cell_has_ratios_without_intervals(compare, base, later) -> None:
    single_runs = [runs[runs["replicate"] == 1] for runs in (base, later)]
    data = changes(compare(*single_runs))
    assert set(data["verdict"]) == {"no interval"}
    assert data["ratio"].notna().all() and data[["ratio_low", "p", "p_holm"]].isna().all(axis=None)


def test_the_program_writes_a_table_and_a_figure(tmp_path, monkeypatch, base, later, capsys) -> None:
    later["epoch_time_s"] /= SLOWER
    first, second = folders(tmp_path, base, later)
    monkeypatch.chdir(tmp_path)
    written = compare_campaigns(first, second)
    assert written == Path("results/comparison/before--after/comparison")
    files = sorted(path.name for path in written.parent.iterdir())
    assert files == [f"comparison.{end}" for end in ("caption.md", "csv", "md", "pdf", "png", "svg", "tex")]
    printed = capsys.readouterr().out
    compared = matched.read(first, second)
    note = summary(compared, changes(compared))
    assert printed.splitlines()[0] == note and note.facts["by_change"]["faster"] >= 1
    assert (note.facts["cells"], note.facts["base"]) == (base["cell"].nunique(), "before")
    caption = written.with_name("comparison.caption.md").read_text()
    assert all(line in caption for line in (note, *compared.differences))


def test_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        matched.read(str(tmp_path), "nowhere")
    assert (refused.value.code, refused.value.key) == ("missing-file", "BASE")


def test_imported_campaigns_are_compared_by_their_cells(tmp_path: Path) -> None:
    runs = read_runs(DLPERF / "runs.csv")
    slower = runs.assign(epoch_time_s=1.1 * runs["epoch_time_s"]).dropna(axis="columns", how="all")
    write_table(slower.drop(columns="n_devices").assign(reason=None), "runs", tmp_path / "runs.csv")
    compared = matched.read(str(DLPERF), str(tmp_path))
    result = changes(compared)
    assert result["ratio"].tolist() == pytest.approx([1.1] * 23) and set(result["verdict"]) == {"slower"}
    assert [note.code for note in compared.differences] == ["both-elsewhere"]
    with pytest.raises(InputError) as refused:
        matched.read(str(DLPERF), str(DLPERF))
    assert "same runs" in str(refused.value)


def test_imported_campaigns_are_named_by_their_study() -> None:
    base, later = "results/may/imported", "results/june/imported"
    assert matched.names(base, later) == ("may", "june")
