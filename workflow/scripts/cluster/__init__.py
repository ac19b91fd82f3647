"""Slurm clusters: a virtual one on this machine, what a site must have, and allocations for campaigns."""
