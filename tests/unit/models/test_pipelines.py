"""Schedules of pipelines: idle time and activations in flight, against PyTorch's own orders."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from models.mesh import Mesh
from models.pipelines import bubble, in_flight, own_stages
from support.programs import printed


@pytest.mark.parametrize(
    ("schedule", "idle_turns"),
    [("gpipe", 3), ("1f1b", 3), ("interleaved-1f1b", 3 / 2), ("zero-bubble", 1), ("zero-bubble-v", 3 / 6)],
)
def test_bubble_of_four_ranks_and_eight_microbatches(schedule: str, idle_turns: float) -> None:
    assert bubble(Mesh(pipeline=4), 8, schedule) == pytest.approx(idle_turns / (8 + idle_turns))
    assert bubble(Mesh(data=4), 1, schedule) == 0


def test_ranks_hold_outputs_of_microbatches_in_flight() -> None:
    assert in_flight("gpipe", 4, 0, 8) == [(8,)]
    assert [in_flight("1f1b", 4, rank, 8) for rank in range(4)] == [[(4,)], [(3,)], [(2,)], [(1,)]]
    assert [in_flight("zero-bubble", 4, rank, 8) for rank in range(4)] == [[(5,)], [(6,)], [(7,)], [(8,)]]
    assert in_flight("interleaved-1f1b", 2, 0, 2) == [(2, 2)]


ORDERS = """
import json, sys
from types import SimpleNamespace
from ranks.libraries.pytorch_mesh import SCHEDULES, get_schedule_class

def order(name, n_ranks, n_microbatches, numbers):
    stage = dict(num_stages=len(numbers) * n_ranks, group_size=n_ranks, group_rank=0, submod=None, has_backward=True)
    own = [SimpleNamespace(stage_index=i, is_first=i == 0, is_last=False, **stage) for i in numbers]
    schedule = get_schedule_class(SCHEDULES[name])(own, n_microbatches, loss_fn=len, scale_grads=False)
    return [
        [[action.computation_type.value, action.stage_index, action.microbatch_index] for action in actions if action]
        for actions in schedule.pipeline_order.values()
    ]

print(json.dumps([order(*case) for case in json.loads(sys.argv[1])]))
"""
Action = tuple[str, int, int]
SECONDS = {"F": 1, "B": 2, "I": 1, "W": 1}  # B: gradients of inputs and of weights


def last_end(order: list[list[Action]], n_stages: int) -> float:
    """Return when the last rank ends, if each action starts once its rank is free and its input is there."""
    ends: dict[Action, float] = {}
    free, position = [0.0] * len(order), [0] * len(order)
    while any(place < len(actions) for place, actions in zip(position, order, strict=True)):
        for rank, actions in enumerate(order):
            if position[rank] == len(actions):
                continue
            kind, stage, microbatch = action = actions[position[rank]]
            needed = [("F", stage - 1, microbatch)] * (kind == "F" and stage > 0)
            needed += [(kind, stage + 1, microbatch)] * (kind in "BI" and stage < n_stages - 1)
            if all(before in ends for before in needed):
                begun = max([free[rank], *(ends[before] for before in needed)])
                free[rank] = ends[action] = begun + SECONDS[kind]
                position[rank] += 1
    return max(free)


def held_at_once(actions: list[Action], own: list[int]) -> set[tuple[int, ...]]:
    """Return the outputs and gradients of each stage that are held when forward and backward passes end."""
    counts, moments = dict.fromkeys(own, 0), set()
    for kind, stage, _ in actions:
        counts[stage] += {"F": 1, "B": -1, "I": 1, "W": -2}[kind]
        moments.add(tuple(counts.values()))
    return moments


@pytest.mark.training
@pytest.mark.every_framework
def test_formulas_are_those_of_orders_of_pytorch(real: Callable[[str], Any]) -> None:
    names = ("interleaved-1f1b", "zero-bubble", "zero-bubble-v")
    cases = [
        (name, n_ranks, n_microbatches, own_stages(0, name, n_ranks))
        for name, n_ranks, rounds in itertools.product(names, (2, 4), (1, 2, 3))
        for n_microbatches in [n_ranks * rounds]
        if name != "zero-bubble-v" or rounds > 1
    ]
    orders = json.loads(printed(real("pytorch"), "-c", ORDERS, json.dumps(cases)))
    for (name, n_ranks, n_microbatches, numbers), read in zip(cases, orders, strict=True):
        order = [[(kind, stage, microbatch) for kind, stage, microbatch in actions] for actions in read]
        busy = 3 * len(numbers) * n_microbatches
        ends = last_end(order, len(numbers) * n_ranks)
        assert 1 - busy / ends == pytest.approx(bubble(Mesh(pipeline=n_ranks), n_microbatches, name)), name
        for rank, actions in enumerate(order):
            own = own_stages(rank, name, n_ranks)
            moments, expected = held_at_once(actions, own), in_flight(name, n_ranks, rank, n_microbatches)
            assert max(map(sum, moments)) == max(map(sum, expected)) and moments >= set(expected), (
                name,
                rank,
            )
