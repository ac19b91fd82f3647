"""Decide how many replicates each cell gets in a study with an interval target."""
