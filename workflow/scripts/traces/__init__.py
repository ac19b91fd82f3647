"""Traced runs: where the time of a step goes, which communication is exposed, and what limits a cell."""
