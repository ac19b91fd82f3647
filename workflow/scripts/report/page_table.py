"""Tables of text, with what the page's template needs to lay them out."""

from dataclasses import dataclass

from analysis.level_words import title
from declared.factors import factor_names

MAX_UNWRAPPED = 44  # Characters; longer cells are wrapped.
BROAD_FROM = 130  # Characters of a row, with COLUMN_GAP between columns.
COLUMN_GAP = 2
MAX_PHONE_COLUMNS = 10  # A phone hides secondary columns of tables with more.
FACTOR_TITLES = frozenset(map(title, factor_names()))


@dataclass(frozen=True)
class PageTable:
    """A table of text as the page shows it.

    Attributes:
        caption: Its caption.
        header: Names of the columns.
        rows: Texts of the cells.
        left: Names of left-aligned columns.
        name: Name of the table of results that it shows; "" for others.
        notes: Notes below it.
        is_matrix: Whether rows and columns are levels, so that it stays a table on a phone.
    """

    caption: str
    header: list[str]
    rows: list[list[str]]
    left: tuple[str, ...]
    name: str = ""
    notes: tuple[str, ...] = ()
    is_matrix: bool = False

    @property
    def kinds(self) -> list[str]:
        """Return the class of each column: number (right), prose (left, wrapped), empty (left)."""
        return [self._kind(name, index) for index, name in enumerate(self.header)]

    @property
    def secondary(self) -> list[bool]:
        """Return which columns phones show on demand: numbers other than levels and the first interval."""
        if len(self.header) <= MAX_PHONE_COLUMNS:
            return [False] * len(self.header)
        has_interval = [any("[" in row[index] for row in self.rows) for index in range(len(self.header))]
        first = has_interval.index(True) if True in has_interval else None
        return [
            name not in (*self.left, *FACTOR_TITLES) and index != first
            for index, name in enumerate(self.header)
        ]

    @property
    def is_broad(self) -> bool:
        """Return whether the table needs a small font."""
        words = [max(map(len, name.split()), default=0) for name in self.header]
        return (
            sum(
                max(word, min(MAX_UNWRAPPED, self._longest(index))) + COLUMN_GAP
                for index, word in enumerate(words)
            )
            > BROAD_FROM
        )

    def _kind(self, name: str, index: int) -> str:
        if name not in self.left:
            return "number"
        return "prose" if self._longest(index) > MAX_UNWRAPPED else ""

    def _longest(self, index: int) -> int:
        return max((len(row[index]) for row in self.rows), default=0)
