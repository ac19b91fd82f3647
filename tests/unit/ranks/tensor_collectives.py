"""Count bytes of collectives, weights and kept activations of a rank of a tensor axis, and print them as JSON.

python tensor_collectives.py GRAPHS.json RANKS SAMPLES CHECKPOINTING, in the environment of PyTorch. There are
no other ranks: PyTorch's process group `fake` sends nothing.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from models.division import LAYERS, SEQUENCE, VOCABULARY, tensor_parts
from models.graph import from_json
from ranks.libraries.pytorch.model import build
from ranks.libraries.pytorch.trainer import cross_entropy
from ranks.libraries.pytorch_mesh import divide_layers

COLLECTIVES = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")


class Recorder(TorchDispatchMode):
    """Sum the bytes of collectives, each of the larger one of message and result, as in models.collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind is DTensor for kind in types):
            return NotImplemented  # DTensor calls the operators of its parts.
        name = function.name().partition("::")[2]
        if name in COLLECTIVES:
            self.sent[name] += args[0].nbytes * (args[1] if name == "all_gather_into_tensor" else 1)
        return function(*args, **(kwargs or {}))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return a rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def measure(
    raw: dict[str, Any], sharding: str, mesh: Any, samples: int, checkpointing: str
) -> dict[str, Any]:
    """Return the bytes of one forward and backward pass."""
    graph = from_json(raw)
    with torch.device("meta"):
        module = build(graph, checkpointing)
    divide_layers(module, graph, tensor_parts(graph, mesh.size(), sharding), mesh, sharding)
    module.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            local(tensor).zero_()
    own = {local(weight.detach()).untyped_storage().data_ptr() for weight in module.parameters()}
    activations: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = local(tensor.detach()).untyped_storage()
        if storage.data_ptr() not in own:
            activations[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens, recorder = torch.zeros(samples, *graph.shape, dtype=torch.long), Recorder()
    labels = torch.zeros(samples, graph.operators[-1].shape[0], dtype=torch.long)
    with recorder, loss_parallel():
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = cross_entropy(module(tokens), labels)
        local(loss).backward()
        for weight in module.parameters():
            if isinstance(weight.grad, DTensor):
                weight.grad.redistribute(placements=weight.placements)
    return {
        "sent": recorder.sent,
        "parameters": sum(local(weight).nbytes for weight in module.parameters()),
        "embedding_gradient": local(module.get_submodule("embedding").weight.grad).nbytes,
        "activations": sum(activations.values()),
    }


path, n_ranks, n_samples, recomputed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=n_ranks)
axis = init_device_mesh("cpu", (n_ranks,))
print(
    json.dumps(
        {
            name: {
                level: measure(raw, level, axis, n_samples, recomputed)
                for level in (LAYERS, VOCABULARY, SEQUENCE)
            }
            for name, raw in json.loads(Path(path).read_text()).items()
        }
    )
)
