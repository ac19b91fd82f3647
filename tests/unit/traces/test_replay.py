"""Replay: an unchanged step takes its measured time, and a graph of known durations plays as arithmetic
says.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from support.made_up_trace import Truth
from traces.replay import FINISH, AllReduce, Chain, HandOver, Messages, Step, Wait, Work, build_chains, play

REAL = Path(__file__).with_name("ddp.csv")  # eight steps of PyTorch DDP on two ranks, two buckets each

TRUTHS = {
    "as it is": Truth(),
    "heterogeneous ranks": Truth(forward=(0.01, 0.03, 0.02), backward=(0.02, 0.01, 0.04)),
    "hidden": Truth(moving=(0.001, 0.0)),
    "one bucket at the end": Truth(ready=(1.0,), moving=(0.05,)),
    "three buckets at once": Truth(ready=(0.1, 0.2, 0.3), moving=(0.02, 0.01, 0.03)),
    "accumulation": Truth(sync_every=4),
    "one rank": Truth(forward=(0.01,), backward=(0.02,)),
}


@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
def test_an_unchanged_step_takes_its_measured_time(truth):
    (chain,) = build_chains(truth.trace(8, [0.001 * rank for rank in range(len(truth.forward))]))
    assert len(chain.steps) == 8
    assert chain.seconds() == pytest.approx(chain.measured_s, rel=1e-9)
    if truth.sync_every == 1:
        assert build_chains(truth.trace(1))[0].seconds() == pytest.approx(truth.step_s(), rel=1e-9)


def test_so_does_a_real_one():
    """To 1 %: what a clock's error puts before the last rank's start is lost."""
    built = build_chains(pd.read_csv(REAL))
    assert sum(len(chain.steps) for chain in built) == 8
    assert {len(step.allreduces) for chain in built for step in chain.steps} == {2}
    for chain in built:
        assert chain.seconds() == pytest.approx(chain.measured_s, rel=0.01)


def test_a_step_by_hand():
    """Rank 0 hands over at 1 and 3, rank 1 at 2 and 4.

    The second all-reduce waits for the first, which ends at 12.
    """

    def give(first, second):
        return (Work("a", first), HandOver(0), Work("a", second), HandOver(1), Wait((0, 1)), Work(FINISH, 1))

    step = Step(
        (give(1, 2), give(2, 2)), (AllReduce(np.array([10.0, 10.0])), AllReduce(np.array([5.0, 6.0])))
    )
    assert play(step, np.zeros(2))[0].tolist() == [18, 19]
    assert play(step, np.array([100.0, 0.0]))[0].tolist() == [117, 118]


def test_allreduce_started_during_a_wait_keeps_its_delay():
    """A library that sends its second message 1 s after the first has arrived: twice as slow, the second one
    begins later, too.
    """
    rows = [
        (0, 1, 1, "backward", 0.0, 2.0),
        (0, 1, 1, "communication", 2.0, 4.0),
        (0, 1, 1, "communication", 5.0, 6.0),
        (0, 1, 1, "wait", 2.0, 7.0),
    ]
    (chain,) = build_chains(pd.DataFrame(rows, columns=["rank", "epoch", "step", "phase", "start", "end"]))
    assert chain.seconds() == chain.measured_s == 7.0
    (step,) = chain.steps
    slower = replace(step, allreduces=(AllReduce(np.array([4.0])), AllReduce(np.array([2.0]))))
    assert Chain(chain.starts, (slower,), 0.0).seconds() == 2 + 4 + 1 + 2 + 1


def test_nonconsecutive_steps_are_separate_chains():
    truth = Truth()
    rows = pd.concat(
        [truth.trace(2), truth.trace(3, [5.0, 5.0], first=7), truth.trace(1, [9.0, 9.0], epoch=3)]
    )
    assert [len(chain.steps) for chain in build_chains(rows)] == [2, 3, 1]


def test_steps_that_are_not_whole_are_left_out():
    rows = Truth().trace(5)
    reduced = rows[~((rows["rank"] == 1) & (rows["step"] == 2))]
    second = rows[~((rows["rank"] == 1) & (rows["step"] == 4) & (rows["phase"] == "communication"))]
    assert [len(chain.steps) for chain in build_chains(reduced)] == [1, 3]
    assert [len(chain.steps) for chain in build_chains(second)] == [3, 1]
    assert build_chains(rows[:0]) == []


def test_concurrent_allreduces_share_time_by_their_time_alone():
    """Both end at 10 s: the first, three times as large, takes 6 of the 8 s, the second the rest."""
    rows = [
        (0, 1, 1, "backward", 0.0, 3.0),
        (0, 1, 1, "communication", 2.0, 10.0),
        (0, 1, 1, "communication", 3.0, 10.0),
        (0, 1, 1, "wait", 3.0, 10.0),
    ]
    frame = pd.DataFrame(rows, columns=["rank", "epoch", "step", "phase", "start", "end"])
    (chain,) = build_chains(frame, lambda count: Messages(np.zeros(2), np.array([3.0, 1.0])))
    assert [allreduce.moving.tolist() for allreduce in chain.steps[0].allreduces] == [[6.0], [2.0]]
    assert chain.seconds() == 10.0
