"""Compute attention by cuDNN's fused kernel."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import Array
from jax.sharding import PartitionSpec as P

from models.graph import Graph
from models.precision import COMPUTES_IN_BFLOAT16
from ranks.libraries.jax.model import Attend
from ranks.worker.devices import vendor

# What cuDNN's fused attention supports on all of its devices.
CUDNN_ATTENTION_CAPABILITY, MAX_CUDNN_HEAD = 8.0, 128


def can_fuse_attention(levels: Mapping[str, Any], graph: Graph, tensor: int) -> bool:
    """Return whether cuDNN's fused kernel computes the model's attention, partitioned by heads over `tensor`.

    It needs bfloat16, a device since Ampere, and a head size that is a multiple of 8.
    """
    (device,) = jax.local_devices()
    return (
        levels["attention"] == "default"
        and levels["precision"] in COMPUTES_IN_BFLOAT16
        and device.platform in ("gpu", "cuda")
        and vendor() == "nvidia"
        and float(device.compute_capability) >= CUDNN_ATTENTION_CAPABILITY
        and all(size % 8 == 0 and size <= MAX_CUDNN_HEAD for size in graph.head_sizes)
        and all(
            operator.key_heads % tensor == 0 for operator in graph.operators if operator.kind == "attention"
        )
    )


def fused_attention(axes: Sequence[str]) -> Attend:
    """Return attention by cuDNN's fused kernel in a replica's step on a mesh with these axes.

    Heads are partitioned along `tensor` here, since the kernel's own partitioning fails within shard_map.
    """

    def attend(query: Array, key: Array, value: Array, causal: bool) -> Array:
        fused = functools.partial(jax.nn.dot_product_attention, is_causal=causal, implementation="cudnn")
        if "tensor" in axes:
            heads = P(None, None, "tensor")
            fused = jax.shard_map(
                fused, in_specs=(heads,) * 3, out_specs=heads, axis_names={"tensor"}, check_vma=False
            )
        return fused(query, key, value)

    return attend
