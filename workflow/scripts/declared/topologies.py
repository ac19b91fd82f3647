"""Topologies, read and checked: devices and the links between them, for which strategies are planned."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import CHECKOUT, load_yaml, shown
from common.schemas import check
from common.text import alternatives

FOLDER = CHECKOUT / "config" / "topologies"


def topology_names(folder: Path = FOLDER) -> tuple[str, ...]:
    """Those that config/topologies/ has."""
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


@functools.cache
def load_topology(name: str, folder: Path = FOLDER) -> Mapping[str, Any]:
    """What config/topologies/<name>.yaml says. InputError in one line where it is wrong, or not there."""
    file = folder / f"{name}.yaml"
    if not file.is_file():
        known = alternatives(name, topology_names(folder))
        raise InputError("unknown-name", f"there is no {shown(file)}", file=f"topology {name}", got=name, **known)
    told: Mapping[str, Any] = load_yaml(file)
    check(told, "topology", file)
    return told
