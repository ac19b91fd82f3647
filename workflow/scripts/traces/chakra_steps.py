"""A traced step of a run as nodes of Chakra execution traces (`ringside trace --chakra`).

The step is that of median time. Computations are the phases of a rank except `wait`, cut where an all-reduce
starts: this needs what was computed before. What a rank computes after `wait`, and its optimizer, need the
all-reduces that had ended. A trace has no sizes of all-reduces: those of a step share the model's gradients
equally.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from common.errors import InputError
from common.files import read_json
from runs.epochs import read_epochs
from runs.phases import BARRIER, TABLE, WAIT
from traces.chakra import Graph, write
from traces.steps import Traced
from traces.timeline import read_intervals

PICOSECONDS = 1e12
CLOCK_TOLERANCE_S = 1e-4  # Another thread may record the end of an all-reduce after the wait for it.
OPTIMIZER = "optimizer"
Times = tuple[float, float]


@dataclass(frozen=True)
class Computed:
    """A computation of a rank in s, and the turns of the all-reduces that it waits for."""

    rank: int
    name: str
    start: float
    end: float
    waits_for: tuple[int, ...]


def cut_phases(rank: int, phases: pd.DataFrame, allreduces: list[Times]) -> Iterator[Computed]:
    """Yield the computations of a rank's step in order, from its phases and its all-reduces by turn."""
    waited, has_waited = set[int](), False
    for name, start, end in phases[["phase", "start", "end"]].itertuples(index=False):
        if name in (WAIT, BARRIER):
            has_waited = True
            continue
        if start == end:
            continue
        needed: tuple[int, ...] = ()
        if has_waited or name == OPTIMIZER:
            limit = start + CLOCK_TOLERANCE_S
            over = (
                turn for turn, (begins, until) in enumerate(allreduces) if begins < start and until <= limit
            )
            needed = tuple(turn for turn in over if turn not in waited)
            waited.update(needed)
            has_waited = False
        cuts = sorted({start, end, *(begins for begins, _ in allreduces if start < begins < end)})
        for first, last in itertools.pairwise(cuts):
            yield Computed(rank, str(name), first, last, needed)
            needed = ()


def build_graph(phases: pd.DataFrame, allreduces: pd.DataFrame, gradient_bytes: int) -> Graph:
    """Return the nodes of a step.

    Args:
        phases: rank, phase, start, end (s) of the step, without all-reduces.
        allreduces: rank, start, end of its all-reduces; the k-th of each rank is the same one.
        gradient_bytes: Bytes that all all-reduces together sum.

    Raises:
        InputError: If ranks have different numbers of all-reduces.
    """
    ranks = sorted(int(rank) for rank in phases["rank"].unique())
    summed: dict[int, list[Times]] = {
        rank: list(
            allreduces[allreduces["rank"] == rank].sort_values("start")[["start", "end"]]
            .itertuples(index=False, name=None)
        )
        for rank in ranks
    }  # fmt: skip
    counts = {len(times) for times in summed.values()}
    if len(counts) > 1:
        problem = f"ranks have {', '.join(map(str, sorted(counts)))} all-reduces in a step"
        raise InputError("not-possible-here", problem, file="--chakra", got=sorted(counts))
    computed = {
        rank: list(cut_phases(rank, phases[phases["rank"] == rank].sort_values("start"), summed[rank]))
        for rank in ranks
    }
    return _link(computed, summed, counts.pop(), gradient_bytes)


def _link(
    computed: dict[int, list[Computed]],
    summed: dict[int, list[Times]],
    n_allreduces: int,
    gradient_bytes: int,
) -> Graph:
    """Return the graph of computations and all-reduces, each after what it needs."""
    graph = Graph.empty(max(computed) + 1)
    zero = min(work[0].start for work in computed.values() if work)
    share = -(-gradient_bytes // max(1, n_allreduces))
    nodes: dict[tuple[int, int], int] = {}  # rank and turn of an all-reduce: its node
    done: dict[int, list[tuple[float, int]]] = defaultdict(list)  # rank: ends and nodes of computations

    def times(start: float, end: float) -> tuple[int, int]:
        return round((start - zero) * PICOSECONDS), round((end - zero) * PICOSECONDS)

    for event in _in_order(computed, summed, n_allreduces):
        if isinstance(event, Computed):
            needed = [nodes[event.rank, turn] for turn in event.waits_for]
            node = graph.add_computation(event.rank, event.name, times(event.start, event.end), needed)
            done[event.rank].append((event.end, node))
            continue
        turn = event
        before = {
            rank: [node for end, node in done[rank] if end <= summed[rank][turn][0]][-1:] for rank in summed
        }
        size = max(0, min(share, gradient_bytes - turn * share))
        added = graph.add_all_reduce(
            f"all-reduce {turn + 1}", {rank: times(*summed[rank][turn]) for rank in summed}, [size], before
        )
        nodes |= {(rank, turn): node for rank, node in added.items()}
    return graph


def _in_order(
    computed: dict[int, list[Computed]], summed: dict[int, list[Times]], n_allreduces: int
) -> Iterator[Computed | int]:
    """Yield computations and turns of all-reduces, each after what it needs, else by their starts."""
    position, turn = dict.fromkeys(computed, 0), 0
    while turn < n_allreduces or any(position[rank] < len(computed[rank]) for rank in computed):
        ready = [
            (work[position[rank]].start, rank)
            for rank, work in computed.items()
            if position[rank] < len(work) and all(needed < turn for needed in work[position[rank]].waits_for)
        ]
        if turn < n_allreduces and _is_ready(computed, summed, position, turn):
            yield turn
            turn += 1
            continue
        _, rank = min(ready)
        yield computed[rank][position[rank]]
        position[rank] += 1


def _is_ready(
    computed: dict[int, list[Computed]], summed: dict[int, list[Times]], position: dict[int, int], turn: int
) -> bool:
    """Return whether each rank has computed all that ended before it started an all-reduce."""
    return all(
        position[rank] == len(work) or work[position[rank]].end > summed[rank][turn][0]
        for rank, work in computed.items()
    )


def export(attempt: Path, name: str, gradient_bytes: int, folder: Path) -> list[Path]:
    """Write the typical step of a traced attempt as execution traces, and return their files.

    Args:
        attempt: Folder of a finished attempt with phases.
        name: Name of the run.
        gradient_bytes: Of the model, as they are summed.
        folder: Where to write.

    Raises:
        InputError: If no step was traced.
    """
    levels = read_json(attempt / "rank_input.json")["spec"]["levels"]
    traced = Traced(
        read_intervals(attempt / TABLE),
        int(levels["warmup_epochs"]),
        int(read_epochs(attempt / "epochs.csv")[-1]["steps"]),
    )
    if traced.numbers.empty:
        raise InputError("missing-value", "has no traced step of a timed epoch", file=attempt / TABLE)
    epoch, step = traced.typical_step()
    graph = build_graph(
        _of_step(traced.phases, epoch, step), _of_step(traced.allreduces, epoch, step), gradient_bytes
    )
    return write(graph, folder, name, {"run": name, "epoch": epoch, "step": step})


def _of_step(rows: pd.DataFrame, epoch: int, step: int) -> pd.DataFrame:
    return rows[(rows["epoch"] == epoch) & (rows["step"] == step)]
