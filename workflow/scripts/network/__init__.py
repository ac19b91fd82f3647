"""Run and model the collective benchmark: collectives of growing size in each framework's library."""
