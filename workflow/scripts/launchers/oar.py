"""Start each rank with oarsh inside an OAR job (Grid'5000): OAR has no launcher of its own.

MPI programs are started by Open MPI's mpirun with oarsh as its remote shell.
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
from launchers.clients import CLIENT_TIMEOUT_S, query_job_field
from launchers.exit_reasons import first_failed_rank, rank_failure_reason, starter_failure_reason
from launchers.jobs import job_ended_error, outside_of_job_error, select_hosts
from launchers.log import read_end
from launchers.processes import kill, pkill_command, spawn
from launchers.protocol import AttemptLost
from launchers.variables import kept_variables
from sites import virtual

# Exit status of ssh and oarsh if they fail themselves, and if a signal ended the remote process.
SSH_FAILED = 255
OARSH_FAILED = (SSH_FAILED, *range(61, 67))  # 61 to 66: oarsh found no job on the node
RUNNING = "Running"
# Messages of ssh and oarsh begin a line. A rank that lost its peer prints "Connection closed by peer" within
# one.
_CONNECTION_ERROR = re.compile(
    r"^(ssh: |kex_exchange|client_loop: |Connection (to|closed|reset)|Timeout, server |oarsh: ).*",
    re.MULTILINE,
)
_STATE = re.compile(r"^\s*state = (\w+)", re.MULTILINE)
# From its full path, mpirun also finds its daemon on the other nodes.
_MPIRUN = """
mpirun=$(command -v mpirun) || { echo "Error: mpirun not found; add it to PATH in the site's variables or \
setup"; exit 1; }
exec "$mpirun" "$@"
"""
# A user who is allowed to start jobs, even root, is allowed to start ranks.
_ALLOW_ROOT = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
# Messages of Open MPI 4 and 5: a lost node, a killed rank, a rank that exited with an error.
_MPIRUN_LOST_NODE = re.compile(
    r"^(ORTE has lost communication|ORTE was unable to reliably start|PRTE has lost).*", re.MULTILINE
)
_RANK_KILLED = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)")
_RANK_EXITED = re.compile(r"Process name: \[\[\d+,\d+\],(\d+)\]\s+Exit code:\s+(\d+)")


class Oar:
    """Implement launchers.protocol.Launcher. A run uses the first nodes in the job's $OAR_NODEFILE."""

    def __init__(self, site: Site, spec: Mapping[str, Any], mpi: bool = False) -> None:
        node_file = os.environ.get("OAR_NODEFILE")
        if not node_file:
            raise outside_of_job_error(site, "an OAR job", "use snakemake --profile oar")
        hosts = list(dict.fromkeys(Path(node_file).read_text().split()))
        self.hosts = select_hosts(site, hosts, spec["nodes"], node_file)
        self._site, self._spec, self._mpi = site, spec, mpi
        self._processes: list[subprocess.Popen[bytes]] = []
        self._command: Sequence[str] = ()
        self._number = os.environ.get("OAR_JOB_ID", "?")
        self.job = {"number": self._number, "submitted_at": None, "started_at": None}
        if site.placement == "virtual" and "bandwidth_bytes_s" in spec:
            virtual.limit_links(self.hosts, spec["bandwidth_bytes_s"])

    def start(self, program: Program, log: Path) -> list[subprocess.Popen[bytes]]:
        """See Launcher."""
        self._command = program.command
        with open(log, "ab") as output:
            if self._mpi:
                self._processes.append(spawn(self._mpirun(program), kept_variables("OAR"), output))
                return self._processes
            for rank in range(self._spec["ranks"]):
                node, local_rank = divmod(rank, self._spec["ranks_per_node"])
                identity = f"RINGSIDE_RANK={rank} RINGSIDE_LOCAL_RANK={local_rank}"
                remote = program.command_after(self._site.setup, identity)
                self._processes.append(
                    spawn(["oarsh", self.hosts[node], shlex.join(remote)], kept_variables("OAR"), output)
                )
        return self._processes

    def _mpirun(self, program: Program) -> list[str]:
        """Return the command that starts all ranks with PMIx, the same way as srun --mpi=pmix."""
        spec = self._spec
        slots = min(spec["ranks"], spec["ranks_per_node"])
        words = [
            *("--mca", "plm_rsh_agent", "oarsh"),
            *(
                ("--mca", "oob_tcp_if_include", self._site.interface)
                if self._site.fabric == "ethernet"
                else ()
            ),
            *("--host", ",".join(f"{host}:{slots}" for host in self.hosts)),
            *("--map-by", "slot", "--bind-to", "none"),
            *("-n", str(spec["ranks"])),
        ]
        identity = 'RINGSIDE_RANK="$OMPI_COMM_WORLD_RANK" RINGSIDE_LOCAL_RANK="$OMPI_COMM_WORLD_LOCAL_RANK"'
        ranks = program.command_after(self._site.setup, identity)
        mpirun = replace(program, command=["sh", "-c", _MPIRUN, "ringside", *words, *ranks], paths=())
        return mpirun.command_after(self._site.setup, _ALLOW_ROOT)

    def raise_if_lost(self, log: Path) -> None:
        """See Launcher. If the log has a connection error of ssh, it is the cause of all other failures."""
        text = read_end(log)
        for rank, process in enumerate(self._processes):
            if not self._mpi and process.poll() in OARSH_FAILED and (error := _CONNECTION_ERROR.search(text)):
                text = f"rank {rank} on {self._host(rank)}: {error[0].strip()}"
                raise AttemptLost(Note("node-unreachable", text, rank=rank, host=self._host(rank)))
        if self._mpi and (error := _CONNECTION_ERROR.search(text) or _MPIRUN_LOST_NODE.search(text)):
            raise AttemptLost(Note("node-unreachable", f"mpirun: {error[0].strip()}"))
        if (state := job_state(self._number)) not in (RUNNING, None):
            raise job_ended_error(self._number, state)

    def explain(self, exit_statuses: Sequence[int | None], log: Path) -> Note:
        """See Launcher. Reads the messages of mpirun if it started the ranks."""
        text = read_end(log)
        rank, exit_status = first_failed_rank(exit_statuses)
        if self._mpi:
            if killed := _RANK_KILLED.search(text):
                return self._failure(int(killed[1]), -int(killed[2]))
            exited = _RANK_EXITED.search(text)
            return (
                self._failure(int(exited[1]), int(exited[2]))
                if exited
                else starter_failure_reason("mpirun", exit_status)
            )
        if exit_status == SSH_FAILED:
            text = f"rank {rank} on {self._host(rank)} was killed, or ended with status {exit_status}"
            return Note("rank-failed", text, rank=rank, host=self._host(rank), exit_status=exit_status)
        return self._failure(rank, exit_status)

    def _failure(self, rank: int, exit_status: int) -> Note:
        return rank_failure_reason(rank, exit_status, self._host(rank))

    def _host(self, rank: int) -> str:
        return self.hosts[rank // self._spec["ranks_per_node"]]

    def kill_ranks(self) -> None:
        """See Launcher. Kills the ranks on their nodes, then the processes of oarsh."""
        remote_kill = shlex.join(pkill_command(self._command)) if self._command else ""
        for host in self.hosts if any(process.poll() != 0 for process in self._processes) else []:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    ["oarsh", host, remote_kill],
                    env=kept_variables("OAR"),
                    capture_output=True,
                    check=False,
                    timeout=CLIENT_TIMEOUT_S,
                )
        kill(self._processes)


def job_state(number: str) -> str | None:
    """Return OAR's state of a job, such as Running, or None on a node without oarstat.

    Raises:
        AttemptLost: If OAR does not answer.
    """
    return query_job_field(["oarstat", "-fj", number], _STATE, kept_variables("OAR"))


launcher_class = Oar
