"""A made-up run adds up to what is known: phases, communication, exposed, moving, waiting, and the path
through its steps.
"""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InputError
from support.traces_made import COLUMNS, attempt
from traces.steps import SHOWN_STEPS, WAIT, Traced
from traces.timeline import read_intervals

STEPS = 4


def rows_of(late_ms, **options) -> pd.Series:
    """ms in a step, by scope, rank (-1: none) and phase."""
    rows = Traced(attempt(late_ms, **options), 1, STEPS).rows()
    rank = rows["rank"].fillna(-1).astype(int)
    index = pd.MultiIndex.from_arrays([rows["scope"], rank, rows["phase"]])
    return (1e3 * rows["step_s"]).set_axis(index).dropna().sort_index()


def test_phases_of_a_step_are_what_they_were_made_of():
    result = rows_of([0.0, 3.0])
    assert result["step", 0].to_dict() == pytest.approx(
        {"data": 1, "forward": 5, "backward": 6, "wait": 6, "metrics": 0.5, "optimizer": 1.5}
    )
    assert result["step", 1]["backward"] == pytest.approx(9)
    assert result["step", 1]["wait"] == pytest.approx(3)


def test_allreduce_of_the_quick_rank_and_of_the_late_one():
    """Rank 0 sends at ms 10 and 12 until 14 and 18, rank 1 at 13 and 15: bytes move from 13 to 14 and from 15
    on.
    """
    result = rows_of([0.0, 3.0])["communication"]
    expected = {
        "communication": 8,
        "moving": 4,
        "waiting": 4,
        "exposed": 6,
        "exposed_moving": 4,
        "exposed_waiting": 2,
    }
    assert result[0].to_dict() == pytest.approx({**expected, "until_first": 10})
    expected = {
        "communication": 4,
        "moving": 4,
        "waiting": 0,
        "exposed": 3,
        "exposed_moving": 3,
        "exposed_waiting": 0,
    }
    assert result[1].to_dict() == pytest.approx({**expected, "until_first": 13})


def test_a_rank_without_part_in_an_allreduce_has_no_times():
    """By a strategy of layers two ranks may share weights that the third one does not have."""
    full = attempt([0.0, 3.0, 0.0])
    result = Traced(full[(full["rank"] != 2) | (full["phase"] != "communication")], 1, STEPS).rows()
    assert result["seconds"].notna().all()
    assert sorted(result.loc[result["phase"] == "until_first", "rank"]) == [0, 1]
    alone = result[(result["scope"] == "communication") & (result["rank"] == 2)]
    assert len(alone) and (alone["seconds"] == 0).all() and (alone["count"] == 0).all()


def test_the_path_goes_over_the_late_rank():
    result = rows_of([0.0, 3.0])["path", -1]
    assert result.to_dict() == pytest.approx(
        {"data": 1, "forward": 5, "backward": 9, "communication": 3, "metrics": 0.5, "optimizer": 1.5}
    )
    assert result.sum() == pytest.approx(20)


def test_a_path_follows_computing_beside_an_allreduce():
    """Both ranks start the one all-reduce at once.

    Rank 1 computes until ms 8 beside it, rank 0 until 4; bytes are there at 10.
    """
    rows = [(rank, 2, 1, "communication", 0.002, 0.010) for rank in (0, 1)]
    for rank, ready in ((0, 0.004), (1, 0.008)):
        rows += [
            (rank, 2, 1, "backward", 0.0, ready),
            (rank, 2, 1, "wait", ready, 0.010),
            (rank, 2, 1, "optimizer", 0.010, 0.012),
        ]
    result = Traced(pd.DataFrame(rows, columns=COLUMNS), 1, 1).path().set_index("phase")["step_s"]
    assert result.to_dict() == pytest.approx({"backward": 0.008, "communication": 0.002, "optimizer": 0.002})


def test_start_up_counts_once_the_rest_once_an_epoch():
    rows = Traced(attempt([0.0, 0.0]), 1, STEPS).rows()
    start = rows[(rows["scope"] == "start") & (rows["rank"] == 0)].set_index("phase")["seconds"]
    assert start.to_dict() == pytest.approx(
        {"interpreter": 0.4, "rendezvous": 0.1, "import": 2.0, "build": 1.0, "barrier": 0.5}
    )
    around = rows[(rows["scope"] == "epoch") & (rows["rank"] == 1)].set_index("phase")["seconds"]
    assert around.to_dict() == pytest.approx({"barrier": 0.001, "validation": 0.05, "between": 0.002})


def test_an_epoch_has_the_mean_step_times_its_number_of_steps():
    rows = Traced(attempt([0.0, 0.0], steps=STEPS), 1, 40).rows()
    assert (rows["seconds"] / rows["step_s"]).dropna().to_numpy() == pytest.approx(40)


def test_of_accumulated_batches_only_the_last_is_allreduced():
    result = rows_of([0.0, 3.0], allreduced=2)
    assert result["communication", 0, "communication"] == pytest.approx(4)
    assert result["step", 0, "wait"] == pytest.approx(3)
    counts = (
        Traced(attempt([0.0, 3.0], allreduced=2), 1, STEPS)
        .rows()
        .query("scope == 'communication' and phase == 'communication'")["count"]
    )
    assert counts.tolist() == [1, 1]


