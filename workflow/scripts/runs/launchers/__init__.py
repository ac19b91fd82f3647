"""Ways to start the ranks of a run, one module each: local, slurm, oar, pbs, flux."""
