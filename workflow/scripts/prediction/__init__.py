"""Epoch times predicted from model size, one-node runs and benchmarks, with errors on held-out cells."""
