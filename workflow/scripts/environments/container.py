"""Run programs in an image, isolated from the machine apart from what is named.

A program inside sees nothing of the caller's variables, home or folders, nor what APPTAINER_* variables
would bind; /tmp is the container's own, in memory. /proc, /sys and /dev are the node's: ranks of one node
meet in /dev/shm.
"""

import csv
import io
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError
from common.files import digest_file, has_signature, file_signature
from environments.record import ImageRecord
from ranks.worker.devices import HIDING_VARIABLES

PROGRAM = "apptainer"
# Variables that the scheduler sets for each rank.
RANK_VARIABLES = (
    "RINGSIDE_RANK", "RINGSIDE_LOCAL_RANK", "RINGSIDE_CORES", "SLURMD_NODENAME", *HIDING_VARIABLES,
)  # fmt: skip
# Apptainer keeps only its variables about the machine. Variables for the inside are passed with a prefix,
# since Apptainer splits values with commas or quotes in arguments. MPI ranks find each other by the variables
# of srun --mpi=pmix or mpirun and by their server's folder on the node; without Slurm's or mpirun's
# variables, Open MPI starts a rank as a singleton.
_ENTER = r"""
for name in $(env | sed -n 's/^\(\(APPTAINER\|SINGULARITY\)[A-Za-z0-9_]*\)=.*/\1/p'); do
    case $name in *_CACHEDIR|*_TMPDIR|*_CONFIGDIR) ;; *) unset "$name" ;; esac
done
if [ -n "${PMIX_RANK-}" ]; then
    own=$(env | sed -n 's/^\(\(PMIX\|SLURM\|OMPI\)_[A-Za-z0-9_]*\)=.*/\1/p')
    export APPTAINER_BIND="${PMIX_SERVER_TMPDIR-}"
fi
for name in $1 ${own-}; do
    eval "[ -z \"\${$name+set}\" ] || export APPTAINERENV_$name=\"\${$name-}\""
done
shift
exec "$@"
"""


@dataclass(frozen=True)
class Bind:
    """A folder or file that is visible inside, at the same path unless `inside` names another."""

    path: str
    writable: bool = False
    inside: str | None = None

    @property
    def option(self) -> str:
        """Return the value of apptainer's --mount, which is CSV: paths with a comma or a quote are quoted."""
        parts = ["type=bind", f"source={self.path}", f"destination={self.inside or self.path}"]
        row = io.StringIO()
        csv.writer(row, lineterminator="").writerow([*parts, *([] if self.writable else ["ro"])])
        return row.getvalue()


def check_machine(environment: str) -> None:
    """Check that this machine has Apptainer, for the image of `environment`.

    Raises:
        InputError: If it has not.
    """
    if shutil.which(PROGRAM) is None:
        problem = (
            f"the environment {environment} is an Apptainer image, and there is no {PROGRAM} on this machine"
        )
        hint = "load its module in the site's setup, or, on Debian as root: make apptainer"
        raise InputError("not-installed", problem, hint=hint)


def is_unchanged(image: ImageRecord) -> bool:
    """Tell whether an image is still the file whose SHA-256 environment.json records.

    An image that the site provides must not have been replaced there either. It may have been removed there.
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


def inside(
    image: str | Path,
    command: Sequence[str],
    binds: Iterable[Bind] = (),
    variables: Iterable[str] = (),
    options: Sequence[str] = (),
) -> list[str]:
    """Return the command line that runs `command` in an image.

    Root enters by a user namespace, too, since a machine may withhold some of root's capabilities.

    Args:
        image: The image.
        command: Program and arguments.
        binds: Folders and files to show inside.
        variables: Names of the caller's variables to pass on, besides RANK_VARIABLES and those of an MPI
            rank.
        options: Further options of `apptainer exec`.
    """
    names = " ".join(dict.fromkeys([*variables, *RANK_VARIABLES]))
    tmp = ["--scratch", "/tmp", "--pwd", "/tmp"]  # noqa: S108 (the container's own)
    isolation = ["--cleanenv", "--no-eval", "--no-home", "--no-mount", "tmp,cwd,hostfs", *tmp]
    namespace = ["--userns"] if os.geteuid() == 0 else []
    mounts = [part for bind in binds for part in ("--mount", bind.option)]
    call = [PROGRAM, "--quiet", "exec", *isolation, *namespace, *options, *mounts, str(image), *command]
    return ["sh", "-c", _ENTER, "ringside", names, *call]
