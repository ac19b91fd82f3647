"""Clusters: a virtual one on this machine, under Slurm or OAR, what a site must have, and whether runs can be started at all."""
