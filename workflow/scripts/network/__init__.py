"""Run and model the collective benchmark: collectives of each framework's library with growing messages."""
