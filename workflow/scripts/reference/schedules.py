"""Draw docs/images/schedules.png: what the ranks of a pipeline do over time under each schedule.

Orders are those of `torch.distributed.pipelining`, which this program repeats without PyTorch. Every action
starts as soon as its rank is free and its input has arrived. Messages take no time; a forward pass, the
gradients of inputs and the gradients of weights take equally long, as in docs/explanation/parallelism.md.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from PIL import Image

from common.files import CHECKOUT, written_whole
from common.options import run_program
from figures import style
from models.mesh import Mesh
from models.pipelines import IDLE_TURNS, INTERLEAVED, bubble, stages_per_rank

PICTURE = CHECKOUT / "docs" / "images" / "schedules.png"
N_RANKS, N_MICROBATCHES = 4, 8
FORWARD, BACKWARD, INPUTS, WEIGHTS = "F", "B", "I", "W"  # BACKWARD: INPUTS and WEIGHTS without a pause
PASSES = {FORWARD: 1, BACKWARD: 2, INPUTS: 1, WEIGHTS: 1}  # duration, in forward passes
COLOURS = {FORWARD: "#004488", INPUTS: "#ddaa33", WEIGHTS: "#bb5566"}
NAMES = {FORWARD: "forward", INPUTS: "gradients of inputs", WEIGHTS: "gradients of weights"}
SECOND_STAGE_ALPHA = 0.55
LANE_INCHES, TITLE_INCHES, AROUND_INCHES = 0.13, 0.2, 0.55


@dataclass(frozen=True)
class Action:
    """A pass of a microbatch through a stage: FORWARD, BACKWARD, INPUTS or WEIGHTS."""

    kind: str
    stage: int
    microbatch: int


def list_actions(schedule: str, rank: int, n_ranks: int, n_microbatches: int) -> list[Action]:
    """Return the actions of a rank in their order.

    Args:
        schedule: A level of the factor `schedule`.
        rank: Its position along the pipeline.
        n_ranks: Ranks of the pipeline.
        n_microbatches: A multiple of `n_ranks`; for `zero-bubble-v` also 2 n_ranks - 1 or more.
    """
    microbatches = range(n_microbatches)
    match schedule:
        case "gpipe":
            return [Action(kind, rank, i) for kind in (FORWARD, BACKWARD) for i in microbatches]
        case "zero-bubble":
            return _zero_bubble_order(rank, n_ranks, n_microbatches)
        case "zero-bubble-v":
            return _zero_bubble_v_order(rank, n_ranks, n_microbatches)
    n_stages = stages_per_rank(schedule)
    passes = [
        (turn, start + i)
        for start in range(0, n_microbatches, n_ranks)
        for turn in range(n_stages)
        for i in range(n_ranks)
    ]
    forward = [Action(FORWARD, rank + turn * n_ranks, i) for turn, i in passes]
    backward = [Action(BACKWARD, rank + (n_stages - 1 - turn) * n_ranks, i) for turn, i in passes]
    is_interleaved = schedule == INTERLEAVED
    n_ahead = (n_ranks - 1 - rank) * (1 + is_interleaved) + n_ranks * is_interleaved
    return _alternate(forward, backward, n_ahead)


def _alternate(forward: list[Action], backward: list[Action], n_ahead: int) -> list[Action]:
    """Return `n_ahead` forward passes, then one of each kind in turn, then the remaining backward passes."""
    pairs = zip(forward[n_ahead:], backward, strict=False)
    n_pairs = len(forward) - n_ahead
    return [*forward[:n_ahead], *(action for pair in pairs for action in pair), *backward[n_pairs:]]


def _zero_bubble_order(rank: int, n_ranks: int, n_microbatches: int) -> list[Action]:
    """Return 1F1B with gradients of weights computed `rank` microbatches later (ZB-H1)."""
    forward, inputs = ([Action(kind, rank, i) for i in range(n_microbatches)] for kind in (FORWARD, INPUTS))
    actions: list[Action] = []
    for action in _alternate(forward, inputs, n_ranks - 1 - rank):
        actions.append(action)
        if action.kind == INPUTS and action.microbatch >= rank:
            actions.append(Action(WEIGHTS, rank, action.microbatch - rank))
    return [*actions, *(Action(WEIGHTS, rank, i) for i in range(n_microbatches - rank, n_microbatches))]


def _zero_bubble_v_order(rank: int, n_ranks: int, n_microbatches: int) -> list[Action]:
    """Return the order of ZB-V, in which a rank has the stages `rank` and 2 n_ranks - 1 - rank."""
    stages = rank, 2 * n_ranks - 1 - rank
    counts = dict.fromkeys([(kind, turn) for kind in (FORWARD, INPUTS, WEIGHTS) for turn in (0, 1)], 0)
    actions: list[Action] = []

    def add(kinds: str, turn: int) -> None:
        """Append the next microbatch of each kind, on the first (0) or the second (1) stage of the rank."""
        for kind in kinds:
            if counts[kind, turn] < n_microbatches:
                actions.append(Action(kind, stages[turn], counts[kind, turn]))
                counts[kind, turn] += 1

    backward = INPUTS + WEIGHTS
    for _ in range(2 * (n_ranks - rank) - 1):
        add(FORWARD, 0)
    for _ in range(rank):
        add(FORWARD, 1)
        add(FORWARD, 0)
    for _ in range(n_ranks - rank):
        add(FORWARD + backward, 1)
    while counts[FORWARD, 1] < n_microbatches:
        add(FORWARD + backward, 0)
        add(FORWARD + backward, 1)
    for _ in range(rank):
        add(INPUTS, 0)
        add(INPUTS, 1)
    for _ in range(n_ranks - rank):
        add(backward, 0)
    for turn in (1, 0):
        while counts[WEIGHTS, turn] < n_microbatches:
            add(WEIGHTS, turn)
    return actions


def schedule_actions(schedule: str, n_ranks: int, n_microbatches: int) -> list[dict[Action, float]]:
    """Return when each action of each rank starts, in forward passes through all stages of a rank."""
    orders = [list_actions(schedule, rank, n_ranks, n_microbatches) for rank in range(n_ranks)]
    last_stage, unit = n_ranks * stages_per_rank(schedule) - 1, 1 / stages_per_rank(schedule)
    ends: dict[Action, float] = {}
    begun: list[dict[Action, float]] = [{} for _ in orders]
    free = [0.0] * n_ranks
    while any(len(done) < len(actions) for done, actions in zip(begun, orders, strict=True)):
        for rank, actions in enumerate(orders):
            if len(begun[rank]) == len(actions):
                continue
            action = actions[len(begun[rank])]
            needed = _inputs(action, last_stage)
            if all(before in ends for before in needed):
                start = max([free[rank], *(ends[before] for before in needed)])
                begun[rank][action] = start
                free[rank] = ends[action] = start + unit * PASSES[action.kind]
    return begun


def _inputs(action: Action, last_stage: int) -> list[Action]:
    """Return the action of another stage that an action waits for, if any."""
    step = {FORWARD: -1, BACKWARD: 1, INPUTS: 1, WEIGHTS: 0}[action.kind]
    stage = action.stage + step
    return [Action(action.kind, stage, action.microbatch)] if step and 0 <= stage <= last_stage else []


def find_end(schedule: str, begun: Sequence[Mapping[Action, float]]) -> float:
    """Return when the last action ends."""
    unit = 1 / stages_per_rank(schedule)
    return max(start + unit * PASSES[action.kind] for actions in begun for action, start in actions.items())


def draw() -> Figure:
    """Return the picture: a row of lanes for each schedule, one lane for each rank."""
    height_in = len(IDLE_TURNS) * (N_RANKS * LANE_INCHES + TITLE_INCHES) + AROUND_INCHES
    figure = style.new_figure(style.PAGE_INCHES, height_in)
    axes = figure.subplots(len(IDLE_TURNS), 1, sharex=True)
    for ax, schedule in zip(axes, IDLE_TURNS, strict=True):
        begun = schedule_actions(schedule, N_RANKS, N_MICROBATCHES)
        _draw_schedule(ax, schedule, begun)
        idle = bubble(Mesh(pipeline=N_RANKS), N_MICROBATCHES, schedule)
        ax.set_title(f"{schedule}: {100 * idle:.0f} % idle", loc="left")
        ax.set_ylim(N_RANKS - 0.5, -0.5)
        ax.set_yticks(range(N_RANKS), [f"rank {rank}" for rank in range(N_RANKS)])
        ax.tick_params(axis="y", length=0)
        ax.spines[["left", "bottom"]].set_visible(False)
        ax.tick_params(axis="x", bottom=False)
    axes[0].set_xlim(
        0, max(find_end(name, schedule_actions(name, N_RANKS, N_MICROBATCHES)) for name in IDLE_TURNS)
    )
    axes[-1].set_xlabel("time, in forward passes through the stages of a rank")
    axes[-1].tick_params(axis="x", bottom=True)
    handles = [Patch(facecolor=COLOURS[kind], label=name) for kind, name in NAMES.items()]
    handles.append(
        Patch(facecolor=COLOURS[FORWARD], alpha=SECOND_STAGE_ALPHA, label="paler: second stage of a rank")
    )
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _draw_schedule(ax: Axes, schedule: str, begun: list[dict[Action, float]]) -> None:
    """Draw the actions of each rank, with the number of their microbatch."""
    unit = 1 / stages_per_rank(schedule)
    for rank, actions in enumerate(begun):
        for action, start in actions.items():
            parts = [INPUTS, WEIGHTS] if action.kind == BACKWARD else [action.kind]
            for index, kind in enumerate(parts):
                left, is_second = start + index * unit, action.stage >= len(begun)
                box = Rectangle((left, rank - 0.44), unit, 0.88, facecolor=COLOURS[kind], linewidth=0)
                box.set(alpha=SECOND_STAGE_ALPHA if is_second else 1.0, edgecolor="white", linewidth=0.5)
                ax.add_patch(box)
                if kind != WEIGHTS:
                    ink = "white" if kind == FORWARD else style.INK
                    text = ax.text(left + unit / 2, rank, str(action.microbatch + 1), color=ink)
                    text.set(ha="center", va="center_baseline", fontsize=style.SMALL_FONT_SIZE - 1)


def main(*, out: Path = PICTURE) -> None:
    """Draw the schedules of a pipeline of 4 ranks and 8 microbatches.

    Args:
        out: file to write
    """
    with TemporaryDirectory() as folder:
        style.save(draw(), Path(folder) / "schedules")
        with Image.open(Path(folder) / "schedules.png") as image, written_whole(out) as partial:
            image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
                partial, format="png", optimize=True
            )


if __name__ == "__main__":
    sys.exit(run_program(main))