def test_computing_hides_an_allreduce_of_a_step_before_it():
    """An all-reduce that goes on while the next step computes is hidden there."""
    rows = [
        (0, 2, 1, "backward", 0.0, 1.0),
        (0, 2, 2, "backward", 1.0, 2.0),
        (0, 2, 1, "communication", 0.5, 1.5),
    ]
    result = Traced(pd.DataFrame(rows, columns=COLUMNS), 1, 2).rows().set_index("phase")
    assert result.at["communication", "step_s"] == pytest.approx(0.5)
    assert result.at["exposed", "step_s"] == 0


def test_the_sum_of_a_steps_phases_is_its_time():
    full = attempt([0.0, 3.0], steps=12)
    clocked = Traced(full, 1, 12).step_times.merge(
        Traced(full, 1, 12).numbers, left_on="place", right_index=True
    )
    clocked = clocked.assign(step_time_s=clocked["end"] - clocked["start"])[
        ["epoch", "rank", "step", "step_time_s"]
    ]
    assert Traced(full, 1, 12).sum_error(None) < 1e-9
    assert Traced(full, 1, 12).sum_error(clocked) < 1e-9
    gaps = full[~((full["phase"] == "forward") & (full["rank"] == 1))]
    assert Traced(gaps, 1, 12).sum_error(None) == pytest.approx(5 / 20)
    assert Traced(full, 1, 12).sum_error(
        clocked.assign(step_time_s=clocked["step_time_s"] * 1.25)
    ) == pytest.approx(0.2)


def test_typical_steps_follow_each_other_around_the_median():
    result = Traced(attempt([0.0, 1.0], steps=12), 1, 12).typical_steps()
    assert result["epoch"].nunique() == 1 and result["epoch"].iloc[0] > 1
    numbers = sorted(set(result["step"]))
    assert numbers == list(range(numbers[0], numbers[0] + SHOWN_STEPS))
    assert set(result["rank"]) == {0, 1}
    assert Traced(attempt([0.0], steps=12, every=3), 1, 12).typical_steps()["step"].nunique() == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rank,epoch\n1,2\n",
        "rank,epoch,step,phase,start,end\n0,1,1,data,2.0,1.0\n",
        "rank,epoch,step,phase,start,end\n0,1,x,data,1,2\n",
    ],
)
def test_a_broken_table_is_one_line(tmp_path, text):
    (tmp_path / "phases.csv").write_text(text)
    with pytest.raises(InputError) as refused:
        read_intervals(tmp_path / "phases.csv")
    assert "phases.csv" in str(refused.value) and "\n" not in str(refused.value)


MS = 24  # of a made-up step
phase = st.sampled_from(["forward", "backward", WAIT])
cuts = st.lists(st.integers(0, MS), min_size=1, max_size=5, unique=True).map(sorted)
spans = st.lists(st.tuples(st.integers(0, MS - 1), st.integers(1, 8)), min_size=2, max_size=2)
ranks = st.lists(st.tuples(cuts, st.lists(phase, min_size=6, max_size=6), spans), min_size=1, max_size=3)


@given(ranks)
def test_the_communication_of_any_step_is_that_of_a_slow_twin(built):
    """Phases from cut to cut, two all-reduces a rank; the twin looks at every ms of every rank."""
    rows, expected = [], {name: [] for name in ("communication", "moving", "exposed", "exposed_moving")}
    of_rank = [sorted((start, start + lasts) for start, lasts in subset) for _, _, subset in built]
    moves = [max(sent[turn][0] for sent in of_rank) for turn in range(2)]
    for rank, ((ends, names, _), sent) in enumerate(zip(built, of_rank, strict=True)):
        edges = [0, *ends, MS]
        mine = [
            (name, start, end)
            for name, start, end in zip(names, edges, edges[1:], strict=False)
            if end > start
        ]
        rows += [(rank, 2, 1, name, start / 1e3, end / 1e3) for name, start, end in mine]
        rows += [(rank, 2, 1, "communication", start / 1e3, end / 1e3) for start, end in sent]
        entry = range(2 * MS)
        busy = {ms for name, start, end in mine if name != WAIT for ms in range(start, end)}
        sends = {ms for ms in entry if any(start <= ms < end for start, end in sent)}
        moving = {
            ms
            for ms in entry
            if any(max(start, at) <= ms < end for (start, end), at in zip(sent, moves, strict=True))
        }
        for name, result in (
            ("communication", sends),
            ("moving", moving),
            ("exposed", sends - busy),
            ("exposed_moving", moving - busy),
        ):
            expected[name].append(len(result))
    by_step = Traced(pd.DataFrame(rows, columns=COLUMNS), 1, 1).by_step
    for name, milliseconds in expected.items():
        assert 1e3 * by_step[name][:, 0] == pytest.approx(milliseconds, abs=1e-6)
    assert by_step["waiting"] == pytest.approx(by_step["communication"] - by_step["moving"])
    assert by_step["exposed_waiting"] == pytest.approx(by_step["exposed"] - by_step["exposed_moving"])
