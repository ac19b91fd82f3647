"""Estimate the memory of ranks without their device: `python -m ranks.memory_estimate CELLS.json OUT.json`.

It runs in the environment of a PyTorch framework, on any machine. The program creates the rank's trainer and
takes two optimizer steps with tensors that have shapes but no content (FakeTensorMode), in a process group
that sends nothing, for any number of ranks. It counts the bytes of all live tensors, and divides their peak
into categories.

Memory outside of tensors is not counted: CUDA's context, NCCL's buffers, workspaces of kernels. DDP's reducer
reads the content of tensors, so a module with the same buckets replaces it.
"""

import functools
import importlib
import json
import os
import resource
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ranks.libraries.ahead import N_SLOTS
from ranks.worker.batches import Batch
from ranks.worker.context import Context
from ranks.worker.process import adapter_of

N_STEPS = 2  # the first one creates the state of the optimizer
MAX_ACCUMULATED = 2  # batches of a step: gradients of further batches are added in place
MAX_RANKS = 16  # number of estimated ranks of a strategy, in which all differ
CUDA_BLOCK_BYTES = 512  # PyTorch's caching allocator rounds up to it


class LocalGroup:
    """Stand-in for ranks.worker.group.Group: every rank has the values of this one."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.address = rank, size, "127.0.0.1"

    def all_gather(self, value: Any) -> list[Any]:
        """Return the `value` of every rank (anything that JSON can hold), in the order of ranks."""
        return [value] * self.size

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's `value` on every rank."""
        return value

    def barrier(self) -> None:
        """Return when every rank has called it."""


