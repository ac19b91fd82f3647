"""Records: read, counted and repeated; collected in runs.csv and epochs.csv."""
