"""Figures of measured runs: `draw` draws one, `kinds` has a module for each kind, the rest is shared."""
