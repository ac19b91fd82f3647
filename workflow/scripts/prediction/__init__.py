"""Epoch times predicted from a model's size, one-node runs and the network's sweep, held against what was not used to fit."""
