"""LBANN as a program of its own: started by this rank, or by mpirun for all of them, and read as it prints.

Under Slurm and OAR every rank starts its own: srun --mpi=pmix, or mpirun, which started the rank, tells it
where the others are. On one machine rank 0 starts all of them.
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

PMIX = "PMIX_RANK"  # in the environment of what srun --mpi=pmix and mpirun start
PROGRAM = "lbann"
PR_SET_PDEATHSIG = 1
LAST_LINES_S = (
    5  # that are waited for once the program has ended: what it has started may keep its output open
)


def starts_itself(context: Context) -> bool:
    """Whether this rank starts a program of its own."""
    return PMIX in os.environ or context.ranks == 1


def command(context: Context) -> list[str] | None:
    """Return the command that this rank starts in the experiment's folder; collective.

    None if rank 0 starts LBANN for this rank.
    """
    lbann = [
        os.environ.get("RINGSIDE_PROGRAM", PROGRAM),
        f"--prototext={FILE}",  # no path: of a path with `trainer` in it LBANN takes only the beginning
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
    for own in cores:
        # mpirun's children are ended by the kernel if it is killed, and have their rank's cores.
        binding = ["setpriv", "--pdeathsig", "KILL", "taskset", "--cpu-list", ",".join(map(str, own))]
        ranks += [*([":"] if ranks else []), "-n", "1", *binding, *lbann]
    return ["mpirun", *ranks]


def variables(context: Context) -> dict[str, str]:
    """Return variables that tell MPI its network, and that Ringside places ranks itself.

    Other MPI libraries than Open MPI ignore it.
    """
    environment = {
        "LBANN_DISABLE_ACT_GC": "1",  # without it, losses become infinite now and then on a processor
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
            environment["OMPI_MCA_btl"] = "self,tcp"  # what stands for nodes must not meet in memory
    return environment


class Program:
    """A program that is running. Its output goes to the attempt's log, and to who asks for it.

    A program that fails ends this rank, with the line that says why.
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
        self._readers = [self._start_thread(self._read), self._start_thread(self._complain)]
        self._start_thread(self._end)

    def line(self) -> str | None:
        """Return the next line, or None once the program has ended normally."""
        return self._lines.get()

    @staticmethod
    def _start_thread(work: Callable[[], None]) -> threading.Thread:
        """Run `work` in a thread; if it fails (a full disk), end this rank, which would wait forever."""

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

    def _complain(self) -> None:
        """Read stderr apart from stdout, where it would interrupt the lines of measurements."""
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
