"""Read the environment.json of built environments, and check it against the files that it names."""

from collections.abc import Iterable
from pathlib import Path

from common.caches import check_trusted
from common.errors import InputError
from common.files import read_json
from declared.environments import COMPLETE_FILE
from environments import installed
from environments.container import is_unchanged
from environments.record import BuiltEnvironment
from environments.seal import check_seal


def check_unchanged(stamps: Iterable[Path]) -> None:
    """Check that no file of virtual environments or of their parents was edited after the build.

    Args:
        stamps: The environment.json of each environment; missing ones, images and installations are skipped.

    Raises:
        InputError: If a file was edited.
    """
    folders: dict[Path, None] = {}
    for stamp in stamps:
        if stamp.exists():
            environment = read_built(stamp)
            if environment["deployment"] == "venv":
                folders |= dict.fromkeys(Path(prefix).parent for prefix in environment["prefixes"])
    for folder in folders:
        check_seal(folder)


def read_built(stamp: Path) -> BuiltEnvironment:
    """Return the content of an environment.json, <cache>/environments/<name>/<digest>/environment.json.

    Raises:
        InputError: If the file is broken, its interpreter does not exist, its image or installation has
            changed, or another user could have written it.
    """
    # Another campaign's Snakemake removes the stamp before rebuilding it; then COMPLETE_FILE has the content.
    record = stamp if stamp.exists() else stamp.with_name(COMPLETE_FILE)
    check_trusted(record, stamp.parents[3])
    try:
        environment: BuiltEnvironment = read_json(record)
        image = environment.get("image")
        installation = environment.get("installed")
        is_usable = is_unchanged(image) if image else Path(environment["python"]["executable"]).exists()
        is_same_installation = not installation or installed.is_unchanged(installation)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        is_usable, is_same_installation = False, True
    if is_usable and is_same_installation:
        return environment
    if not is_same_installation:
        problem, hint = "the site's installation is not the one that was tested", "start Snakemake again"
        raise InputError("changed-installation", problem, file=stamp, hint=hint)
    hint = f"remove {stamp.parent} and start again"
    raise InputError("broken-file", "is broken, or a file that it names is gone", file=stamp, hint=hint)
