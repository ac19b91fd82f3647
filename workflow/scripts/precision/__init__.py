"""Precision: how precise a study's numbers are, and which of its cells get more runs so that they are as precise as it wants."""
