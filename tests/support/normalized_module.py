"""A PyTorch module with running statistics, for tests of modules of the user's own."""

from torch import nn


def make_normalized(classes: int, channels: int) -> nn.Module:
    """Return a convolution and a dense layer with batch normalization of images and of vectors."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.BatchNorm1d(32),
        nn.Linear(32, classes),
    )
