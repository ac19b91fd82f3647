"""Run programs in an image, isolated from the machine except for named folders and variables.

A program in the image cannot access the caller's other variables, home or folders, nor folders that
APPTAINER_* variables would bind. It has its own /tmp, in memory, but the node's /proc, /sys and /dev, since
the ranks of a node communicate through /dev/shm.
"""

import csv
import io
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError
from common.files import digest_file, file_signature, has_signature
from environments.record import ImageRecord
from ranks.worker.devices import HIDING_VARIABLES

PROGRAM = "apptainer"
# Variables with a different value for each rank, set by launchers and schedulers.
RANK_VARIABLES = (
    "RINGSIDE_RANK", "RINGSIDE_LOCAL_RANK", "RINGSIDE_CORES", "SLURMD_NODENAME", *HIDING_VARIABLES,
)  # fmt: skip
# Of the variables for Apptainer, only folders on this machine are kept. Variables for the program are passed
# as APPTAINERENV_*, because Apptainer splits values with commas or quotes in its options. MPI ranks also need
# the variables of srun --mpi=pmix or mpirun and the folder of their PMIx server: without them, Open MPI
# starts each rank as a singleton.
_ENTER = r"""
for name in $(env | sed -n 's/^\(\(APPTAINER\|SINGULARITY\)[A-Za-z0-9_]*\)=.*/\1/p'); do
    case $name in *_CACHEDIR|*_TMPDIR|*_CONFIGDIR) ;; *) unset "$name" ;; esac
done
if [ -n "${PMIX_RANK-}" ]; then
    mpi=$(env | sed -n 's/^\(\(PMIX\|SLURM\|OMPI\)_[A-Za-z0-9_]*\)=.*/\1/p')
    export APPTAINER_BIND="${PMIX_SERVER_TMPDIR-}"
fi
for name in $1 ${mpi-}; do
    eval "[ -z \"\${$name+set}\" ] || export APPTAINERENV_$name=\"\${$name-}\""
done
shift
exec "$@"
"""


@dataclass(frozen=True)
class Bind:
    """A folder or file of the machine that a program in an image can access.

    Attributes:
        path: Its path on the machine.
        writable: Whether the program may write to it.
        inside: Its path in the image; None: the same path.
    """

    path: str
    writable: bool = False
    inside: str | None = None

    @property
    def option(self) -> str:
        """The value of apptainer's --mount, a row of CSV: paths with commas or quotes are quoted."""
        parts = ["type=bind", f"source={self.path}", f"destination={self.inside or self.path}"]
        row = io.StringIO()
        csv.writer(row, lineterminator="").writerow([*parts, *([] if self.writable else ["ro"])])
        return row.getvalue()


def check_machine(environment: str) -> None:
    """Check that this machine has Apptainer, for the image of `environment`.

    Raises:
        InputError: If Apptainer is missing.
    """
    if shutil.which(PROGRAM) is None:
        problem = f"the environment {environment} is an Apptainer image, but this machine has no {PROGRAM}"
        hint = "load its module in the site's setup, or, on Debian as root: make apptainer"
        raise InputError("not-installed", problem, hint=hint)


def is_unchanged(image: ImageRecord) -> bool:
    """Return whether an image is still the file whose SHA-256 environment.json records.

    If the site has replaced the image from which it was copied, it counts as changed. If the site has removed
    that image, the copy stays valid.
    """
    file, source = Path(image["path"]), image["source"]
    if (
        source
        and file_signature(Path(source["path"])) is not None
        and not has_signature(Path(source["path"]), source["written"][:2])
    ):
        return False
    return file_signature(file) is not None and (
        has_signature(file, image["written"]) or digest_file(file) == image["sha256"]
    )


def command_in_image(
    image: str | Path,
    command: Sequence[str],
    binds: Iterable[Bind] = (),
    variables: Iterable[str] = (),
    options: Sequence[str] = (),
) -> list[str]:
    """Return the command line that runs `command` in an image.

    Root uses a user namespace, too, because a machine can withhold some of root's capabilities.

    Args:
        image: The image.
        command: The program and its arguments.
        binds: Folders and files that the program can access.
        variables: Names of the caller's variables to pass on, in addition to RANK_VARIABLES and the variables
            of an MPI rank.
        options: Further options of `apptainer exec`.
    """
    names = " ".join(dict.fromkeys([*variables, *RANK_VARIABLES]))
    tmp = ["--scratch", "/tmp", "--pwd", "/tmp"]  # noqa: S108 (the container's own)
    isolation = ["--cleanenv", "--no-eval", "--no-home", "--no-mount", "tmp,cwd,hostfs", *tmp]
    namespace = ["--userns"] if os.geteuid() == 0 else []
    mounts = [part for bind in binds for part in ("--mount", bind.option)]
    call = [PROGRAM, "--quiet", "exec", *isolation, *namespace, *options, *mounts, str(image), *command]
    return ["sh", "-c", _ENTER, "ringside", names, *call]
