"""Run a cluster of network namespaces on this machine under Slurm or OAR."""
