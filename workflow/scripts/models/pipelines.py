"""Schedules of a pipeline of p ranks and m microbatches: stages of a rank, activations in flight, idle time.

    gpipe             all forward passes, then all backward passes (Huang et al., NeurIPS 2019)
    1f1b              a backward pass after each forward pass, as early as possible (Narayanan et al., SOSP
                      2019)
    interleaved-1f1b  1F1B with two stages on each rank, p stages apart: a bubble of half the length for twice
                      the messages (Narayanan et al., SC'21, section 2.2)
    zero-bubble       1F1B whose gradients of weights are computed where a rank would idle (ZB-H1 of Qi et
                      al., ICLR 2024): a bubble of a third, if both halves of a backward pass take as long as
                      a forward pass
    zero-bubble-v     the same with two stages on each rank, the first and the last on one, and so on inwards
                      (ZB-V, ibid.)

Orders are those of torch.distributed.pipelining. Standard library only, like models.graph.
"""

from models.mesh import Mesh

INTERLEAVED, ZERO_BUBBLE, ZERO_BUBBLE_V = "interleaved-1f1b", "zero-bubble", "zero-bubble-v"
N_INTERLEAVED = 2  # stages of a rank
# Idle time of a rank relative to p - 1 microbatches of its stages.
IDLE_TURNS = {"gpipe": 1.0, "1f1b": 1.0, INTERLEAVED: 1 / 2, ZERO_BUBBLE: 1 / 3, ZERO_BUBBLE_V: 1 / 6}


def stages_per_rank(schedule: str) -> int:
    """Return the number of stages that each rank has."""
    return N_INTERLEAVED if schedule in (INTERLEAVED, ZERO_BUBBLE_V) else 1


def rank_of(stage: int, schedule: str, n_ranks: int) -> int:
    """Return the rank along the pipeline that has a stage."""
    if schedule == ZERO_BUBBLE_V:
        return min(stage, 2 * n_ranks - 1 - stage)
    return stage % n_ranks


def own_stages(rank: int, schedule: str, n_ranks: int) -> list[int]:
    """Return the numbers of the stages of a rank."""
    n_stages = n_ranks * stages_per_rank(schedule)
    return [stage for stage in range(n_stages) if rank_of(stage, schedule, n_ranks) == rank]


def bubble(mesh: Mesh, microbatches: int, schedule: str) -> float:
    """Return the idle share of a rank in a pipeline of equal stages, 0 without a pipeline.

    The formulas hold for a multiple of p microbatches, and for `zero-bubble-v` for 2 p - 1 or more.
    """
    if mesh.pipeline == 1:
        return 0.0
    idle = IDLE_TURNS[schedule] * (mesh.pipeline - 1)
    return idle / (microbatches + idle)


def in_flight(schedule: str, n_ranks: int, rank: int, microbatches: int) -> list[tuple[int, ...]]:
    """Return how many microbatches' outputs a rank holds at once, for each of its stages.

    There is one tuple for each moment at which the rank can hold the most: when a forward or backward pass
    has just ended. If gradients of weights are computed later, gradients of outputs are counted, too.
    """
    match schedule:
        case "gpipe":
            return [(microbatches,)]
        case "1f1b":
            return [(min(microbatches, n_ranks - rank),)]
        case "zero-bubble":
            return [(min(microbatches, n_ranks) + min(microbatches, rank + 1),)]
        case "zero-bubble-v":
            steady, last = 2 * n_ranks + 1 - rank, n_ranks + rank + 1
            return [(steady, rank), (steady - 2, rank + 2), (last, 2 * rank)]
    n_passes = N_INTERLEAVED * microbatches
    in_turn = microbatches // max(1, microbatches // n_ranks)  # microbatches of a stage in a row
    ahead = min(n_passes, (N_INTERLEAVED - 1) * in_turn + 2 * (n_ranks - 1 - rank) + 1)
    forward = [number // in_turn % N_INTERLEAVED for number in range(n_passes)]
    counts = []
    for n_forward in range(ahead, n_passes + 1):
        started = forward[:n_forward]
        ended = [N_INTERLEAVED - 1 - stage for stage in forward[: n_forward - ahead]]
        counts.append(tuple(started.count(i) - ended.count(i) for i in range(N_INTERLEAVED)))
    return counts
