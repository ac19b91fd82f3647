"""Start LBANN, from this rank or with mpirun for all ranks, and read its output.

Under Slurm and OAR, every rank starts an LBANN process, which gets the addresses of the others from srun
--mpi=pmix or mpirun. On one machine, rank 0 starts all processes with mpirun.
"""

import ctypes
import io
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from ranks.frameworks.lbann.experiment import FILE
from ranks.frameworks.lbann.output import LastWords
from ranks.worker.context import Context

PMIX = "PMIX_RANK"  # environment variable that srun --mpi=pmix and mpirun set
PROGRAM = "lbann"
PR_SET_PDEATHSIG = 1
LAST_LINES_S = 5  # wait for the output of an ended program, which its children can keep open


def starts_itself(context: Context) -> bool:
    """Return whether this rank starts its own LBANN process."""
    return PMIX in os.environ or context.ranks == 1


def command(context: Context) -> list[str] | None:
    """Return the command that this rank starts, None if rank 0 starts LBANN for this rank; collective."""
    lbann = [
        os.environ.get("RINGSIDE_PROGRAM", PROGRAM),
        f"--prototext={FILE}",  # A path has no folder, since LBANN truncates one that contains `trainer`.
        f"--procs_per_trainer={context.ranks}",
        f"--omp_num_threads={context.spec['cores_per_rank']}",
        "--num_io_threads=1",
    ]
    cores = context.group.all_gather(sorted(os.sched_getaffinity(0)))
    if starts_itself(context):
        return lbann
    if context.rank:
        return None
    ranks: list[str] = []
    for rank_cores in cores:
        # The kernel ends mpirun's children if mpirun is killed; each child has its rank's cores.
        binding = ["setpriv", "--pdeathsig", "KILL", "taskset", "--cpu-list", ",".join(map(str, rank_cores))]
        ranks += [*([":"] if ranks else []), "-n", "1", *binding, *lbann]
    return ["mpirun", *ranks]


def variables(context: Context) -> dict[str, str]:
    """Return variables that set the network of Open MPI, and disable its binding of ranks to cores."""
    environment = {
        "LBANN_DISABLE_ACT_GC": "1",  # Otherwise losses on CPUs are infinite now and then.
        "OMP_NUM_THREADS": str(context.spec["cores_per_rank"]),
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    if context.spec["fabric"] == "ethernet":
        environment |= {
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl_tcp_if_include": context.spec["interface"],
            "OMPI_MCA_oob_tcp_if_include": context.spec["interface"],
        }
        if context.spec["placement"] == "emulated" and context.spec["nodes"] > 1:
            # Emulated nodes must not communicate by shared memory.
            environment["OMPI_MCA_btl"] = "self,tcp"
    return environment


class Program:
    """A running program. Its output is copied to the attempt's log and read line by line.

    If the program fails, this rank prints the line that explains the failure, and ends.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        if shutil.which(command[0]) is None:
            raise RuntimeError(
                f"there is no {command[0]} here; say where it is by PATH in the site's variables or setup"
            )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            list(command),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 (only a system call)
        )
        self.last_words = LastWords()
        self._readers = [self._start_thread(self._read), self._start_thread(self._read_errors)]
        self._start_thread(self._end)

    def line(self) -> str | None:
        """Wait for the next line and return it, None after the program has ended normally."""
        return self._lines.get()

    @staticmethod
    def _start_thread(work: Callable[[], None]) -> threading.Thread:
        """Run `work` in a thread. If it fails (disk full), end this rank, which would wait forever."""

        def ending_with_this_rank() -> None:
            try:
                work()
            except BaseException:
                traceback.print_exc()
                os._exit(1)

        thread = threading.Thread(target=ending_with_this_rank, daemon=True)
        thread.start()
        return thread

    def _lines_of(self, pipe: IO[bytes] | None) -> Iterator[str]:
        """Yield the lines of a pipe, after copying each to the log and to `last_words`.

        A carriage return does not end a line.
        """
        for line in io.TextIOWrapper(pipe or io.BytesIO(), encoding="utf-8", errors="replace", newline="\n"):
            sys.stdout.write(line)
            self.last_words.read_line(line)
            yield line

    def _read_errors(self) -> None:
        """Read stderr separately, since it would interrupt the lines of measurements on stdout."""
        for _ in self._lines_of(self._process.stderr):
            pass

    def _read(self) -> None:
        for line in self._lines_of(self._process.stdout):
            self._lines.put(line)

    def _end(self) -> None:
        code = self._process.wait()
        for reader in self._readers:
            reader.join(LAST_LINES_S)
        if code:
            ending = f"was killed ({signal.strsignal(-code)})" if code < 0 else f"ended with status {code}"
            print(f"Error: LBANN {ending}: {self.last_words}", flush=True)
            os._exit(1)
        self._lines.put(None)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
