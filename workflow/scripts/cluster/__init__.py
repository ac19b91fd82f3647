"""Slurm clusters: a virtual one on this machine, what a site must have, and whether runs can be started at all."""
