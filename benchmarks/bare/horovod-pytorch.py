"""Bare Horovod with PyTorch (torch_loop); started by horovodrun."""

import horovod.torch as hvd
from torch_loop import limit_threads, sgd, small_cnn, train

limit_threads()
hvd.init()
model = small_cnn()
optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
train(model, optimizer, hvd.rank(), hvd.size(), hvd.barrier)
hvd.shutdown()
