"""Records of runs: read, count and repeat them, and collect them in runs.csv and epochs.csv."""
