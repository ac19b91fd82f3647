"""Read the files of config/ that searches write and campaigns plan with: strategies and batch sizes."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import InputError, raise_if_machine_error
from common.files import CHECKOUT, display_path, read_json
from common.schemas import check
from declared.site import Site


def search_file(folder: str, study: str, site: str) -> Path:
    """Return the file with results of a study's searches, config/<folder>/<study>.<site>.json."""
    return CHECKOUT / "config" / folder / f"{study}.{site}.json"


def search_command(verb: str, study: str, site: Site) -> str:
    """Return the command line of a study's searches at a site."""
    profile = "" if site.launcher == "local" else f" --profile {site.launcher}"
    return f"./ringside {verb} {study} --site {site.name}{profile}"


def read_search_file(file: Path, schema: str, command: str) -> Mapping[str, Any]:
    """Return the content of a file of search results, {} if there is no file.

    Args:
        file: The file.
        schema: Name of its schema.
        command: The command that writes it.

    Raises:
        InputError: If the file is broken.
    """
    try:
        date_ns = file.stat().st_mtime_ns
    except FileNotFoundError:
        return {}
    return _read(file, schema, command, date_ns)


@functools.cache
def _read(file: Path, schema: str, command: str, _date_ns: int) -> Mapping[str, Any]:
    """Return the content of a file; its date is part of the cache's key."""
    try:
        content: Mapping[str, Any] = read_json(file)
    except (OSError, ValueError) as error:
        raise_if_machine_error(error, display_path(file))
        reason = error.strerror if isinstance(error, OSError) else error
        problem = f"is broken ({reason})"
        hint = f"remove it, and run {command}"
        raise InputError("broken-file", problem, file=display_path(file), hint=hint) from None
    check(content, schema, file)
    return content
