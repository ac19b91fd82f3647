"""Questions: each changes what it says and nothing else, by made-up traces whose answers are arithmetic."""

from dataclasses import replace

import numpy as np
import pytest

from support.made_up_trace import Truth
from traces import questions
from traces.replay import AllReduce, Messages, build_chains, play

STEPS = 8
# One bucket at the end: nothing is hidden, and every answer is a sum.
PLAIN = Truth(ready=(1.0,), moving=(0.040,))
WORK_S = 0.001 + 0.010 + 0.020


def own(truth, steps=STEPS):
    return build_chains(truth.trace(steps), lambda count: messages(truth.moving))


def answer(question, truth, steps=STEPS):
    """Seconds of a step of as many samples as before."""
    return question.ratio(own(truth, steps)) * truth.step_s()


def messages(seconds):
    """Without a latency beside other messages."""
    return Messages(np.zeros(len(seconds)), np.array(seconds))


def times(share):
    """Everything that moves takes this share of its time."""
    return questions.scale_moving(share)


halved = times(0.5)


@pytest.mark.parametrize("truth", [PLAIN, Truth(), Truth(ready=(0.2, 0.9), moving=(0.03, 0.01))])
def test_links_and_bytes_change_what_moves(truth):
    expected = replace(truth, moving=tuple(moving / 2 for moving in truth.moving)).step_s()
    assert answer(questions.links(2, halved), truth) == pytest.approx(expected)
    assert answer(questions.half_the_bytes(halved), truth) == pytest.approx(expected)


def test_hidden_ranks_still_wait_for_the_slowest():
    truth = replace(PLAIN, forward=(0.010, 0.030))
    assert answer(questions.hidden(), truth) == pytest.approx(0.001 + 0.030 + 0.020 + 0.0005 + 0.002)


def test_the_slowest_rank_becomes_the_median():
    """All of its work: that around the all-reduce, too."""
    truth = replace(PLAIN, forward=(0.010, 0.010, 0.060), backward=(0.020,) * 3)
    assert questions.balanced(own(truth)).ratio(own(truth)) * truth.step_s() == pytest.approx(
        replace(truth, forward=(0.010,) * 3).step_s(), rel=0.01
    )
    assert questions.balanced(own(PLAIN)).ratio(own(PLAIN)) == pytest.approx(1)


def test_no_data_takes_away_data():
    assert answer(questions.no_data(), PLAIN) == pytest.approx(PLAIN.step_s() - 0.001)


def test_accumulation_delays_allreduce_and_update_to_last_batch():
    result = answer(questions.accumulated(4, None, own(PLAIN)), PLAIN)
    assert result == pytest.approx(WORK_S + (0.040 + 0.0005 + 0.002) / 4)
    joined = [replace(chain, steps=chain.steps[:1]) for chain in own(PLAIN) for _ in range(4)]
    assert questions.accumulated(4, None, joined).ratio(joined) * PLAIN.step_s() == pytest.approx(result)


def test_batches_without_allreduce_take_the_time_of_one_device():
    """A batch and its update take 28 ms there; 31 ms of work beside an all-reduce."""
    result = answer(questions.accumulated(4, 0.028, own(PLAIN)), PLAIN)
    assert result == pytest.approx((3 * 0.026 + PLAIN.step_s()) / 4)


def test_different_batches_wait_less_when_they_are_added_up():
    """Ranks that are slow in turn wait for each other at every all-reduce, and not at all over a whole
    group.
    """
    truth = replace(PLAIN, forward=(0.010, 0.020))
    (first,), (second,) = own(truth, 1), own(replace(truth, forward=(0.020, 0.010)), 1)
    chain = [replace(first, steps=(first.steps[0], second.steps[0]) * 4)]
    added = questions.accumulated(2, None, chain).ratio(chain) * chain[0].seconds() / 8
    assert added == pytest.approx(0.001 + 0.015 + 0.020 + (0.040 + 0.0005 + 0.002) / 2)


def test_a_larger_batch_has_more_work_and_one_allreduce():
    proportional = answer(questions.batch(2, 2, measured=False), PLAIN)
    assert proportional == pytest.approx((2 * WORK_S + 0.040 + 0.0005 + 0.002) / 2)
    every = (
        WORK_S + 0.0005 + 0.002
    )  # what a rank works in a step, its update included, as one replica's time of a batch does
    measured = answer(questions.batch(2, 1.5, measured=True), PLAIN)
    assert measured == pytest.approx((1.5 * every + 0.040) / 2)


