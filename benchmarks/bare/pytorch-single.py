"""Bare PyTorch on one core (torch_loop)."""

from torch_loop import limit_threads, sgd, small_cnn, train

limit_threads()
model = small_cnn()
train(model, sgd(model))
