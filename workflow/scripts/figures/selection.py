"""Select rows of tables by levels of factors: the rows of a series or of a panel."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from figures.style import SeriesStyle


@dataclass(frozen=True)
class Series:
    """One series of a figure: its name in the legend, the levels that its runs share, and its style."""

    name: str
    levels: Mapping[str, Any]
    style: SeriesStyle

    def select(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of this series."""
        return rows_at(frame, self.levels)


def level_combinations(frame: pd.DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the combinations of levels of these factors that occur, sorted; `[{}]` without factors."""
    if not names:
        return [{}]
    ordered = frame[list(names)].drop_duplicates().sort_values(list(names))
    return [dict(zip(names, levels, strict=True)) for levels in ordered.itertuples(index=False, name=None)]


def rows_at(frame: pd.DataFrame, levels: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows at these levels."""
    if not levels:
        return frame
    selected = np.ones(len(frame), bool)
    for name, level in levels.items():
        column = frame[name].isna() if pd.isna(level) else frame[name] == level
        selected &= column.to_numpy(bool, na_value=False)
    return frame[selected]  # a single selection, because each one copies all columns


def nonempty_panels(panel_levels: Sequence[dict[str, Any]], frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the panels (by their levels) that have a row in `frame`."""
    names = list(panel_levels[0]) if panel_levels else []
    if not names:
        return list(panel_levels) if len(frame) else []
    present = {
        _level_key(levels) for levels in frame[names].drop_duplicates().itertuples(index=False, name=None)
    }
    return [levels for levels in panel_levels if _level_key(levels.values()) in present]


def _level_key(levels: Iterable[Any]) -> tuple[Any, ...]:
    """Return levels as a tuple in which missing ones are equal, as NaN is not."""
    return tuple(None if pd.isna(level) else level for level in levels)
