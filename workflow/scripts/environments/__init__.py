"""Environments: the software of each framework, from locks and recorded hashes to a tested interpreter."""
