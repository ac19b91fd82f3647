"""What is to be measured, before anything runs: the design, each run's key, sweeps, cost, what jobs ask of a scheduler."""
