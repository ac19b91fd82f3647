"""Text for people to read in a terminal or a plain file."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], left: Sequence[bool], least: int = 0) -> list[list[str]]:
    """The rows with every cell as wide as the widest of its column (`least` at least), to the `left` or else to the right."""
    widths = [max([least, *map(len, column)]) for column in zip(*rows, strict=True)]
    return [
        [
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(row, widths, left, strict=True)
        ]
        for row in rows
    ]
