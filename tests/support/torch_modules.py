"""PyTorch modules for tests of modules of the user's own."""

import torch
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


def make_embedding(vocabulary: int) -> nn.Module:
    """Return a table of embeddings and a dense layer, for logits of the next token."""
    return nn.Sequential(nn.Embedding(vocabulary, 16), nn.Linear(16, vocabulary))


class Pair(nn.Module):
    """Return a tuple in place of logits."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.layers = make_normalized(classes, channels)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and images."""
        return self.layers(images), images
