"""Run a command of the user's own as the training of a run, in place of an adapter of a framework."""
