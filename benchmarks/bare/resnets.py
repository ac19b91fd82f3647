"""ResNets as a person writes them (He et al., CVPR 2016): of 18 layers for images of 32 pixels, of 50 for
those of 224.
"""

import torch
from torch import nn

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))


class Block(nn.Module):
    """A basic residual block."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = shortcut(inputs, planes, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A bottleneck, with the stride in its 3x3 convolution."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * planes)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = shortcut(inputs, 4 * planes, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        return self.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Around a block: the identity where shapes are the same."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def resnet(
    stem: list[nn.Module], block: type[Block] | type[Bottleneck], counts: tuple[int, ...], classes: int
) -> nn.Module:
    """A stem, four stages, a dense layer."""
    layers, inputs = [*stem], 64
    for (planes, stride), count in zip(STAGES, counts, strict=True):
        for number in range(count):
            layers.append(block(inputs, planes, stride if number == 0 else 1))
            inputs = planes * block.expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def resnet_18(classes: int = 10) -> nn.Module:
    """With the small stem."""
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    return resnet(stem, Block, (2, 2, 2, 2), classes)


def resnet_50(classes: int = 1000) -> nn.Module:
    """With the original stem."""
    stem = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    return resnet(stem, Bottleneck, (3, 4, 6, 3), classes)


RESNETS = {"resnet-18": resnet_18, "resnet-50": resnet_50}