def test_the_law_scales_what_it_explains():
    """10 ms by the law become 6; what was longer stays, what was faster keeps its share."""
    before, after = (Messages(np.array([seconds]), np.array([0.001])) for seconds in (0.010, 0.006))
    retime = questions.retime_by_law(before, after)
    assert retime(AllReduce(np.array([0.010, 0.015, 0.005])), 0).moving == pytest.approx(
        [0.006, 0.011, 0.003]
    )


def test_queued_allreduce_costs_bytes_and_at_least_its_latency():
    """A small message after a large one: its bytes take half as long, its latency does not."""
    before = Messages(np.array([0.010]), np.array([0.002]))
    after = Messages(np.array([0.009]), np.array([0.001]))
    result = questions.retime_by_law(before, after)(
        AllReduce(np.array([0.002]), behind=True, least_s=0.010), 0
    )
    assert result.moving == pytest.approx([0.001])
    assert result.least_s == pytest.approx(0.009)
    assert result.ends(handed_over=1.0, free=1.5, computing=0.0) == pytest.approx([1.501])
    assert result.ends(handed_over=1.0, free=0.5, computing=0.0) == pytest.approx([1.009])


SLOWED = Truth(ready=(0.5,), moving=(0.030,))  # 10 ms of it beside the backward pass


def test_overlapped_allreduce_progresses_as_the_law_says():
    """Alone it takes 24 ms, so that the 10 ms beside the backward pass moved 4 ms of it."""
    plain = own(SLOWED)
    law = lambda count: Messages(np.full(count, 0.024), np.full(count, 0.024))  # noqa: E731
    assert questions.speed_during_computation(plain, law) == pytest.approx(0.4)
    slowed = [chain.slowed(0.4) for chain in plain]
    assert slowed[0].seconds() == pytest.approx(plain[0].seconds())
    assert slowed[0].steps[0].allreduces[0].moving == pytest.approx([0.024, 0.024])


@pytest.mark.parametrize("processors", [False, True])
def test_faster_links_shorten_overlapped_unless_processor_bound(processors):
    """Of 12 ms, 4 were moved beside the backward pass, or at the same rate of bytes only 2."""
    law = [Messages(np.array([seconds]), np.array([seconds])) for seconds in (0.024, 0.012)]
    chains_ = [chain.slowed(0.4) for chain in own(SLOWED)]
    result = (
        questions.links(2, questions.retime_by_law(*law, limited_by_processors=processors)).ratio(chains_)
        * SLOWED.step_s()
    )
    exposed = 0.012 - (0.002 if processors else 0.004)
    assert result == pytest.approx(WORK_S + exposed + 0.0005 + 0.002)


def test_overlapped_allreduce_delays_no_rank():
    hidden = replace(SLOWED, moving=(0.008,))
    chains_ = [chain.slowed(0.5) for chain in own(hidden)]
    assert chains_[0].seconds() == pytest.approx(own(hidden)[0].seconds())
    (allreduce,) = chains_[0].steps[0].allreduces
    assert allreduce.moving == pytest.approx([0.004, 0.004])
    assert questions.hidden().ratio(chains_) == pytest.approx(1)
    assert play(chains_[0].steps[0], np.zeros(2))[1].tolist() == pytest.approx([0.010])


@pytest.mark.parametrize("seed", range(20))
def test_less_never_takes_longer(seed):
    """Any trace: hiding, faster links, balance of the ranks or no data make no step longer.

    Slower links none shorter.
    """
    rng = np.random.default_rng(seed)
    ranks, buckets = rng.integers(1, 5), rng.integers(1, 4)
    truth = Truth(
        data=rng.uniform(0, 0.01),
        forward=tuple(rng.uniform(0, 0.05, ranks)),
        backward=tuple(rng.uniform(0, 0.05, ranks)),
        ready=tuple(np.sort(rng.uniform(0, 1, buckets))),
        moving=tuple(rng.uniform(0, 0.05, buckets)),
    )
    plain = build_chains(truth.trace(STEPS, list(rng.uniform(0, 0.01, ranks))))
    built = [chain.slowed(rng.uniform(questions.MIN_SPEED, 1)) for chain in plain]
    assert [chain.seconds() for chain in built] == pytest.approx([chain.measured_s for chain in plain])
    for question in (
        questions.hidden(), questions.half_the_bytes(halved), questions.links(2, halved),
        questions.balanced(built), questions.no_data(), questions.accumulated(4, None, built),
    ):  # fmt: skip
        assert question.ratio(built) <= 1 + 1e-9
    assert questions.links(0.5, times(2)).ratio(built) >= 1 - 1e-9
    assert questions.hidden().ratio(built) <= questions.links(2, halved).ratio(built) + 1e-9
