"""Measure the precision of a study, and decide which cells get more runs to reach its target."""
