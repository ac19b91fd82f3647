"""Run inside PyTorch's environment: memory of random strategies, as storages of the executor and as planned.

python -m strategy_storages RANKS COUNT MODEL... prints for each model and seed, as measured and as the planner
counts them, the bytes of each rank's parameters, and of its buffers and what lives between its two passes.
"""

import gc
import json
import sys
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from any_strategy import BATCH, MODELS, _batch, _fold_devices
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models.graph import Graph
from models.layout import Layout, lay_out
from models.named import graph
from models.soap import divide
from models.strategy import Part
from ranks.libraries.pytorch.model import build, tensors
from ranks.libraries.pytorch_strategy import Runner
from strategies import engine
from strategies.costs import PartCost
from strategies.problem import pose
from strategies.topology import DeviceRates, LinkTier, Topology

NORMALIZED = {name: (name, (32, 32, 3), 10) for name in ("resnet-18", "efficientnet-b0")}


class Storages(TorchDispatchMode):
    """Count the bytes of live storages that operators have returned."""

    def __init__(self, uncounted: Iterable[torch.Tensor]) -> None:
        """Do not count the storages of `uncounted` tensors."""
        super().__init__()
        self.seen = weakref.WeakSet(tensor.untyped_storage() for tensor in uncounted)
        self.n_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See TorchDispatchMode."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                if storage not in self.seen:
                    self.seen.add(storage)
                    self.n_bytes += storage.nbytes()
                    weakref.finalize(storage, self._free, storage.nbytes())
        return result

    def _free(self, n_bytes: int) -> None:
        self.n_bytes -= n_bytes


def measure(model: Graph, layout: Layout, rank: int) -> tuple[int, int]:
    """Return the bytes of a rank's parameters, and of its buffers and activations between the two passes."""
    runner = Runner(model, layout, rank, torch.device("cpu"), tensors(build(model), model))
    samples, labels = _batch(model, np.random.default_rng(3), runner.sample_range)
    samples = samples.float() if model.vocabulary is None else samples
    parameters = [weight for shard in runner.shards.values() for weight in shard.parameters()]
    buffers = [buffer for shard in runner.shards.values() for buffer in shard.buffers()]
    storages = Storages([samples, labels, *parameters, *buffers])
    with storages:
        outputs = runner.forward(samples, labels)
        del outputs
        runner._sent.clear()  # messages under way
        gc.collect()
        held_bytes = storages.n_bytes
    parameter_bytes = {id(weight): weight.nbytes for weight in parameters}
    return sum(parameter_bytes.values()), held_bytes + sum(buffer.nbytes for buffer in buffers)


def plan(model: Graph, strategy: Mapping[str, Part], ranks: int) -> list[tuple[int, int]]:
    """Return the same bytes of all ranks, as the planner counts them."""
    topology = Topology(DeviceRates(1e12, 1e11, 1e15), (LinkTier(ranks, 1e9),))
    counts = []
    for n_numbers in (0, 1):
        posed = pose(
            divide(model, BATCH),
            topology,
            lambda *_: PartCost(1, 1, 0),
            2 * ranks,
            numbers_of_parameter=n_numbers,
        )
        state = posed.state(strategy)
        engine.simulate_strategy(posed.arrays, state)
        counts.append(state.used_bytes.tolist())
    return [(full - bare, bare) for bare, full in zip(*counts, strict=True)]


def main() -> None:
    """Print a line for each model and seed."""
    torch.set_num_threads(1)
    ranks, seeds, names = int(sys.argv[1]), range(int(sys.argv[2])), sys.argv[3:]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    for name in names:
        model = graph(*(MODELS | NORMALIZED)[name])
        for seed in seeds:
            strategy = _fold_devices(divide(model, BATCH), ranks, seed)
            layout = lay_out(model, BATCH, strategy)
            measured = [measure(model, layout, rank) for rank in range(ranks)]
            planned = plan(model, strategy, ranks)
            n_lstms = sum(len(strategy[layer.name].devices) for layer in layout.space.layers if layer.chain)
            line = {"model": name, "seed": seed, "n_lstms": n_lstms}
            print(json.dumps({**line, "measured": measured, "planned": planned}), flush=True)


if __name__ == "__main__":
    main()
