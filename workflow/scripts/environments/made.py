"""What was built, for those who use it: an environment.json, checked against what it names."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common.caches import check_trusted
from common.errors import InputError
from common.files import read_json
from declared.environments import WHOLE
from environments import installed
from environments.container import unchanged
from environments.seal import check_seal


def check_unchanged(stamps: Iterable[Path]) -> None:
    """InputError when an environment that was built, or one below it, was edited since. `stamps`: their environment.json."""
    folders: dict[Path, None] = {}
    for stamp in stamps:
        if stamp.exists():
            environment = read_made(stamp)
            if environment["deployment"] == "venv":
                folders |= dict.fromkeys(Path(prefix).parent for prefix in environment["prefixes"])
    for folder in folders:
        check_seal(folder)


def read_made(stamp: Path) -> dict[str, Any]:
    """The content of the environment.json `stamp`. InputError when it, or what it names (an interpreter, an image), is broken or gone, or
    when another user could have made it.

    Args:
        stamp: <cache>/environments/<name>/<digest>/environment.json.
    """
    # Snakemake removes a stamp before it asks for it: that of another campaign may just be doing that.
    said = stamp if stamp.exists() else stamp.with_name(WHOLE)
    check_trusted(said, stamp.parents[3])
    try:
        environment: dict[str, Any] = read_json(said)
        image = environment.get("image")
        has = environment.get("installed")
        usable = unchanged(image) if image else Path(environment["python"]["executable"]).exists()
        same = not has or installed.unchanged(has)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        usable, same = False, True
    if usable and same:
        return environment
    if not same:
        problem, hint = "the site's installation is not the one that was tested", "start Snakemake again"
        raise InputError("changed-installation", problem, file=stamp, hint=hint)
    hint = f"remove {stamp.parent} and start again"
    raise InputError("broken-file", "is broken, or what it names is gone", file=stamp, hint=hint)
