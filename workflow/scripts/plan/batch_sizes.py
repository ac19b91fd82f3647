"""Read the batch sizes of cells with `batch_size: largest`, the largest that fit in memory.

`./ringside largest` searches for them and writes config/batch_sizes/<study>.<site>.json. Like the study, this
file is an input of the campaign, so that the same checkout plans the same runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.notes import Note
from declared.factors import Levels, factor_table, factors_without_effect_on, levels_name
from declared.site import Site
from plan.search_files import read_search_file, search_command, search_file


def batch_size_file(study: str, site: str) -> Path:
    """Return the file with the results of a study's searches at a site."""
    return search_file("batch_sizes", study, site)


def search_levels(levels: Levels) -> Levels:
    """Return the levels of a cell's search, with the defaults of factors that have no effect on memory."""
    return levels | {name: factor_table()[name]["default"] for name in factors_without_effect_on("memory")}


def batch_search_name(levels: Levels) -> str:
    """Return the name of a cell's search."""
    return levels_name(search_levels(levels))


def missing_batch_size_note(study: str, site: Site) -> Note:
    """Return the note on a run whose batch size was not searched, with the command that searches for it."""
    command = search_command("largest", study, site)
    text = f"the largest batch size was not searched yet; run {command}"
    return Note("batch-size-not-found-yet", text, command=command)


def nothing_fits_note() -> Note:
    """Return the note on a run whose smallest batch does not fit in memory."""
    return Note("no-batch-fits", "no batch size fits in memory, according to ./ringside largest")


def read_batch_sizes(file: Path) -> Mapping[str, Any]:
    """Return the results of searches by name, {} if there is no file.

    Each entry has `batch_size`, in samples of one replica; None if not even the smallest batch fits.

    Raises:
        InputError: If the file is broken.
    """
    searches: Mapping[str, Any] = read_search_file(file, "batch_sizes", "./ringside largest").get(
        "searches", {}
    )
    return searches
