"""Which epochs of a training are traced, to see what that costs: pairs of neighbours, the other one first in
every second pair.
"""


def is_traced(epoch: int) -> bool:
    """Whether an epoch, from 1, is."""
    pair, place = divmod(epoch - 1, 2)
    return (pair + place) % 2 == 1
