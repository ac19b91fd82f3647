"""Bare PyTorch DistributedDataParallel (torch_loop): RANK, WORLD_SIZE, MASTER_* as torchrun sets them."""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_loop import limit_threads, sgd, small_cnn, train

limit_threads()
dist.init_process_group("gloo")
model = DistributedDataParallel(small_cnn(), gradient_as_bucket_view=True)
train(model, sgd(model), dist.get_rank(), dist.get_world_size(), dist.barrier)
dist.destroy_process_group()
