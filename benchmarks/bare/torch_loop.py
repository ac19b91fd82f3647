"""What the bare PyTorch loops share: the data, the model and the epochs, on one core a rank.

Their arguments are DATA BATCH EPOCHS. Each rank prints one line of JSON with the seconds of every epoch.
"""

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn


def limit_threads() -> None:
    """One thread, and the same seed on all ranks."""
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True


def small_cnn() -> nn.Module:
    """For images of 8 x 8 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int = 0,
    ranks: int = 1,
    barrier: Callable[[], None] = lambda: None,
) -> None:
    """Train all epochs, each from a barrier on, and print the line of this rank."""
    data, batch, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    images = torch.from_numpy(np.load(f"{data}/train/images.npy")).float().reshape(-1, 1, 8, 8)
    images = (images - images.mean()) / images.std()
    labels = torch.from_numpy(np.load(f"{data}/train/labels.npy"))
    criterion = nn.CrossEntropyLoss()
    epoch_times_s = []
    for _ in range(epochs):
        barrier()
        started = time.perf_counter()
        loss_sum, correct, samples = torch.zeros(()), torch.zeros((), dtype=torch.int64), 0
        order = torch.randperm(len(labels))  # one seed, so one order on all ranks
        for chosen in order[rank::ranks].split(batch):
            x, y = images[chosen], labels[chosen]
            optimizer.zero_grad()
            logits = model(x)
            loss = criterion(logits, y)
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach() * len(y)
            correct += (logits.argmax(1) == y).sum()
            samples += len(y)
        train_loss, train_accuracy = loss_sum.item() / samples, correct.item() / samples
        epoch_times_s.append(time.perf_counter() - started)
    print(json.dumps({
        "rank": rank, "epoch_times_s": epoch_times_s, "samples": samples,
        "parameters": sum(p.numel() for p in model.parameters()),
        "train_loss": train_loss, "train_accuracy": train_accuracy,
    }))  # fmt: skip
