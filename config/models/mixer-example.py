"""MLP-Mixer (Tolstikhin et al., NeurIPS 2021, figure 1), an example of a PyTorch module of your own."""

import torch
from torch import nn


def make_mlp(units: int, hidden: int) -> nn.Sequential:
    """Return two linear layers with GELU between them."""
    return nn.Sequential(nn.Linear(units, hidden), nn.GELU(), nn.Linear(hidden, units))


class Block(nn.Module):
    """Mix patches, then channels, of a sequence [N, patches, channels]."""

    def __init__(self, patches: int, channels: int) -> None:
        super().__init__()
        self.norm_patches, self.mix_patches = nn.LayerNorm(channels), make_mlp(patches, 2 * patches)
        self.norm_channels, self.mix_channels = nn.LayerNorm(channels), make_mlp(channels, 4 * channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a sequence of the same shape."""
        x = x + self.mix_patches(self.norm_patches(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mix_channels(self.norm_channels(x))


class Mixer(nn.Module):
    """Map images [N, image_channels, height, width] to logits [N, classes]."""

    def __init__(
        self,
        classes: int,
        height: int,
        width: int,
        image_channels: int,
        patch: int,
        channels: int,
        blocks: int,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(image_channels, channels, patch, patch)
        n_patches = (height // patch) * (width // patch)
        self.blocks = nn.Sequential(*(Block(n_patches, channels) for _ in range(blocks)))
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))
