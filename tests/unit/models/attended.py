"""Compute attention and its gradients by the formula and with PyTorch's kernels, in the environment of PyTorch.

python attended.py OUT.npz
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from models.graph import Builder, Graph, Operator, Rotary

SAMPLES, LENGTH, UNITS, HEADS = 2, 9, 16, 2
MEMORY_LENGTH, MEMORY_UNITS = 7, 12
CASES = ("causal", "all", "cross", "grouped")
GROUPED: dict[str, Any] = {  # of heads of four units, the pairs turn 2.5 and 0.8 times in 16 positions
    "heads": 4,
    "key_heads": 2,
    "rotary": Rotary(10.0, factor=4.0, original_length=16),
    "bias": False,
    "causal": True,
}
ANGLES = (2 / np.pi, 10**-0.5 / 4)  # between neighbours, of these pairs, by hand
Arrays = dict[str, np.ndarray]


def graph_of(case: str) -> Graph:
    """Return a model that ends with an attention.

    It is causal, of all positions, to another sequence, or grouped as that of Llama.
    """
    builder = Builder(case, (LENGTH,), "glorot", 5)
    queries = builder.embedding(builder.input, UNITS)
    memory = builder.steps(builder.embedding(builder.input, MEMORY_UNITS), 0, MEMORY_LENGTH)
    if case == "grouped":
        builder.attention(queries, name="own", **GROUPED)
        return builder.graph()
    builder.attention(
        queries, HEADS, to=memory if case == "cross" else "", causal=case == "causal", name="own"
    )
    return builder.graph()


def inputs_of(case: str) -> Arrays:
    """Return queries, memory, weights and the factors of the outputs in a loss."""
    random, operator = np.random.default_rng(3), graph_of(case).by_name["own"]
    shapes = {
        "x": (SAMPLES, LENGTH, UNITS),
        "to": (SAMPLES, MEMORY_LENGTH, MEMORY_UNITS) if case == "cross" else (SAMPLES, LENGTH, UNITS),
        "factors": (SAMPLES, LENGTH, UNITS),
        **operator.weights,
    }
    return {name: random.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def expected_output(operator: Operator, own: Arrays) -> np.ndarray:
    """Return the output by the formula (Vaswani et al. 2017, section 3.2), head by head, in float64."""
    exact = {name: value.astype(float) for name, value in own.items()}

    def projected(part: str, inputs: np.ndarray) -> list[np.ndarray]:
        product = inputs @ exact[f"{part}_kernel"] + exact.get(f"{part}_bias", 0)
        heads = np.split(product, product.shape[-1] // operator.head_size, -1)
        if part != "query":
            heads = [head for head in heads for _ in range(operator["heads"] // len(heads))]
        if "rotary" not in operator.settings or part == "value":
            return heads
        turns = np.exp(1j * np.outer(np.arange(LENGTH), ANGLES))
        pairs = [(head[..., :2] + 1j * head[..., 2:]) * turns for head in heads]
        return [np.concatenate([pair.real, pair.imag], -1) for pair in pairs]

    attended = []
    for query, key, value in zip(
        projected("query", exact["x"]),
        *(projected(part, exact["to" if len(operator.inputs) > 1 else "x"]) for part in ("key", "value")),
        strict=True,
    ):
        scores = query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1])
        if operator["causal"]:
            scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        attended.append(weights / weights.sum(-1, keepdims=True) @ value)
    product: np.ndarray = np.concatenate(attended, -1) @ exact["output_kernel"]
    return product + exact.get("output_bias", 0)


def run_pytorch(operator: Operator, own: Arrays) -> Iterator[tuple[str, Arrays]]:
    """Yield the results of the fused kernel and of the unfused one, chosen as trainers choose them."""
    import torch

    from models.initial import rotary_tables
    from ranks.libraries.pytorch.device import FUSED_ATTENTION
    from ranks.libraries.pytorch.layers import Attention, attention_kernel

    for level in ("default", "unfused"):
        for enable in FUSED_ATTENTION:
            enable(level != "unfused")
        tensors = {name: torch.from_numpy(value).requires_grad_() for name, value in own.items()}
        module = Attention(operator)
        weights = {
            f"{name.removesuffix('_kernel')}.weight": tensors[name].T
            for name in operator.weights
            if name.endswith("_kernel")
        } | {
            f"{name.removesuffix('_bias')}.bias": tensors[name]
            for name in operator.weights
            if name.endswith("_bias")
        }
        to = tensors["to"] if len(operator.inputs) > 1 else None
        tables = torch.from_numpy(rotary_tables(operator)) if "rotary" in operator.settings else None
        output = torch.func.functional_call(module, weights, (tensors["x"], to), {"rotary": tables})
        (output * tensors["factors"]).sum().backward()
        name = attention_kernel(operator, own["to"].shape[1], torch.float32, torch.device("cpu"))
        gradients = {key: tensors[key].grad for key in own if key != "factors"}
        yield (
            name,
            {"output": output.detach().numpy()}
            | {key: gradient.numpy() for key, gradient in gradients.items() if gradient is not None},
        )


def main(out: Path) -> None:
    """Write CASE.IMPLEMENTATION.ARRAY for the output and the gradient of each input and weight."""
    results = {}
    for case in CASES:
        operator, own = graph_of(case).by_name["own"], inputs_of(case)
        results[f"{case}.formula.output"] = expected_output(operator, own)
        for name, arrays in run_pytorch(operator, own):
            results |= {
                f"{case}.{name}.{key}": np.asarray(array)
                for key, array in arrays.items()
                if key != "factors" and not (key == "to" and case != "cross")
            }
    np.savez(out, **results)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
