"""Bare PyTorch models, and the same as they are built from their description, trained in turn: PAIRS -> one
line of JSON.

Each pair gives, for every model, seconds of a training step: [by hand, built].
"""

import json
import sys
import time
from pathlib import Path

import torch
from resnets import resnet_18
from torch import nn
from torch_loop import small_cnn

from models.graph import from_json
from ranks.libraries.pytorch.model import build

STEPS = {"small-cnn": 60, "resnet-18": 3, "efficientnet-b0": 3}
BATCH = 32


class SqueezeExcite(nn.Module):
    """Channels weighed by what two layers make of their means."""

    def __init__(self, channels: int, units: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, units, 1)
        self.expand = nn.Conv2d(units, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = nn.functional.silu(self.reduce(self.pool(x)))
        return x * torch.sigmoid(self.expand(gate))


class Inverted(nn.Module):
    """An inverted bottleneck."""

    def __init__(self, inputs: int, expansion: int, channels: int, stride: int, kernel: int) -> None:
        super().__init__()
        wide = inputs * expansion
        layers: list[nn.Module] = conv_norm(inputs, wide, 1, 1, 1, silu=True) if expansion > 1 else []
        layers += conv_norm(wide, wide, kernel, stride, wide, silu=True)
        layers += [SqueezeExcite(wide, max(1, inputs // 4)), *conv_norm(wide, channels, 1, 1, 1, silu=False)]
        self.layers = nn.Sequential(*layers)
        self.adds = stride == 1 and inputs == channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + x if self.adds else self.layers(x)


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int, groups: int, *, silu: bool
) -> list[nn.Module]:
    """A convolution with batch normalization and, or not, an activation."""
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, 1e-3, 0.01),
    ]
    return [*layers, nn.SiLU()] if silu else layers


def efficientnet_b0() -> nn.Module:
    """With the small stem, for ten classes."""
    layers, inputs = conv_norm(3, 32, 3, 1, 1, silu=True), 32
    for expansion, channels, blocks, stride, kernel in (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
    ):  # fmt: skip
        for block in range(blocks):
            layers.append(Inverted(inputs, expansion, channels, 1 if block else stride, kernel))
            inputs = channels
    layers += conv_norm(320, 1280, 1, 1, 1, silu=True)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 10))


BY_HAND = {"small-cnn": small_cnn, "resnet-18": resnet_18, "efficientnet-b0": efficientnet_b0}


def step_time_s(
    model: nn.Module, optimizer: torch.optim.Optimizer, shape: tuple[int, ...], steps: int
) -> float:
    """Seconds of one training step, the mean of several."""
    images, labels = torch.randn(BATCH, shape[2], shape[0], shape[1]), torch.randint(10, (BATCH,))
    started = time.perf_counter()
    for _ in range(steps):
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter() - started) / steps


def main() -> None:
    torch.set_num_threads(1)
    pairs, graphs = int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    result = {}
    for name, raw in graphs.items():
        graph = from_json(raw)
        models = [BY_HAND[name](), build(graph)]
        sizes = [sum(p.numel() for p in model.parameters()) for model in models]
        assert sizes == [graph.parameters] * 2, f"{name}: {sizes}"
        optimizers = [torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9) for model in models]
        rows = []
        for number in range(pairs + 1):
            order = (0, 1) if number % 2 else (1, 0)
            times = {i: step_time_s(models[i], optimizers[i], graph.shape, STEPS[name]) for i in order}
            rows.append([times[0], times[1]])
        result[name] = rows[1:]  # the first warms up
    print(json.dumps(result))


if __name__ == "__main__":
    main()
