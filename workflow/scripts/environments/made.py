"""What was built, for those who use it: an environment.json, checked against what it names."""

import json
from pathlib import Path
from typing import Any

from common.errors import InputError
from environments import installed
from environments.container import unchanged
from environments.description import WHOLE


def read_made(stamp: Path) -> dict[str, Any]:
    """The content of the environment.json `stamp`. InputError when it, or what it names (an interpreter, an image), is broken or gone."""
    # Snakemake removes a stamp before it asks for it: that of another campaign may just be doing that.
    said = stamp if stamp.exists() else stamp.with_name(WHOLE)
    try:
        environment: dict[str, Any] = json.loads(said.read_text())
        image = environment.get("image")
        usable = unchanged(image) if image else Path(environment["python"]["executable"]).exists()
        if has := environment.get("installed"):
            usable = usable and installed.unchanged(has)
    except (OSError, ValueError, TypeError, KeyError):
        usable = False
    if not usable:
        raise InputError(
            f"{stamp}: is broken, or what it names is gone or another; remove {stamp.parent} and start again"
        )
    return environment
