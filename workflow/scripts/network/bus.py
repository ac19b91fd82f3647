"""What a time of an all-reduce says of the links."""


def bus_bandwidth(message_bytes: float, seconds: float, ranks: int) -> float:
    """Bus bandwidth of one all-reduce in bytes/s: 2 (n - 1) / n x bytes / seconds.

    A rank must send that many bytes at least (Patarasuk & Yuan, J. Parallel Distrib. Comput. 69, 2009, section 3), so that
    the number can be held against a link's rate, whatever n is. The name is that of NCCL's tests (PERFORMANCE.md).
    """
    return 2 * (ranks - 1) / ranks * message_bytes / seconds
