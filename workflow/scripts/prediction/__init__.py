"""Epoch times predicted from model size, one-node runs and collective benchmarks, with errors on held-out cells."""
