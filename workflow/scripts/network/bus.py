"""What a time of a collective says of the links."""

from models.collectives import COLLECTIVES


def bus_bandwidth(message_bytes: float, seconds: float, ranks: int, collective: str) -> float:
    """Bus bandwidth of one collective in bytes/s: what a rank must send of a message at least, over seconds.

    So the number can be held against a link's rate, whatever the number of ranks. The name is that of NCCL's tests
    (PERFORMANCE.md).
    """
    return COLLECTIVES[collective].sent(ranks) * message_bytes / seconds