class ShapesOnly(Context):
    """Context of a rank with weights and samples that take no memory, and few steps."""

    def draw_weights(self, names: Collection[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the initial weights in `names` one after the other, so that a rank never has all of them."""
        shapes = self.graph.weights()
        for name in names:
            yield name, np.broadcast_to(np.float32(0), shapes[name])

    @functools.cached_property
    def accumulation_groups(self) -> list[int]:
        """Number of batches of each optimizer step of an epoch."""
        return [min(self.levels["sync_every"], MAX_ACCUMULATED)] * N_STEPS

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        """The prepared data set's manifest."""
        n_channels = self.graph.shape[-1]
        return {"mean": [0.0] * n_channels, "std": [1.0] * n_channels}

    def epoch(self, _epoch: int) -> Iterator[Batch]:
        """Yield this rank's augmented batches of `epoch` (1 is the first), in each step one per replica.

        Samples are those of a step of the rank's replica.
        """
        graph, n_samples = self.graph, self.sample_counts[self.replica]
        kind = np.uint8 if graph.vocabulary is None else np.int64
        for _ in range(sum(self.accumulation_groups)):
            yield (
                np.zeros((n_samples, *graph.shape), kind),
                np.zeros((n_samples, *graph.operators[-1].shape[:-1]), np.int64),
            )


def make_context(rank_input: dict[str, Any], rank: int) -> ShapesOnly:
    """Return the context of a rank of a run, on the CPU regardless of the run's device."""
    spec = rank_input["spec"] | {"device": "cpu"}
    group: Any = LocalGroup(rank, spec["ranks"])
    cpu_input = rank_input | {"spec": spec}
    return ShapesOnly(Path("/nonexistent"), cpu_input, rank, rank % spec["ranks_per_node"], group)


def distinct_ranks(context: Context) -> list[int]:
    """Return ranks that include the one with the highest memory use: the first rank of each pipeline stage.

    The first of sharded ranks has the largest shard. Of a strategy, return all ranks, up to MAX_RANKS.
    """
    if "strategy" in context.spec:
        return list(range(min(context.ranks, MAX_RANKS)))
    by_stage: dict[int, int] = {}
    for rank in range(context.ranks):
        by_stage.setdefault(context.mesh.coordinates(rank)["pipeline"], rank)
    return list(by_stage.values())


def estimate(rank_input: dict[str, Any], rank: int) -> dict[str, int]:
    """Return the bytes of each category at the peak of a rank's second step.

    Afterwards PyTorch is unusable in this process.
    """
    context = make_context(rank_input, rank)
    adapter = adapter_of(context)
    from ranks.libraries import pytorch_memory

    # Weights of one zero, repeated, are not writable.
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
    is_cuda = rank_input["spec"]["device"] == "cuda"
    ledger = pytorch_memory.Ledger(CUDA_BLOCK_BYTES if is_cuda else 1)
    pytorch_memory.replace_what_reads_content(ledger)
    if context.mesh.pipeline > 1:
        pytorch_memory.let_stages_agree()
    if "deepspeed" in rank_input["modules"]:
        pytorch_memory.trust_other_ranks()
    with ledger:
        trainer = adapter.trainer(context)
        take_steps(trainer, ledger.begin_step, lambda: ledger.mark_gradients(trainer))
    sizes = ledger.by_category(trainer)
    if is_cuda:
        sizes["framework"] += N_SLOTS * sum(array.nbytes for array in next(context.epoch(1)))
    return sizes


def take_steps(trainer: Any, begin: Callable[[], object], before_update: Callable[[], object]) -> None:
    """Take N_STEPS steps by the trainer's own loop.

    Args:
        trainer: A PyTorchTrainer with a context of this kind.
        begin: Called before each step.
        before_update: Called between the backward pass and the update of the optimizer.
    """
    step = trainer._optimizer_step

    def take_step() -> None:
        before_update()
        step()
        if trainer._updates < N_STEPS:
            begin()

    trainer._optimizer_step = take_step
    begin()
    trainer.train_epoch(1, SimpleNamespace(wants_steps=False))


def estimate_cells(cells: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the estimate of each cell, given by the input of its ranks.

    It has the `rank` that needs most and its `tensor_bytes` by category, or the `error` that prevented an
    estimate. Each rank is estimated in a separate process, forked from this one.
    """
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        waiting = [
            {
                rank: pool.submit(_in_child, functools.partial(estimate, rank_input, rank))
                for rank in distinct_ranks(make_context(rank_input, 0))
            }
            for rank_input in cells
        ]
        for by_rank in waiting:
            answers = {rank: answer.result() for rank, answer in by_rank.items()}
            failed = [answer for answer in answers.values() if "error" in answer]
            if failed:
                yield failed[0]
                continue
            rank = max(answers, key=lambda rank: sum(answers[rank]["result"].values()))
            yield {"rank": rank, "tensor_bytes": answers[rank]["result"]}


def _in_child(call: Callable[[], Any]) -> dict[str, Any]:
    """Return {"result": what a call returns} from a forked process, or {"error": its last line}."""
    read_end, write_end = os.pipe()
    if (child := os.fork()) == 0:
        try:
            answer = {"result": call()}
        except BaseException as error:
            traceback.print_exc()
            lines = str(error).strip().splitlines() or [""]
            answer = {"error": f"{type(error).__name__}: {lines[0]}"}
        with open(write_end, "w") as pipe:
            json.dump(answer, pipe)
        sys.stderr.flush()
        os._exit(0)
    os.close(write_end)
    with open(read_end) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"error": f"ended with status {status}"}


def resident_bytes(modules: Iterable[str]) -> int:
    """Return the resident memory of this process after an optimizer step of a tiny model.

    The step has no backward pass, since PyTorch refuses backward passes in processes forked after one.
    """
    for module in modules:
        importlib.import_module(module)
    import torch
    from torch import nn

    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Linear(4, 1))
    with torch.no_grad():
        model(torch.zeros(1, 1, 4, 4))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    torch.optim.SGD(model.parameters(), 0.1).step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Write the estimates of cells, given as inputs of ranks, in their order."""
    cells = json.loads(Path(sys.argv[1]).read_text())
    modules = sorted({name for rank_input in cells for name in rank_input["modules"]})
    program_bytes = resident_bytes(modules)
    estimates = [entry | {"program_bytes": program_bytes} for entry in estimate_cells(cells)]
    partial = Path(f"{sys.argv[2]}.partial")
    partial.write_text(json.dumps(estimates, indent=2) + "\n")
    os.replace(partial, sys.argv[2])


if __name__ == "__main__":
    main()
