"""Two made-up campaigns compared: what changed is found, what cannot be compared is refused, with the reason."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from common.errors import InputError
from common.tables import read_table
from comparison import matched
from comparison.changes import changes, table
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
    ("column", "value", "said"),
    [
        ("data_digest", "f" * 64, "the training data differ"),
        ("samples_per_epoch", 100, "the number of samples in an epoch differs"),
        ("timing_scope", "master", "timed by different clocks"),
        ("effective_batch", 7, "effective batch"),
    ],
)
def test_what_trained_something_else_is_refused_by_cell(compare, base, other, column, value, said) -> None:
    cell = other["cell"].iloc[0]
    other.loc[other["cell"] == cell, column] = value
    compared = compare(base, other)
    assert list(compared.refused) == [cell]
    assert said in compared.refused[cell]
    assert cell not in set(changes(compared)["cell"])
    assert any(said in note and cell in note for note in table(compared).notes)


def test_emulated_nodes_are_not_compared_with_real_ones_but_one_node_is(compare, base, other) -> None:
    compared = compare(base, other.assign(placement="distinct-nodes"))
    refused = compared.cells.set_index("cell").loc[list(compared.refused), "nodes"]
    assert set(refused) == {2}
    assert set(compared.cells.set_index("cell").loc[compared.common, "nodes"]) == {1}
    assert "placement: emulated → distinct-nodes" in compared.differences


def test_what_is_known_of_one_only_is_no_difference_but_is_told(compare, base, other) -> None:
    compared = compare(base, other.assign(data_digest=None))
    assert not compared.refused
    assert "recorded in only one of them: data_digest" in compared.differences


def test_large_changes_are_told_in_plain_numbers(compare, base, other) -> None:
    other["epoch_time_s"] *= 3
    said = table(compare(base, other)).notes[0]
    assert "38 slower by 1" in said and " to 2" in said and "e+" not in said


def test_cells_that_one_lacks_are_named(compare, base, other) -> None:
    gone, failed = other["cell"].unique()[:2]
    other = other[other["cell"] != gone]
    other.loc[other["cell"] == failed, ["status", "reason", "epoch_time_s"]] = ["failed", "lost", None]
    compared = compare(base, other)
    assert compared.refused == {gone: "after has no such cell", failed: "after has no successful run of it"}


def test_what_differs_is_told_by_framework(compare, base, other) -> None:
    assert compare(base, other).differences == ["dates: 2026-11-20 → 2026-12-01"]
    other.loc[other["framework"].str.contains("tensorflow"), "library_version"] = "tensorflow 3.0"
    loaded = compare(base, other.assign(foreign_cpu_share=0.8)).differences
    assert loaded[1] == "other programs beside runs: up to 0.4 % → up to 80 %"
    kernel = base["systems"].iloc[0].replace("6.1.0", "6.12.3")
    said = compare(base, other.assign(site="elsewhere", systems=kernel)).differences
    assert said[1:3] == ["site: local → elsewhere", f"operating system: {base['systems'].iloc[0]} → {kernel}"]
    assert said[3].endswith("→ tensorflow 3.0")
    assert "tensorflow-single" in said[3] and "pytorch-ddp" not in said[3]


def test_an_algorithm_of_its_own_is_told_with_the_accuracies_of_both(compare, base, other, monkeypatch) -> None:
    base, other = (runs.assign(validation_accuracy=share) for runs, share in ((base, 0.9), (other, 0.8)))
    assert compare(base, other).algorithms == ""
    own = replace(frameworks.load_framework("pytorch-ddp"), algorithm=frameworks.OWN)
    load = frameworks.load_framework
    monkeypatch.setattr(frameworks, "load_framework", lambda name: own if name == own.name else load(name))
    compared = compare(base, other)
    said = [
        f"In {name}: Own algorithm: pytorch-ddp; validation accuracy {share} %"
        for name, share in zip(NAMES, (90, 80), strict=True)
    ]
    assert all(one in compared.algorithms for one in said)
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
    ("change", "said"),
    [
        (lambda runs: runs, "it was not measured again (38 of 38 cells)"),
        (lambda runs: runs.assign(status="failed", reason="lost", epoch_time_s=None), "has no successful run"),
        (
            lambda runs: runs.assign(cell=runs["cell"] + ".x", model="lenet-5"),
            "no cell in common (model: small-cnn and lenet-5)",
        ),
    ],
)
def test_campaigns_without_anything_to_compare_are_refused_in_one_line(tmp_path, base, change, said) -> None:
    with pytest.raises(InputError) as error:
        matched.read(*folders(tmp_path, base, change(base)))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_one_run_a_cell_has_ratios_without_intervals(compare, base, other) -> None:
    first = [runs[runs["replicate"] == 1] for runs in (base, other)]
    data = changes(compare(*first))
    assert set(data["change"]) == {"no interval"}
    assert data["ratio"].notna().all() and data[["ratio_low", "p", "p_holm"]].isna().all(axis=None)


def test_the_program_writes_table_and_figure_and_says_what_changed(tmp_path, base, other, capsys) -> None:
    other["epoch_time_s"] /= SLOWER
    one, two = folders(tmp_path, base, other)
    main(["--base", one, "--other", two, "--out", str(tmp_path / "made" / "comparison")])
    made = sorted(path.name for path in (tmp_path / "made").iterdir())
    assert made == [f"comparison.{end}" for end in ("caption.md", "csv", "md", "pdf", "png", "svg", "tex")]
    said = capsys.readouterr().out
    assert said.startswith(f"From before to after, of {base['cell'].nunique()} compared cells:") and "faster by" in said
    caption = (tmp_path / "made" / "comparison.caption.md").read_text()
    assert "Holm" in caption and "dates: 2026-11-20 → 2026-12-01" in caption


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
