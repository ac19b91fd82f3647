"""Show the blocks of a study on an axis of run order or time: shade every other one, and name a few."""

from collections.abc import Iterable

import pandas as pd
from matplotlib.axes import Axes

from figures import style

BAND_COLOUR = "#eeeeee"
MAX_BANDS = 60
MAX_NAMED_BLOCKS = 12


def find_bands(runs: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return a row per stretch of consecutive runs of one block: left, right, block, and means of `columns`.

    A block with repeated runs has two stretches. Without blocks, all runs are one.

    Args:
        runs: Runs in the order of the axis, with their ends on it, `left` and `right`.
        columns: Columns of `runs` to average.
    """
    block = runs[["session", "block"]]
    previous = block.shift()
    is_new = (block.ne(previous) & ~(block.isna() & previous.isna())).fillna(True).any(axis=1)
    parts = {"left": ("left", "min"), "right": ("right", "max"), "block": ("block", "first")}
    return runs.groupby(is_new.cumsum()).agg(**parts, **{name: (name, "mean") for name in columns})


def shade_bands(ax: Axes, bands: pd.DataFrame) -> None:
    """Shade every other band."""
    if len(bands) <= MAX_BANDS:
        for band in bands[1::2].itertuples():
            ax.axvspan(band.left, band.right, color=BAND_COLOUR, linewidth=0, zorder=0)


def draw_means(ax: Axes, bands: pd.DataFrame, means: Iterable[float]) -> None:
    """Draw a line at the mean of each band."""
    if len(bands) <= MAX_BANDS:
        for band, mean in zip(bands.itertuples(), means, strict=True):
            ax.plot([band.left, band.right], [mean] * 2, color=style.INK, linewidth=1.0, zorder=4)


def name_bands(ax: Axes, bands: pd.DataFrame, prefix: str = "block ") -> None:
    """Write the number of its block above each band, after a prefix above the first one."""
    if 1 < len(bands) <= MAX_NAMED_BLOCKS:
        for number, band in enumerate(bands.dropna(subset="block").itertuples()):
            text = f"{'' if number else prefix}{band.block:g}"
            label = ax.text((band.left + band.right) / 2, 1, text, transform=ax.get_xaxis_transform())
            label.set(color=style.MUTED, fontsize=style.SMALL_FONT_SIZE, ha="center", va="bottom")
