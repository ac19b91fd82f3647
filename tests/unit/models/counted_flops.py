"""Count operations of one forward and backward pass by PyTorch's FlopCounterMode, per sample.

python counted_flops.py GRAPHS.json
"""

import json
import sys
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from models.graph import from_json
from ranks.libraries.pytorch.model import build

SAMPLES = 2
counts = {}
for name, raw in json.loads(Path(sys.argv[1]).read_text()).items():
    graph = from_json(raw)
    module = build(graph).train()
    if graph.vocabulary:
        samples = torch.zeros(SAMPLES, *graph.shape, dtype=torch.long)
    else:
        samples = torch.rand(SAMPLES, *graph.shape).permute(0, 3, 1, 2)
    # The counter knows the products of attention, but not the fused kernels of processors.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        logits = module(samples)
        forward = counter.get_total_flops()
        logits.square().sum().backward()
    counts[name] = (forward / SAMPLES, (counter.get_total_flops() - forward) / SAMPLES)
print(json.dumps(counts))
