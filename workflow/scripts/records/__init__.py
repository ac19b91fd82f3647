"""Records: read, counted, repeated; made into runs.csv and epochs.csv."""
