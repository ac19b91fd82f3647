"""Make the optimizer that updates a module, and describe it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import _default_to_fused_or_foreach

from models.graph import Graph, is_decayed
from ranks.libraries.pytorch.model import tensors


def make_optimizer(
    module: nn.Module,
    graph: Graph,
    levels: dict[str, Any],
    rate: float,
    shard: Callable[[nn.Parameter], torch.Tensor] = lambda parameter: parameter,
) -> torch.optim.Optimizer:
    """Return the optimizer of a module; it updates `shard(parameter)` of each parameter."""
    weight_tensors = tensors(module, graph)
    trained = {
        name: shard(tensor) for name, tensor in weight_tensors.items() if isinstance(tensor, nn.Parameter)
    }
    return optimizer_of({name: [tensor] for name, tensor in trained.items()}, levels, rate)


def adam_settings(levels: dict[str, Any]) -> dict[str, Any]:
    """Return betas and epsilon of Adam as PyTorch's arguments."""
    return {"betas": (levels["adam_beta1"], levels["adam_beta2"]), "eps": levels["adam_epsilon"]}


def optimizer_of(
    weights: Mapping[str, Sequence[torch.Tensor]], levels: dict[str, Any], rate: float
) -> torch.optim.Optimizer:
    """Return SGD with momentum, Adam (Kingma & Ba 2015) or AdamW (Loshchilov & Hutter 2019).

    Args:
        weights: Tensors to update, by the names of weights in the graph; {} if this rank has none.
        levels: Levels of the factors.
        rate: Learning rate.
    """
    decay, level = levels["weight_decay"], levels["decayed_weights"]
    tensors_by_decay: dict[float, list[torch.Tensor]] = {decay: [], 0.0: []}
    for name, weight_tensors in weights.items():
        tensors_by_decay[decay if is_decayed(name, level) else 0.0] += weight_tensors
    groups: list[dict[str, Any]] = [
        {"params": weight_tensors, "weight_decay": group_decay}
        for group_decay, weight_tensors in tensors_by_decay.items()
        if weight_tensors
    ]
    if not groups:  # PyTorch refuses an optimizer without parameters.
        groups = [{"params": [torch.zeros(0, requires_grad=True)]}]
    match levels["optimizer"]:
        case "adam":
            return torch.optim.Adam(groups, rate, **adam_settings(levels))
        case "adamw":
            return torch.optim.AdamW(groups, rate, **adam_settings(levels))
    return torch.optim.SGD(groups, rate, momentum=levels["momentum"])


def optimizer_implementation(optimizer: Any) -> str:
    """Return name and implementation of an optimizer: fused, foreach (kernels of many tensors) or for-loop.

    Libraries that wrap PyTorch's optimizer keep it as the attribute `optimizer`, or derive from its class.
    """
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    kind = next(base for base in type(optimizer).__mro__ if base.__module__.startswith("torch."))
    if kind is torch.optim.Optimizer:  # A class of another library has its own kernels.
        return f"{type(optimizer).__module__.partition('.')[0]} {type(optimizer).__name__}"
    group = max(optimizer.param_groups, key=lambda group: len(group["params"]))
    fused, foreach = group.get("fused"), group.get("foreach")
    if fused is None and foreach is None:
        fused, foreach = _default_to_fused_or_foreach(group["params"], False)
    return f"torch.optim.{kind.__name__}, {'fused' if fused else 'foreach' if foreach else 'for-loop'}"


def norm_over_ranks(
    weights: Sequence[torch.Tensor], n_copies: Sequence[int], device: torch.device
) -> torch.Tensor:
    """Return the L2 norm of the gradients of all ranks' weights, each counted once; collective.

    Args:
        weights: This rank's weights, or its shards of them, with gradients.
        n_copies: For each weight, the number of ranks that have the same gradient.
        device: The rank's device.
    """
    square = torch.zeros((), device=device)
    if weights:
        norms = torch.stack(torch._foreach_norm([weight.grad for weight in weights], 2, torch.float32))
        square += (norms.square() / torch.tensor(n_copies, device=device)).sum()
    dist.all_reduce(square)
    return square.sqrt()
