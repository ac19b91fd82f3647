"""Orders of pipelines that the documentation draws: idle time and outputs held are those of the formulas."""

import pytest

from models.mesh import Mesh
from models.pipelines import IDLE_TURNS, bubble, in_flight, stages_per_rank
from reference.schedules import (
    BACKWARD,
    FORWARD,
    INPUTS,
    WEIGHTS,
    Action,
    find_end,
    list_actions,
    schedule_actions,
)

SIZES = [(4, 8), (2, 4), (4, 12)]
CHANGE_IN_HELD = {FORWARD: 1, BACKWARD: -1, INPUTS: 1, WEIGHTS: -2}  # outputs and gradients, after an action


@pytest.mark.parametrize("schedule", IDLE_TURNS)
@pytest.mark.parametrize(("n_ranks", "n_microbatches"), SIZES)
def test_drawn_schedules_are_as_idle_as_the_formula(schedule: str, n_ranks: int, n_microbatches: int) -> None:
    last = find_end(schedule, schedule_actions(schedule, n_ranks, n_microbatches))
    idle = bubble(Mesh(pipeline=n_ranks), n_microbatches, schedule)
    assert 1 - 3 * n_microbatches / last == pytest.approx(idle)


@pytest.mark.parametrize("schedule", IDLE_TURNS)
def test_each_stage_sees_each_microbatch_once(schedule: str) -> None:
    n_ranks, n_microbatches = 4, 8
    actions = [
        action for rank in range(n_ranks) for action in list_actions(schedule, rank, n_ranks, n_microbatches)
    ]
    kinds = (FORWARD, INPUTS, WEIGHTS) if "zero" in schedule else (FORWARD, BACKWARD)
    stages = range(n_ranks * stages_per_rank(schedule))
    assert sorted(map(repr, actions)) == sorted(
        repr(Action(kind, stage, i)) for kind in kinds for stage in stages for i in range(n_microbatches)
    )


@pytest.mark.parametrize("schedule", IDLE_TURNS)
@pytest.mark.parametrize(("n_ranks", "n_microbatches"), SIZES)
def test_ranks_hold_as_many_outputs_as_the_formula(schedule: str, n_ranks: int, n_microbatches: int) -> None:
    for rank in range(n_ranks):
        n_held, largest = 0, 0
        for action in list_actions(schedule, rank, n_ranks, n_microbatches):
            n_held += CHANGE_IN_HELD[action.kind]
            largest = max(largest, n_held)
        assert largest == max(map(sum, in_flight(schedule, n_ranks, rank, n_microbatches)))
