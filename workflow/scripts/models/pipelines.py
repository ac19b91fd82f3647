"""Schedules of a pipeline of p ranks and m microbatches: stages of a rank, activations in flight, idle time.

    gpipe             all forward passes, then all backward passes (Huang et al., NeurIPS 2019)
    1f1b              a backward pass after each forward pass, as early as possible (Narayanan et al., SOSP
                      2019)
    interleaved-1f1b  1F1B with two stages on each rank, p stages apart: a bubble of half the length for twice
                      the messages (Narayanan et al., SC'21, section 2.2)
    zero-bubble       1F1B whose gradients of weights are computed where a rank would idle (ZB-H1 of Qi et
                      al., ICLR 2024): a bubble of a third, if both halves of a backward pass take as long as
                      a forward pass

Orders are those of torch.distributed.pipelining. Standard library only, like models.graph.
"""

from models.mesh import Mesh

INTERLEAVED, ZERO_BUBBLE = "interleaved-1f1b", "zero-bubble"
N_INTERLEAVED = 2  # stages of a rank
# Idle time of a rank relative to p - 1 microbatches of its stages.
IDLE_TURNS = {"gpipe": 1.0, "1f1b": 1.0, INTERLEAVED: 1 / N_INTERLEAVED, ZERO_BUBBLE: 1 / 3}


def stages_per_rank(schedule: str) -> int:
    """Return the number of stages that each rank has: rank r those with the numbers r, r + p, ..."""
    return N_INTERLEAVED if schedule == INTERLEAVED else 1


def bubble(mesh: Mesh, microbatches: int, schedule: str) -> float:
    """Return the idle share of a rank in a pipeline of equal stages, 0 without a pipeline.

    The formulas hold for a multiple of p microbatches.
    """
    if mesh.pipeline == 1:
        return 0.0
    idle = IDLE_TURNS[schedule] * (mesh.pipeline - 1)
    return idle / (microbatches + idle)


def in_flight(schedule: str, n_ranks: int, rank: int, microbatches: int) -> list[tuple[int, ...]]:
    """Return the microbatches whose outputs a rank holds at once, for each of its stages.

    Gradients of outputs count, too, where gradients of weights are computed later. One tuple for each moment
    at which a rank may hold most: when a forward pass has just ended, from the first backward pass on.
    """
    match schedule:
        case "gpipe":
            return [(microbatches,)]
        case "1f1b":
            return [(min(microbatches, n_ranks - rank),)]
        case "zero-bubble":
            return [(min(microbatches, n_ranks) + min(microbatches, rank + 1),)]
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
