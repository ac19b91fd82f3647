"""Bare PyTorch DistributedDataParallel, one core a rank: DATA BATCH EPOCHS.

RANK, WORLD_SIZE, MASTER_* as torchrun sets them.
"""

import json
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

data, batch, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
torch.set_num_interop_threads(1)
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()

images = torch.from_numpy(np.load(f"{data}/train/images.npy")).float().reshape(-1, 1, 8, 8)
images = (images - images.mean()) / images.std()
labels = torch.from_numpy(np.load(f"{data}/train/labels.npy"))

model = DistributedDataParallel(
    nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    ),
    gradient_as_bucket_view=True,
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

epoch_times_s = []
for _ in range(epochs):
    dist.barrier()
    started = time.perf_counter()
    loss_sum, correct, samples = torch.zeros(()), torch.zeros((), dtype=torch.int64), 0
    for chosen in torch.randperm(len(labels))[rank::ranks].split(
        batch
    ):  # one seed, so one order on all ranks
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

parameters = sum(p.numel() for p in model.parameters())
print(json.dumps({
    "rank": rank, "epoch_times_s": epoch_times_s, "samples": samples, "parameters": parameters,
    "train_loss": train_loss, "train_accuracy": train_accuracy,
}))  # fmt: skip
dist.destroy_process_group()
