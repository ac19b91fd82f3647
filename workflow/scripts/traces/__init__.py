"""Traced runs: where the time of a step goes, what of the exchange is exposed, and what limits a cell."""
