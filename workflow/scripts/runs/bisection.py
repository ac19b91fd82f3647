"""Search the largest of some ascending sizes that fits: by doubling until one does not, then by bisection.

If an estimate is known, the search begins there and moves away from it in growing steps.

The result is smaller than the largest size that fitted, by MARGIN. A batch size does not determine the
memory: how an allocator's blocks fragment, which workspaces a library chooses by timing, and what a driver or
another process uses differ by a few percent between runs. A search tries every size only once, and training
at the limit would make some replicates fail. The chosen size is tried, too.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FIRST = 16  # the first size to try without an estimate
MARGIN = 0.05  # The chosen size is smaller than the largest size that fitted, by this share of it.


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        chosen: The size to use; None if none fits.
        largest: The largest size that fitted, below the smallest larger one that did not.
    """

    chosen: int | None
    largest: int | None


def find_largest(
    sizes: Sequence[int], fits: Callable[[int], bool], estimated: int | None = None
) -> SearchResult:
    """Return the largest size that fits, less the margin.

    Each size is tried at most once. If a size fits although a smaller one does not, the result is still a
    size that fitted.

    Args:
        sizes: Ascending sizes, at least one.
        fits: Returns whether a size fits.
        estimated: An estimate of the largest size that fits, if one is known.
    """
    tried: dict[int, bool] = {}

    def is_fitting(index: int) -> bool:
        if index not in tried:
            tried[index] = fits(sizes[index])
        return tried[index]

    last = len(sizes) - 1
    # Indices of the largest size that fits, and of the smallest size above it that does not.
    below, above = -1, len(sizes)
    index, stride = min(bisect_left(sizes, estimated or FIRST), last), 1
    while (above > last and below < last) or (estimated and below < 0 < above):
        if is_fitting(index):
            following = index + stride if estimated else bisect_left(sizes, 2 * sizes[index])
            below, index = index, min(following, last)
        else:
            above, index = index, max(index - stride, 0)
        stride *= 2
    while above - below > 1:
        middle = (below + above) // 2
        if is_fitting(middle):
            below = middle
        else:
            above = middle
    if below < 0:
        return SearchResult(None, None)
    if above > last:
        return SearchResult(sizes[below], sizes[below])
    indices = range(bisect_right(sizes, (1 - MARGIN) * sizes[below]) - 1, -1, -1)
    chosen = next((index for index in indices if is_fitting(index)), below)
    return SearchResult(sizes[chosen], sizes[below])
