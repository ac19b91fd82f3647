"""Search the largest of some ascending sizes that fits: by doubling until one does not, then by bisection.

Where the answer is estimated, the search begins there and moves away from it in growing steps.

The answer is smaller than the largest size that fitted, by MARGIN. Memory is no constant of a batch size: how
an allocator's blocks fragment, which workspaces a library chooses by timing, and what a driver or another
process holds differ from run to run by a few percent, while a search tries every size once. Training at the
edge would make some replicates fail, so what is chosen is tried itself, too.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FIRST = 16  # the first size that is tried
MARGIN = 0.05  # of the largest size that fitted


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        chosen: The size to use; None if none fits.
        largest: The largest size that fitted before the first one above it that did not.
    """

    chosen: int | None
    largest: int | None


def find_largest(
    sizes: Sequence[int], fits: Callable[[int], bool], estimated: int | None = None
) -> SearchResult:
    """Return the largest size that fits, less the margin.

    Each size is tried at most once. If sizes fit and do not fit in turns, the answer is one that fitted, and
    a larger one did not.

    Args:
        sizes: Ascending sizes, at least one.
        fits: Return whether a size fits.
        estimated: About the largest that fits, if that is known.
    """
    tried: dict[int, bool] = {}

    def is_fitting(place: int) -> bool:
        if place not in tried:
            tried[place] = fits(sizes[place])
        return tried[place]

    last = len(sizes) - 1
    below, above = -1, len(sizes)  # places: the largest that fits, and the smallest above it that does not
    place, stride = min(bisect_left(sizes, estimated or FIRST), last), 1
    while (above > last and below < last) or (estimated and below < 0 < above):
        if is_fitting(place):
            following = place + stride if estimated else bisect_left(sizes, 2 * sizes[place])
            below, place = place, min(following, last)
        else:
            above, place = place, max(place - stride, 0)
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
    places = range(bisect_right(sizes, (1 - MARGIN) * sizes[below]) - 1, -1, -1)
    chosen = next((place for place in places if is_fitting(place)), below)
    return SearchResult(sizes[chosen], sizes[below])
