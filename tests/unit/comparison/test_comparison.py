"""Two made-up campaigns compared: what changed is found, what cannot be compared is refused, with the reason."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from common.errors import InputError
from common.notes import find_note
from common.tables import read_table
from comparison import matched
from comparison.changes import changes, summary, table
from comparison.compare import main
from comparison.draw import draw
from comparison.matched import Compared
from declared import frameworks
from support.published import SLEEP
from support.synthetic import campaign, write_frames

NAMES = ("before", "after")
SLOWER = 1.2
DATA = "0" * 64


@pytest.fixture(scope="module")
def base() -> pd.DataFrame:
    """Five replicates, all successful."""
    return campaign(replicates=5, failures={})[0].assign(started_at="2026-11-20T12:00:00.000Z", data_digest=DATA)


@pytest.fixture
def other() -> pd.DataFrame:
    """The same campaign on another day."""
    runs = campaign(replicates=5, failures={}, seed=2)[0]
    return runs.assign(started_at="2026-12-01T12:00:00.000Z", session="2026-12-01T12:00:00Z", data_digest=DATA)


@pytest.fixture
def compare(tmp_path):
    """Compare tables as the program does: written and read again."""

    def of(base: pd.DataFrame, other: pd.DataFrame) -> Compared:
        return Compared(NAMES, *(read(frame, name) for frame, name in zip((base, other), NAMES, strict=True)))

    def read(frame: pd.DataFrame, name: str) -> pd.DataFrame:
        return read_table(write_frames(tmp_path / name, frame, campaign(1)[1])[0], "runs")

    for name in NAMES:
        (tmp_path / name).mkdir()
    return of


def test_a_change_of_one_framework_is_found_in_its_cells_alone(compare, base, other) -> None:
    hit = other["framework"] == "horovod-pytorch"
    other.loc[hit, "epoch_time_s"] *= SLOWER
    data = changes(compare(base, other)).set_index("cell")
    slow = data.index.str.startswith("horovod-pytorch")
    assert set(data.loc[slow, "change"]) == {"slower"}
    assert set(data.loc[~slow, "change"]) == {"no change shown"}
    assert np.log(data.loc[slow, "ratio"]).mean() == pytest.approx(np.log(SLOWER), abs=0.015)
    assert ((data["ratio_low"] < data["ratio"]) & (data["ratio"] < data["ratio_high"])).all()


@pytest.mark.simulation
def test_intervals_hold_the_truth_and_nothing_is_found_where_nothing_changed(compare, base, other) -> None:
    one, two = compare(base, other).base, compare(base, other).other
    rng, inside, found, studies = np.random.default_rng(1), [], 0, 40
    for _ in range(studies):
        drawn = [runs.assign(epoch_time_s=rng.lognormal(0, 0.03, len(runs))) for runs in (one, two)]
        data = changes(Compared(NAMES, *drawn))
        inside += ((data["ratio_low"] < 1) & (data["ratio_high"] > 1)).tolist()
        found += bool((data["p_holm"] < 0.05).any())
    assert 0.93 < np.mean(inside) < 0.97  # 95 %; binomial standard error 0.6 %
    assert found / studies < 0.16  # 5 %; standard error 3 %


def test_errors_and_freedom_are_those_of_welch_as_r_prints_them(compare, base, other) -> None:
    """R: t.test(extra ~ group, data = sleep): t = -1.8608, df = 17.776, p-value = 0.07939; here sleep is of logarithms, so
    that the ratio of arithmetic means, which is compared, is moved to that of geometric ones."""
    frames = []
    for times, runs in zip(SLEEP, (base, other), strict=True):
        one = runs[runs["cell"] == runs["cell"].iloc[0]].head(1)
        frame = pd.concat([one] * len(times), ignore_index=True)
        frame["run_id"] = [f"{run}{number}" for number, run in enumerate(frame["run_id"])]
        frame["replicate"] = frame["block"] = range(1, len(times) + 1)
        made = {"epoch_time_s": np.exp(times / 100), "key": f"{len(frames)}" * 12}  # so small that both means agree
        frames.append(frame.assign(**made))
    data = changes(compare(*frames)).iloc[0]
    assert data["p"] == pytest.approx(0.07939, rel=0.02)
    bounds = 100 * np.log([data["ratio_low"], data["ratio_high"]])
    assert bounds == pytest.approx([-0.2054832, 3.3654832], abs=0.01)


@pytest.mark.parametrize(
    ("column", "value"),
    [("data_digest", "f" * 64), ("samples_per_epoch", 100), ("timing_scope", "master"), ("effective_batch", 7)],
)
def test_what_trained_something_else_is_refused_by_cell(compare, base, other, column, value) -> None:
    cell = other["cell"].iloc[0]
    other.loc[other["cell"] == cell, column] = value
    compared = compare(base, other)
    assert list(compared.refused) == [cell]
    why = compared.refused[cell]
    assert (why.code, why.facts["column"]) == ("measured-differently", column) and matched.SAME[column] in why
    assert cell not in set(changes(compared)["cell"])
    said = find_note(table(compared).notes, "not-compared")
    assert said.facts["cells"] == {why: [cell]} and cell in said


def changed(compared: Compared, column: str) -> tuple[str, str]:
    """What a column was and is, as the differences say it."""
    (note,) = (note for note in compared.differences if note.facts.get("column") == column)
    return note.facts["before"], note.facts["after"]


def test_emulated_nodes_are_not_compared_with_real_ones(compare, base, other) -> None:
    compared = compare(base, other.assign(placement="distinct-nodes"))
    refused = compared.cells.set_index("cell").loc[list(compared.refused), "nodes"]
    assert set(refused) == {2}
    assert set(compared.cells.set_index("cell").loc[compared.common, "nodes"]) == {1}
    assert set(compared.refused.values()) == {matched.EMULATED_IN_ONE}
    assert changed(compared, "placement") == ("emulated", "distinct-nodes")


def test_what_is_known_of_one_only_is_no_difference_but_is_told(compare, base, other) -> None:
    compared = compare(base, other.assign(data_digest=None))
    assert not compared.refused
    assert find_note(compared.differences, "recorded-in-one").facts["columns"] == ["data_digest"]


def test_large_changes_are_told_in_plain_numbers(compare, base, other) -> None:
    other["epoch_time_s"] *= 3
    said = find_note(table(compare(base, other)).notes, "changes")
    assert said.facts["by_change"] == {"slower": 38} and said.facts["mean_ratio"] == pytest.approx(3, rel=0.05)
    assert "e+" not in said


def test_cells_that_one_lacks_are_named(compare, base, other) -> None:
    gone, failed = other["cell"].unique()[:2]
    other = other[other["cell"] != gone]
    other.loc[other["cell"] == failed, ["status", "reason", "epoch_time_s"]] = ["failed", "lost", None]
    compared = compare(base, other)
    assert {cell: (why.code, why.facts["campaign"]) for cell, why in compared.refused.items()} == {
        gone: ("no-such-cell", "after"),
        failed: ("no-successful-run", "after"),
    }


def test_what_differs_is_told_by_framework(compare, base, other) -> None:
    assert compare(base, other).differences == ["dates: 2026-11-20 → 2026-12-01"], "the wording, once"
    other.loc[other["framework"].str.contains("tensorflow"), "library_version"] = "tensorflow 3.0"
    loaded = find_note(compare(base, other.assign(foreign_cpu_share=0.8)).differences, "foreign-cpu-time")
    assert loaded.facts["shares"] == pytest.approx([0.004, 0.8], abs=5e-4)
    kernel = base["systems"].iloc[0].replace("6.1.0", "6.12.3")
    compared = compare(base, other.assign(site="elsewhere", systems=kernel))
    assert changed(compared, "dates") == ("2026-11-20", "2026-12-01")
    assert changed(compared, "site") == ("local", "elsewhere")
    assert changed(compared, "systems") == (base["systems"].iloc[0], kernel)
    libraries = [note.facts for note in compared.differences if note.facts.get("column") == "library_version"]
    assert {facts["after"] for facts in libraries} == {"tensorflow 3.0"}
    hit = {name for facts in libraries for name in facts["frameworks"]}
    assert hit == {name for name in base["framework"].unique() if "tensorflow" in name}


def test_an_own_algorithm_is_told_with_both_accuracies(compare, base, other, monkeypatch) -> None:
    base, other = (runs.assign(validation_accuracy=share) for runs, share in ((base, 0.9), (other, 0.8)))
    assert compare(base, other).algorithms == ""
    own = replace(frameworks.load_framework("pytorch-ddp"), algorithm=frameworks.OWN)
    load = frameworks.load_framework
    monkeypatch.setattr(frameworks, "load_framework", lambda name: own if name == own.name else load(name))
    compared = compare(base, other)
    said = compared.algorithms.facts["by_campaign"]
    assert {name: one.facts["frameworks"] for name, one in said.items()} == {name: ["pytorch-ddp"] for name in NAMES}
    assert [said[name].facts["accuracy"] for name in NAMES] == [pytest.approx([0.9] * 2), pytest.approx([0.8] * 2)]
    made = table(compared)
    assert compared.algorithms in made.notes and compared.algorithms in draw(compared, made.data)[1]


def folders(tmp_path, *frames: pd.DataFrame) -> list[str]:
    found = []
    for name, frame in zip(NAMES, frames, strict=True):
        (tmp_path / name).mkdir()
        write_frames(tmp_path / name, frame, campaign(1)[1])
        found.append(str(tmp_path / name))
    return found


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
    one, two = folders(tmp_path, base, change(base))
    with pytest.raises(InputError) as refused:
        matched.read(one, two)
    why = refused.value.got
    assert (refused.value.code, why.code, why.facts) == ("nothing-to-compare", code, facts)
    assert one in refused.value.file and two in refused.value.file and why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_campaign_without_a_successful_run_is_refused(tmp_path, base) -> None:
    failed = base.assign(status="failed", reason="lost", epoch_time_s=None)
    one, two = folders(tmp_path, base, failed)
    with pytest.raises(InputError) as refused:
        matched.read(one, two)
    assert (refused.value.code, refused.value.file) == ("no-successful-run", f"{two}/runs.csv")


def test_one_run_a_cell_has_ratios_without_intervals(compare, base, other) -> None:
    first = [runs[runs["replicate"] == 1] for runs in (base, other)]
    data = changes(compare(*first))
    assert set(data["change"]) == {"no interval"}
    assert data["ratio"].notna().all() and data[["ratio_low", "p", "p_holm"]].isna().all(axis=None)


def test_the_program_writes_a_table_and_a_figure(tmp_path, base, other, capsys) -> None:
    other["epoch_time_s"] /= SLOWER
    one, two = folders(tmp_path, base, other)
    main(base=one, other=two, out=tmp_path / "made" / "comparison")
    made = sorted(path.name for path in (tmp_path / "made").iterdir())
    assert made == [f"comparison.{end}" for end in ("caption.md", "csv", "md", "pdf", "png", "svg", "tex")]
    said = capsys.readouterr().out
    compared = matched.read(one, two)
    said_of = summary(compared, changes(compared))
    assert said.splitlines()[0] == said_of and said_of.facts["by_change"]["faster"] >= 1
    assert (said_of.facts["cells"], said_of.facts["base"]) == (base["cell"].nunique(), "before")
    caption = (tmp_path / "made" / "comparison.caption.md").read_text()
    assert all(line in caption for line in (said_of, *compared.differences))


@pytest.mark.parametrize("factor", [1.0, 1.2, 2.0, 4.5, 8.0, 40.0])
def test_the_axis_of_ratios_has_five_to_nine_numbers(compare, base, other, factor: float) -> None:
    other.loc[other["framework"] == "horovod-pytorch", "epoch_time_s"] *= factor
    compared = compare(base, other)
    drawn, _ = draw(compared, changes(compared))
    drawn.draw_without_rendering()
    (axis,) = drawn.axes
    low, high = axis.get_xlim()
    shown = [tick for tick in axis.get_xticks() if low <= tick <= high]
    assert 5 <= len(shown) <= 9 and any(np.isclose(shown, 1)), shown


@pytest.mark.parametrize(
    ("config", "code", "key", "got"),
    [
        ({"base": "one"}, "missing-key", "", None),
        ({"base": "one", "other": "nowhere"}, "missing-file", "base", "one"),
    ],
)
def test_two_folders_with_runs_have_to_be_named(config, code, key, got) -> None:
    with pytest.raises(InputError) as refused:
        matched.asked(config)
    assert (refused.value.code, refused.value.key, refused.value.got) == (code, key, got)
    assert matched.asked({}) is None
