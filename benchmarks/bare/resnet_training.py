"""Bare mixed-precision training of a ResNet: DEVICE MODEL SIDE CLASSES BATCH STEPS EPOCHS COMPILER -> a line
of JSON.

Autocast to bfloat16, channels last, torch.compile where COMPILER is torch-compile. Images are drawn once and
lie in pinned memory; each step copies a batch of bytes to the device.
"""

import json
import sys
import time

import torch
from resnets import RESNETS
from torch import nn

name, side, classes, batch, steps, epochs = sys.argv[2], *map(int, sys.argv[3:8])
device, compiled = torch.device(sys.argv[1]), sys.argv[8] == "torch-compile"
on_gpu = device.type == "cuda"
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True

pool = [
    (torch.randint(256, (batch, side, side, 3), dtype=torch.uint8), torch.randint(classes, (batch,)))
    for _ in range(4)
]
if on_gpu:
    pool = [(images.pin_memory(), labels.pin_memory()) for images, labels in pool]
mean = torch.full((1, 3, 1, 1), 127.5, device=device)
std = torch.full((1, 3, 1, 1), 73.9, device=device)

model = RESNETS[name](classes).to(device, memory_format=torch.channels_last)
trained = torch.compile(model) if compiled else model
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

epoch_times_s = []
for _ in range(epochs):
    started = time.perf_counter()
    loss_sum, correct = torch.zeros((), device=device), torch.zeros((), dtype=torch.int64, device=device)
    for step in range(steps):
        images, labels = pool[step % len(pool)]
        x, y = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        x = (x.permute(0, 3, 1, 2).float() - mean) / std
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            logits = trained(x)
            loss = criterion(logits, y)
        loss.backward()
        optimizer.step()
        loss_sum += loss.detach() * batch
        correct += (logits.argmax(1) == y).sum()
    if on_gpu:
        torch.cuda.synchronize()
    train_loss = loss_sum.item() / (steps * batch)
    epoch_times_s.append(time.perf_counter() - started)

print(json.dumps({
    "rank": 0, "epoch_times_s": epoch_times_s, "samples": steps * batch, "train_loss": train_loss,
    "parameters": sum(p.numel() for p in model.parameters()),
    "device_memory_peak_bytes": torch.cuda.max_memory_allocated(device) if on_gpu else None,
}))  # fmt: skip
