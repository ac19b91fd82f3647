"""Lower JAX's fused attention for a CUDA device that is not there, and print the calls of kernels as JSON.

It runs in the environment of JAX. What JAX asks the device is answered as an A100 with cuDNN 9.10 would.
"""

import json
import os
from types import SimpleNamespace
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax._src.cudnn.fused_attention_stablehlo as kernel
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from models.graph import Builder
from ranks.libraries.jax import attention as cudnn
from ranks.libraries.jax.attention import can_fuse_attention, fused_attention

CAPABILITY = 8.0
kernel.check_cudnn_version = lambda: 91000
kernel.check_compute_capability = lambda capability: float(capability) <= CAPABILITY
kernel.is_cuda_compute_capability_equal = lambda capability: float(capability) == CAPABILITY


def calls(sizes: dict[str, int]) -> list[str]:
    """Return the kernels that attention and its gradients call in a replica's step on a mesh."""
    attend = fused_attention(tuple(sizes))

    def gradients(query: Any, key: Any, value: Any) -> Any:
        def loss(*arrays: Any) -> Any:
            return attend(*arrays, True).astype(jnp.float32).sum()

        return jax.grad(loss, (0, 1, 2))(query, key, value)

    mesh = Mesh(np.array(jax.devices()).reshape(list(sizes.values())), tuple(sizes))
    step = jax.shard_map(
        gradients, mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}, check_vma=False
    )
    heads = jax.ShapeDtypeStruct((8, 16, 4, 16), jnp.bfloat16)
    text = jax.jit(step).trace(heads, heads, heads).lower(lowering_platforms=("cuda",)).as_text()
    lines = [line for line in text.splitlines() if "custom_call" in line]
    return sorted({line.split("@")[1].split("(")[0] for line in lines})


def can_fuse(
    attention: str = "default",
    precision: str = "amp",
    platform: str = "gpu",
    maker: str = "nvidia",
    capability: str = "8.0",
    units: int = 64,
    tensor: int = 1,
) -> bool:
    """Return whether a model of four heads is computed by cuDNN's kernel on such a device."""
    device = SimpleNamespace(platform=platform, compute_capability=capability)
    cudnn.jax = SimpleNamespace(local_devices=lambda: [device])
    cudnn.vendor = lambda: maker
    builder = Builder("model", (16,), "glorot", 5)
    builder.attention(builder.embedding(builder.input, units), 4)
    return can_fuse_attention({"attention": attention, "precision": precision}, builder.graph(), tensor)


lowered = {"data": calls({"data": 4}), "data, tensor": calls({"data": 2, "tensor": 2})}
fused = {
    "default": can_fuse(),
    "unfused": can_fuse(attention="unfused"),
    "float32": can_fuse(precision="tf32"),
    "processor": can_fuse(platform="cpu"),
    "AMD": can_fuse(maker="amd"),
    "Volta": can_fuse(capability="7.0"),
    "head of 12": can_fuse(units=48),
    "head of 136": can_fuse(units=544),
    "heads over 3 ranks": can_fuse(tensor=3),
}
print(json.dumps({"calls": lowered, "fused": fused}))
