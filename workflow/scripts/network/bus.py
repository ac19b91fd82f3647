"""Convert times of collectives to bus bandwidth."""

from models.collectives import COLLECTIVES


def bus_bandwidth(message_bytes: float, seconds: float, ranks: int, collective: str) -> float:
    """Return the bus bandwidth of a collective in bytes/s: the minimum traffic of a rank divided by the time.

    It is comparable with the rate of a link for any number of ranks. nccl-tests define it in the same way
    (PERFORMANCE.md).
    """
    return COLLECTIVES[collective].sent(ranks) * message_bytes / seconds
