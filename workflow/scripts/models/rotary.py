"""Compute the angles of rotary positions, once for all libraries."""

import math

import numpy as np

from models.graph import Operator, Rotary

SLOW_TURNS, QUICK_TURNS = 1.0, 4.0  # in Rotary.original_length positions, as in Meta's code of Llama 3.1


def rotary_tables(operator: Operator) -> np.ndarray:
    """Return cosines and sines for an attention with rotary positions, float32 [2, length, head size / 2].

    A head [.., x, y] with halves x and y becomes [.., x cos - y sin, y cos + x sin].
    """
    rotary = Rotary(**operator["rotary"])
    angles = np.outer(np.arange(operator.shape[0]), frequencies(rotary, operator.head_size))
    return np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)


def frequencies(rotary: Rotary, head_size: int) -> np.ndarray:
    """Return the angle between neighbouring positions of each pair of units, in radians."""
    plain = rotary.base ** (-np.arange(0, head_size, 2) / head_size)
    n_turns = rotary.original_length * plain / (2 * math.pi)
    kept = np.clip((n_turns - SLOW_TURNS) / (QUICK_TURNS - SLOW_TURNS), 0, 1)
    return plain * (kept + (1 - kept) / rotary.factor)
