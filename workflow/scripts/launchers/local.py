"""Ranks as processes of this machine, on disjoint cores; what is a program of MPI the adapter starts, by mpirun."""

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.notes import Note
from common.shell import Program
from declared.site import Site
from launchers.launch import kept_variables, kill, rank_failure, spawn


class Local:
    """See launchers.launch.Launcher."""

    def __init__(self, site: Site, spec: Mapping[str, Any], mpi: bool = False) -> None:
        self._setup, self._spec = site.setup, spec
        self._processes: list[subprocess.Popen[bytes]] = []
        self._mark = f"RINGSIDE_LAUNCH={secrets.token_hex(8)}"
        self.job = None
        self.hosts = [f"node{i}" for i in range(1, spec["nodes"] + 1)]  # emulated: names that Horovod can tell apart

    def start(self, program: Program, log: Path) -> list[subprocess.Popen[bytes]]:
        """See Launcher."""
        spec = self._spec
        each = spec.get("rank_cores", [spec["cores_per_rank"]] * spec["ranks_per_node"])
        with open(log, "ab") as out:
            for rank in range(spec["ranks"]):
                cores = cores_of(rank, spec["cores"], each)
                place = f"{self._mark} RINGSIDE_RANK={rank} RINGSIDE_LOCAL_RANK={rank % spec['ranks_per_node']}"
                here = program.behind(self._setup, f"{place} RINGSIDE_CORES={','.join(map(str, cores))}")
                self._processes.append(spawn(here, kept_variables(), out))
        return self._processes

    def explain(self, codes: Sequence[int | None], log: Path) -> Note:
        """See Launcher."""
        rank, code = next((rank, code) for rank, code in enumerate(codes) if code)
        return rank_failure(rank, code)

    def end(self) -> None:
        """See Launcher. Also what a rank started in a session of its own, which outlives the rank: by the mark in its environment."""
        kill(self._processes)
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)


def cores_of(rank: int, cores: int, each: Sequence[int]) -> list[int]:
    """The cores of one rank among the site's `cores`, disjoint between ranks; `each`: how many each rank of a node has.

    A rank for which there are too few left shares all of them.
    """
    usable = sorted(os.sched_getaffinity(0))[:cores]
    node, local_rank = divmod(rank, len(each))
    first = node * sum(each) + sum(each[:local_rank])
    return usable[first : first + each[local_rank]] if first + each[local_rank] <= len(usable) else usable


launcher = Local
