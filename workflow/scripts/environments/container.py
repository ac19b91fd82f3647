"""Programs in an image: isolated from the machine but for what is named.

Nothing of the caller's variables, home or folders is seen inside, nor what its APPTAINER_* variables would bind; /tmp is the
container's own, in memory. /proc, /sys and /dev are the node's: ranks of one node meet in /dev/shm.
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import digest_file, is_written, written

PROGRAM = "apptainer"
# What a scheduler tells each rank, known only where the rank starts.
RANKS_OWN = (
    "RINGSIDE_RANK", "RINGSIDE_LOCAL_RANK", "RINGSIDE_CORES",
    "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
)  # fmt: skip
# Of Apptainer's own variables only those about the machine are left. Ours reach the inside under a prefix; as arguments,
# values with commas or quotes would be taken apart. Ranks of MPI find each other by what srun --mpi=pmix or mpirun tells each of them, by
# their server's folder on the node, and by Slurm's or mpirun's variables, without which Open MPI takes a rank for the only one.
_ON_WITH = r"""
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
    """A folder or file that is seen inside, at the same place unless `inside` names another."""

    path: str
    writable: bool = False
    inside: str | None = None

    @property
    def option(self) -> str:
        """For apptainer's --mount, whose values are CSV: a path with a comma or a quote stays whole."""
        parts = ["type=bind", f"source={self.path}", f"destination={self.inside or self.path}"]
        return ",".join(_quoted(part) for part in [*parts, *([] if self.writable else ["ro"])])


def check_machine(environment: str) -> None:
    """InputError when there is no Apptainer on this machine, for the image of `environment`."""
    if shutil.which(PROGRAM) is None:
        raise InputError(
            "not-installed",
            f"the environment {environment} is an Apptainer image, and there is no {PROGRAM} on this machine",
            got=PROGRAM,
            hint="load its module in the site's setup, or, on Debian as root: make apptainer",
        )


def unchanged(image: Mapping[str, Any]) -> bool:
    """Whether an image, as environment.json describes it, is still the file whose SHA-256 stands there.

    One that the site brings must not have been replaced there either; that it is gone there does no harm.
    """
    file, source = Path(image["path"]), image["source"]
    if (
        source
        and written(Path(source["path"])) is not None
        and not is_written(Path(source["path"]), source["written"][:2])
    ):
        return False
    return written(file) is not None and (is_written(file, image["written"]) or digest_file(file) == image["sha256"])


def inside(
    image: str | Path,
    command: Sequence[str],
    binds: Iterable[Bind] = (),
    variables: Iterable[str] = (),
    options: Sequence[str] = (),
) -> list[str]:
    """`command` in the image. Of the caller's variables it sees those that `variables` names, RANKS_OWN, and a rank of MPI its own.

    Root has to enter by a user namespace, too, since machines may withhold some of its capabilities.
    """
    names = " ".join(dict.fromkeys([*variables, *RANKS_OWN]))
    tmp = ["--scratch", "/tmp", "--pwd", "/tmp"]  # noqa: S108 (the container's own)
    isolation = ["--cleanenv", "--no-eval", "--no-home", "--no-mount", "tmp,cwd,hostfs", *tmp]
    namespace = ["--userns"] if os.geteuid() == 0 else []
    mounts = [part for bind in binds for part in ("--mount", bind.option)]
    call = [PROGRAM, "--quiet", "exec", *isolation, *namespace, *options, *mounts, str(image), *command]
    return ["sh", "-c", _ON_WITH, "ringside", names, *call]


def _quoted(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if set(',"') & set(field) else field
