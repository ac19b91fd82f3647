"""Ranks by oarsh, one call each, inside an OAR job (Grid'5000): OAR has no launcher of its own.

What is a program of MPI is started by Open MPI's mpirun, whose remote shell oarsh then is.
"""

import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.notes import Note
from common.shell import Program
from declared.site import Site
from launchers.launch import (
    Lost,
    job_ended,
    kept_variables,
    kill,
    outside_of_job,
    pkill,
    rank_failure,
    read_end,
    spawn,
    starter_failure,
    told,
    too_few_nodes,
)
from sites import virtual

SSH_FAILED = 255  # of ssh, and so of oarsh: its own failure, and also a remote end by a signal
OARSH_FAILED = (SSH_FAILED, *range(61, 67))  # the others: oarsh found no job on the node
RUNNING = "Running"
# What ssh and oarsh themselves say; a rank that lost another says "Connection closed by peer" in the midst of its line.
_LOST = re.compile(
    r"^(ssh: |kex_exchange|client_loop: |Connection (to|closed|reset)|Timeout, server |oarsh: ).*", re.MULTILINE
)
_STATE = re.compile(r"^\s*state = (\w+)", re.MULTILINE)
# With its path: by that it also finds what it starts on other nodes.
_MPIRUN = """
found=$(command -v mpirun) || { echo "Error: there is no mpirun here; say where it is by PATH in the site's variables or setup"; exit 1; }
exec "$found" "$@"
"""
_BY_ROOT = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"  # who may start jobs may start ranks
# What Open MPI says when it does not reach a node any more; of a rank that was killed, and of one that ended by itself.
_UNREACHED = re.compile(
    r"^(ORTE has lost communication|ORTE was unable to reliably start|PRTE has lost).*", re.MULTILINE
)
_KILLED = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)")
_ENDED = re.compile(r"Process name: \[\[\d+,\d+\],(\d+)\]\s+Exit code:\s+(\d+)")


class Oar:
    """See launchers.launch.Launcher. The first nodes of the job's $OAR_NODEFILE take the run."""

    def __init__(self, site: Site, spec: Mapping[str, Any], mpi: bool = False) -> None:
        listed = os.environ.get("OAR_NODEFILE")
        if not listed:
            raise outside_of_job(site, "an OAR job", "use snakemake --profile oar")
        hosts = list(dict.fromkeys(Path(listed).read_text().split()))
        if len(hosts) < spec["nodes"]:
            raise too_few_nodes(listed, len(hosts), spec["nodes"])
        self._site, self._spec, self._mpi = site, spec, mpi
        self._processes: list[subprocess.Popen[bytes]] = []
        self._command: Sequence[str] = ()
        self._number = os.environ.get("OAR_JOB_ID", "?")
        self.job = {"number": self._number, "submitted_at": None, "started_at": None}
        self.hosts = hosts[: spec["nodes"]]
        if site.placement == "virtual":
            virtual.shape(self.hosts, spec["bandwidth_bytes_s"])

    def start(self, program: Program, log: Path) -> list[subprocess.Popen[bytes]]:
        """See Launcher."""
        self._command = program.command
        with open(log, "ab") as out:
            if self._mpi:
                self._processes.append(spawn(self._mpirun(program), _environment(), out))
                return self._processes
            for rank in range(self._spec["ranks"]):
                node, local_rank = divmod(rank, self._spec["ranks_per_node"])
                identity = f"RINGSIDE_RANK={rank} RINGSIDE_LOCAL_RANK={local_rank}"
                remote = program.behind(self._site.setup, identity)
                self._processes.append(spawn(["oarsh", self.hosts[node], shlex.join(remote)], _environment(), out))
        return self._processes

    def _mpirun(self, program: Program) -> list[str]:
        """What starts all ranks so that programs of MPI, which they start, find each other by PMIx, as srun --mpi=pmix does."""
        spec = self._spec
        each = min(spec["ranks"], spec["ranks_per_node"])
        words = [
            *("--mca", "plm_rsh_agent", "oarsh"),
            *(("--mca", "oob_tcp_if_include", self._site.interface) if self._site.fabric == "ethernet" else ()),
            *("--host", ",".join(f"{host}:{each}" for host in self.hosts)),
            *("--map-by", "slot", "--bind-to", "none"),
            *("-n", str(spec["ranks"])),
        ]
        identity = 'RINGSIDE_RANK="$OMPI_COMM_WORLD_RANK" RINGSIDE_LOCAL_RANK="$OMPI_COMM_WORLD_LOCAL_RANK"'
        ranks = program.behind(self._site.setup, identity)
        starter = replace(program, command=["sh", "-c", _MPIRUN, "ringside", *words, *ranks], paths=())
        return starter.behind(self._site.setup, _BY_ROOT)

    def explain(self, codes: Sequence[int | None], log: Path) -> Note:
        """See Launcher. Where a connection failed, ssh says so in the log: whoever failed first, it was by that."""
        text = read_end(log)
        for rank, process in enumerate(self._processes):
            if not self._mpi and process.poll() in OARSH_FAILED and (said := _LOST.search(text)):
                text = f"rank {rank} on {self._host(rank)}: {said[0].strip()}"
                raise Lost(Note("node-unreachable", text, rank=rank, host=self._host(rank)))
        if self._mpi and (said := _LOST.search(text) or _UNREACHED.search(text)):
            raise Lost(Note("node-unreachable", f"mpirun: {said[0].strip()}"))
        if (state := job_state(self._number)) not in (RUNNING, None):
            raise job_ended(self._number, state)
        rank, code = next((rank, code) for rank, code in enumerate(codes) if code)
        if self._mpi:
            if killed := _KILLED.search(text):
                return self._failure(int(killed[1]), -int(killed[2]))
            ended = _ENDED.search(text)
            return self._failure(int(ended[1]), int(ended[2])) if ended else starter_failure("mpirun", code)
        if code == SSH_FAILED:
            text = f"rank {rank} on {self._host(rank)} was killed, or ended with status {code}"
            return Note("rank-failed", text, rank=rank, host=self._host(rank), status=code)
        return self._failure(rank, code)

    def _failure(self, rank: int, code: int) -> Note:
        return rank_failure(rank, code, self._host(rank))

    def _host(self, rank: int) -> str:
        return self.hosts[rank // self._spec["ranks_per_node"]]

    def end(self) -> None:
        """End what was started here, and what that started there."""
        there = shlex.join(pkill(self._command)) if self._command else ""
        for host in self.hosts if any(process.poll() != 0 for process in self._processes) else []:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(["oarsh", host, there], env=_environment(), capture_output=True, check=False, timeout=30)
        kill(self._processes)


def job_state(number: str) -> str | None:
    """What OAR says of a job, such as Running; None where this node has no client that could be asked. Lost when it does not answer."""
    return told(["oarstat", "-fj", number], _STATE, _environment())


def _environment() -> dict[str, str]:
    """What oarsh needs: the job that it belongs to."""
    return {**kept_variables(), **{name: value for name, value in os.environ.items() if name.startswith("OAR")}}


launcher = Oar
