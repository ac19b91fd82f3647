"""Figures of measured runs, each kind in a module; drawn as a study declares them."""
