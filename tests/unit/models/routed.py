"""Compute a mixture of experts by the formula and by PyTorch's layer, in the environment of PyTorch.

python routed.py OUT.npz
"""

import sys

import numpy as np
import torch

from models.graph import Builder, Operator
from ranks.libraries.pytorch.layers import Experts

SAMPLES, LENGTH, UNITS, HIDDEN, N_EXPERTS, TOP = 3, 7, 6, 5, 4, 2
BALANCE, SHARE = 3.0, 0.5
Arrays = dict[str, np.ndarray]


def make_operator(balance: float) -> Operator:
    """Return a mixture of experts of which each takes 4 of the 7 positions at most."""
    builder = Builder("routed", (LENGTH,), "glorot", 5)
    x = builder.embedding(builder.input, UNITS)
    builder.experts(x, N_EXPERTS, HIDDEN, top=TOP, capacity_factor=1.0, balance=balance, name="own")
    return builder.graph().by_name["own"]


def expected_output(own: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs and load by the text of Builder.experts, position by position, in float64."""
    output, load = np.zeros((SAMPLES, LENGTH, UNITS)), np.zeros(N_EXPERTS + 1)
    for sample, positions in enumerate(own["x"]):
        n_taken = np.zeros(N_EXPERTS, int)
        for position, x in enumerate(positions):
            logits = x @ own["router_kernel"]
            chosen = np.argsort(-logits)[:TOP]
            weights = np.exp(logits[chosen]) / np.exp(logits[chosen]).sum()
            for expert, weight in zip(chosen, weights, strict=True):
                if n_taken[expert] == 4:
                    load[-1] += 1
                    continue
                n_taken[expert] += 1
                load[expert] += 1
                gate, up = x @ own["gate_kernel"][expert], x @ own["up_kernel"][expert]
                hidden = gate / (1 + np.exp(-gate)) * up
                output[sample, position] += weight * (hidden @ own["down_kernel"][expert])
    return output, load / load.sum()


def auxiliary_loss(x: np.ndarray, router: np.ndarray, shares: np.ndarray) -> float:
    """Return the loss by Fedus et al., eq. 4, of the shares [samples, experts] of choices."""
    probabilities = np.exp(x @ router)
    probabilities /= probabilities.sum(-1, keepdims=True)
    return float(np.mean([N_EXPERTS * f @ p for f, p in zip(shares, probabilities.mean(1), strict=True)]))


def slope(own: Arrays) -> np.ndarray:
    """Return the gradient of the auxiliary loss with regard to the router, by central differences."""
    x, router = own["x"], own["router_kernel"]
    chosen = np.argsort(-(x @ router))[..., :TOP]
    shares = np.stack([np.bincount(sample.ravel(), minlength=N_EXPERTS) for sample in chosen])
    shares = shares / (LENGTH * TOP)
    gradient, step = np.zeros_like(router), 1e-5
    for place in np.ndindex(router.shape):
        change = np.zeros_like(router)
        change[place] = step
        above, below = (auxiliary_loss(x, router + sign * change, shares) for sign in (1, -1))
        gradient[place] = (above - below) / (2 * step)
    return gradient


def trained_layer(own: Arrays) -> tuple[Experts, torch.Tensor]:
    """Return PyTorch's layer with the gradients of its auxiliary loss alone, and its output in training."""
    layer = Experts(make_operator(BALANCE))
    layer.loss_share = SHARE
    with torch.no_grad():
        layer.router.copy_(torch.from_numpy(own["router_kernel"].T))
        for part in ("gate", "up", "down"):
            getattr(layer.feed_forwards, part).copy_(torch.from_numpy(own[f"{part}_kernel"]))
    output = layer(torch.from_numpy(own["x"]).float())
    (0.0 * output).sum().backward()
    return layer, output.detach()


def main(out: str) -> None:
    """Write expected and actual arrays."""
    random, operator = np.random.default_rng(2), make_operator(BALANCE)
    shapes = {"x": (SAMPLES, LENGTH, UNITS), **operator.weights}
    own = {name: random.normal(size=shape) for name, shape in shapes.items()}
    output, load = expected_output(own)
    layer, actual = trained_layer(own)
    assert layer.router.grad is not None
    np.savez(
        out,
        expected_output=output, actual_output=actual.numpy(),
        expected_load=load, actual_load=layer.load.numpy(),
        expected_slope=BALANCE * SHARE * slope(own), actual_slope=layer.router.grad.numpy().T,
        evaluated=layer.eval()(torch.from_numpy(own["x"]).float()).detach().numpy(),
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
