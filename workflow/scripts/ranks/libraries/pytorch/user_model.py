"""Users' PyTorch modules, built from a Python file in place of a graph (declared/user_models.py).

A module draws its initial weights itself. All ranks seed PyTorch with the same number first, so that they
start from the same weights in every PyTorch framework. Weights are named `module.<path>`, with `/` for the
dots of PyTorch's names. Weight decay applies as in graphs: the ending `/table` marks tables of embeddings,
and `/kernel` all other parameters with two axes or more: weights of matrix products and convolutions.
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.flop_counter import FlopCounterMode

from models.graph import Graph, Operator

CHECKOUT = Path(__file__).resolve().parents[5]
RUNNING = ("running_mean", "running_var")
N_COUNTED_SAMPLES = 2  # batch normalization of one pixel cannot train on one


def build_user_module(operator: Operator) -> nn.Module:
    """Return a new module of the user's class.

    The file can import other files of its folder, which is added to the end of the search path.
    """
    file = CHECKOUT / operator["file"]
    name = f"ringside_own_{file.stem}"
    if name not in sys.modules:
        described = importlib.util.spec_from_file_location(name, file)
        if described is None or described.loader is None:
            raise ImportError(f"{operator['file']} is not a Python file")
        sys.path.append(str(file.parent))
        code = sys.modules[name] = importlib.util.module_from_spec(described)
        described.loader.exec_module(code)
    module = getattr(sys.modules[name], operator["class"])(**operator["arguments"])
    if not isinstance(module, nn.Module):
        raise TypeError(f"{operator['file']}: {operator['class']} made {module!r}, no torch.nn.Module")
    classes = {type(layer).__name__ for layer in module.modules()}
    if unknown := [name for name in operator["blocks"] if name not in classes]:
        raise ValueError(
            f"{operator['file']}: {operator['class']} has no layer of class {unknown[0]} (`blocks`)"
        )
    return module


def own_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return all parameters and buffers of a user's module, by their names (see above).

    DeepSpeed keeps the shape of a sharded parameter in `ds_shape`.
    """
    tables = {id(layer.weight) for layer in module.modules() if isinstance(layer, nn.Embedding)}
    parameters: dict[str, torch.Tensor] = {}
    for name, parameter in module.named_parameters():
        n_axes = len(getattr(parameter, "ds_shape", parameter.shape))
        ending = "/table" if id(parameter) in tables else "/kernel" if n_axes > 1 else ""
        parameters[f"{_own_name(name)}{ending}"] = parameter
    return parameters | {_own_name(name): buffer for name, buffer in module.named_buffers()}


def count_parameters(module: nn.Module) -> int:
    """Return the number of trained parameters, before any of them is sharded."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def module_statistics(module: nn.Module) -> list[str]:
    """Return the names of running means and variances, which ranks average before they validate."""
    return [
        _own_name(f"{path}.{name}" if path else name)
        for path, layer in module.named_modules()
        if isinstance(layer, _NormBase) and layer.track_running_stats
        for name in RUNNING
    ]


def own_units(module: nn.Module, operator: Operator) -> Iterator[list[nn.Module]]:
    """Yield the units of FSDP: instances of the classes listed as blocks, without nested ones."""
    blocks: list[nn.Module] = []
    for layer in module.modules():  # parents first
        if type(layer).__name__ in operator["blocks"] and not any(
            layer is part for block in blocks for part in block.modules()
        ):
            blocks.append(layer)
            yield [layer]


def count_sample_flops(graph: Graph, operator: Operator) -> float | None:
    """Return the operations of forward and backward pass of one sample, by PyTorch's FlopCounterMode.

    A copy on the meta device computes only shapes, which takes little time and no memory. The counter knows
    matrix products, convolutions and attention. Return None if the module cannot be built or called without
    numbers.

    Raises:
        ValueError: If its logits do not have the shape that the samples' labels need.
    """
    shape = graph.shape if graph.vocabulary is not None else (graph.shape[-1], *graph.shape[:-1])
    dtype = torch.float32 if graph.vocabulary is None else torch.int64
    try:
        with torch.device("meta"):
            module = build_user_module(operator).train()
            samples = torch.zeros(N_COUNTED_SAMPLES, *shape, dtype=dtype)
        with FlopCounterMode(display=False) as counter:
            logits = module(samples)
            if isinstance(logits, torch.Tensor):
                logits.float().sum().backward()
    except Exception as error:  # A user's code can raise anything, and can work on a real device.
        print(f"the operations of {operator['class']} are not counted: {type(error).__name__}: {error}")
        return None
    is_tensor, expected = isinstance(logits, torch.Tensor), [N_COUNTED_SAMPLES, *operator.shape]
    if not is_tensor or list(logits.shape) != expected:
        returned = f"logits of shape {list(logits.shape)}" if is_tensor else f"a {type(logits).__name__}"
        raise ValueError(
            f"{operator['file']}: {operator['class']} returns {returned} for {N_COUNTED_SAMPLES} samples; "
            f"expected logits of shape {expected}"
        )
    return counter.get_total_flops() / N_COUNTED_SAMPLES


def _own_name(path: str) -> str:
    return f"module.{path.replace('.', '/')}"
