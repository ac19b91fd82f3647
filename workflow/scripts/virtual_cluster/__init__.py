"""A virtual cluster on this machine, under Slurm or OAR: nodes are network namespaces. A test rig: no other stage imports it."""
