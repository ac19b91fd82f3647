"""Parallelization strategies: how each layer is partitioned and placed, searched by simulating a step."""
