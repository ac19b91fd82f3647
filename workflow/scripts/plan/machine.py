"""Check that this machine, its devices and folders match the site."""

import os
import socket
from pathlib import Path

from common.cores import usable_cores
from common.errors import InputError
from common.files import display_path
from declared.site import Site
from ranks.worker.devices import HIDING_VARIABLES, visible_names

ACCELERATORS = ("nvidia[0-9]*", "kfd", "dxg")  # device files of NVIDIA, AMD and Windows (WSL) in /dev


def check_folder(folder: Path, advice: str) -> None:
    """Raise InputError with this advice if `folder` is not a folder and cannot be created."""
    try:
        str(folder).encode()  # Snakemake stores names as UTF-8
        os.lstat(folder)
    except UnicodeEncodeError:
        problem = "has bytes in its name that are not UTF-8"
        raise InputError("wrong-encoding", problem, file=folder, hint=advice) from None
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise InputError(
            "unusable-folder", error.strerror or str(error), file=str(folder)[:200], hint=advice
        ) from None
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not os.path.isdir(existing):
        problem = "is a file" if os.path.exists(existing) else "is a dangling link"
        raise InputError("not-a-folder", problem, file=existing, expected="a folder", hint=advice)


def check_machine(site: Site, devices: Path = Path("/dev")) -> None:
    """Raise InputError if this machine contradicts a local site's description."""
    if site.launcher != "local":
        return
    cores = usable_cores()
    if site.cores > cores:
        problem = f"{site.cores} is more than the {cores} that this process may use"
        raise InputError("out-of-range", problem, file=display_path(site.file), key="cores", got=site.cores)
    _check_interfaces(site)
    if site.device == "cuda":
        _check_accelerators(site, devices)


def _check_interfaces(site: Site) -> None:
    """Raise InputError unless this machine has the site's network interfaces."""
    interfaces = [name for _, name in socket.if_nameindex()]
    for name in site.interfaces:
        if name not in interfaces:
            problem = f"'{name}' is not on this machine"
            hint = f"it has {', '.join(interfaces)}"
            raise InputError(
                "unknown-name", problem, file=display_path(site.file), key="interface", got=name, hint=hint
            )


def _check_accelerators(site: Site, devices: Path) -> None:
    """Raise InputError unless this machine has a visible accelerator for each rank of a node."""
    if not any(any(devices.glob(pattern)) for pattern in ACCELERATORS):
        expected = ", ".join(f"{devices}/{name.removesuffix('[0-9]*')}" for name in ACCELERATORS)
        problem = f"this machine has no accelerator ({expected})"
        hint = "use device: cpu"
        raise InputError(
            "missing-device", problem, file=display_path(site.file), key="device", got=site.device, hint=hint
        )
    names = visible_names({**os.environ, **dict(site.variables)})
    n_visible = len(names) if names is not None else len(list(devices.glob(ACCELERATORS[0])))
    if n_visible < site.ranks_per_node and (names is not None or n_visible):
        source = " or ".join(HIDING_VARIABLES) if names is not None else f"{devices}/nvidia*"
        raise InputError(
            "too-few",
            f"{site.ranks_per_node} ranks need an accelerator each, {n_visible} are visible ({source})",
            file=display_path(site.file),
            key="ranks_per_node",
            got=site.ranks_per_node,
            hint="use fewer ranks, or make more accelerators visible",
        )
