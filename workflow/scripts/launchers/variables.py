"""Set the environment variables of ranks, and choose those that launchers pass on."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common.program_sources import SCRIPTS
from common.shell import export_lines
from declared.site import Site
from ranks.worker.devices import HIDING_VARIABLES

ALARM_S = 30.0  # Ranks that cannot be reached end themselves this long after the time limit.
VARIABLES = ".variables.sh"  # exists while ranks run; hidden, because archives leave out hidden files


def rank_variables(site: Site, spec: Mapping[str, Any], pythonpath: bool = True) -> dict[str, str]:
    """Return the environment variables of every rank, the same for all launchers.

    Args:
        site: The site.
        spec: The spec of the run.
        pythonpath: Whether to set PYTHONPATH, so that ranks run our modules.
    """
    threads = str(spec["cores_per_rank"])
    site_variables = dict(site.variables)
    python_path = os.pathsep.join(filter(None, [str(SCRIPTS), site_variables.pop("PYTHONPATH", None)]))
    return {
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "RINGSIDE_ALARM_S": f"{site.time_limit_s + ALARM_S:.0f}",
        # Libraries then number GPUs the way nvidia-smi and the meters do.
        **({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if spec["device"] != "cpu" else {}),
        **site_variables,
        **({"PYTHONPATH": python_path} if pythonpath else {}),
        **({"RINGSIDE_SCRATCH": str(site.scratch)} if site.scratch else {}),
    }


@contextlib.contextmanager
def variables_file(file: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    """Write the ranks' variables, which can be secrets, to a file of mode 600; remove it at the end."""
    file.unlink(missing_ok=True)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as lines:
            lines.write(export_lines(variables))
        yield file
    finally:
        file.unlink(missing_ok=True)


def forget_variables(folder: Path) -> None:
    """Remove the files of variables that a killed supervisor left below `folder`."""
    for file in folder.rglob(VARIABLES):
        file.unlink(missing_ok=True)


def kept_variables(prefix: str | None = None) -> dict[str, str]:
    """Return the variables of the caller's environment that launchers pass on.

    Args:
        prefix: How names of the scheduler's variables begin, which are passed on, too; None for no others.
    """
    names = ("PATH", "HOME", "USER", "LANG", "LD_LIBRARY_PATH")
    return {
        name: value
        for name, value in os.environ.items()
        if name in names or (prefix and name.startswith(prefix))
    }


def local_variables() -> dict[str, str]:
    """Return `kept_variables` and the variables that hide accelerators, for ranks on this machine.

    On other nodes the scheduler decides which accelerators a rank sees.
    """
    return {**kept_variables(), **{name: os.environ[name] for name in HIDING_VARIABLES if name in os.environ}}
