"""Start each rank inside a PBS job with pbs_tmrsh, which OpenPBS and PBS Professional have.

pbs_tmrsh does not return the output of a task. Each rank therefore writes a file of its own, and `kill_ranks`
appends these files to the log.
"""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.notes import Note
from common.shell import Program, check_node
from declared.site import Site
from launchers.clients import CLIENT_TIMEOUT_S, query_job_field
from launchers.exit_reasons import first_failed_rank, rank_failure_reason
from launchers.jobs import job_ended_error, outside_of_job_error, select_hosts
from launchers.log import read_end
from launchers.oom_evidence import NODE_MEMORY, format_oom_reason
from launchers.processes import kill, pkill_command, spawn
from launchers.protocol import AttemptLost
from launchers.variables import kept_variables

TMRSH_FAILED = 255
RUNNING = "R"
# The shell stays (no exec), because it reports a signal as 128 + its number; PBS itself would report the bare
# number, which looks like an exit status.
_REDIRECT_OUTPUT = 'out=$1; shift; "$@" >> "$out" 2>&1; exit $?'
# A job that exceeded the memory that it requested, by PBS's own polling or by its hook for control groups.
_OOM_LINE = re.compile(
    r".*(?:PBS: job killed: \w*mem \d+kb exceeded limit|Cgroup mem(?:ory)? limit exceeded).*"
)
_TMRSH_ERROR = re.compile(r"^(?:\S*/)?pbs_tmrsh: .*", re.MULTILINE)
_STATE = re.compile(r"^\s*job_state = (\w)", re.MULTILINE)


class Pbs:
    """Implement launchers.protocol.Launcher. A run uses the first nodes in the job's $PBS_NODEFILE."""

    def __init__(self, site: Site, spec: Mapping[str, Any], _mpi: bool = False) -> None:
        node_file, number = os.environ.get("PBS_NODEFILE"), os.environ.get("PBS_JOBID")
        if not node_file or not number:
            raise outside_of_job_error(site, "a PBS job", "use snakemake --profile pbs")
        hosts = list(dict.fromkeys(Path(node_file).read_text().split()))
        self.hosts = select_hosts(site, hosts, spec["nodes"], node_file)
        self._site, self._spec, self._number = site, spec, number
        self._processes: list[subprocess.Popen[bytes]] = []
        self._command: Sequence[str] = ()
        self._log: Path | None = None
        self.job = {"number": number, "submitted_at": None, "started_at": None}

    def start(self, program: Program, log: Path) -> list[subprocess.Popen[bytes]]:
        """See Launcher."""
        self._command, self._log = program.command, log
        with open(log, "ab") as output:
            for rank in range(self._spec["ranks"]):
                node, local_rank = divmod(rank, self._spec["ranks_per_node"])
                identity = f"RINGSIDE_RANK={rank} RINGSIDE_LOCAL_RANK={local_rank}"
                remote = replace(program, paths=()).command_after(self._site.setup, identity)
                redirected = ["bash", "-c", _REDIRECT_OUTPUT, "ringside", str(_rank_log(log, rank)), *remote]
                if program.paths:  # checked before the redirection: the rank's log lies in one of them
                    redirected = [*check_node(program.paths), "--", *redirected]
                self._processes.append(
                    spawn(["pbs_tmrsh", self.hosts[node], *redirected], kept_variables("PBS"), output)
                )
        return self._processes

    def raise_if_lost(self, log: Path) -> None:
        """See Launcher. If the log has an error of pbs_tmrsh, it is the cause of all other failures."""
        error = _TMRSH_ERROR.search(read_end(log))
        for rank, process in enumerate(self._processes):
            if error and process.poll() == TMRSH_FAILED:
                text = f"rank {rank} on {self._host(rank)}: {error[0].strip()}"
                raise AttemptLost(Note("node-unreachable", text, rank=rank, host=self._host(rank)))
        if (state := job_state(self._number)) not in (RUNNING, None):
            raise job_ended_error(self._number, state, "state ")

    def explain(self, exit_statuses: Sequence[int | None], log: Path) -> Note:
        """See Launcher. Reads PBS's report that memory ran out from the logs of the job and of all ranks."""
        rank, exit_status = first_failed_rank(exit_statuses)
        logs = [log, *(_rank_log(log, number) for number in range(self._spec["ranks"]))]
        if line := next(filter(None, (_OOM_LINE.search(read_end(file)) for file in logs)), None):
            return format_oom_reason({"place": NODE_MEMORY, "rank": rank, "host": self._host(rank)}, line[0])
        # 128 + n is signal n; Linux has 64 signals.
        exit_status = 128 - exit_status if 128 < exit_status < 128 + 65 else exit_status
        return rank_failure_reason(rank, exit_status, self._host(rank))

    def _host(self, rank: int) -> str:
        return self.hosts[rank // self._spec["ranks_per_node"]]

    def kill_ranks(self) -> None:
        """See Launcher. Kills the ranks, then pbs_tmrsh, and appends the output of the ranks to the log.

        Raises:
            AttemptLost: If a node cannot be reached, where pbs_tmrsh itself would wait until the time limit.
        """
        has_failed = any(process.poll() != 0 for process in self._processes)
        unreachable = [host for host in self.hosts if has_failed and not _kill_on_node(host, self._command)]
        kill(self._processes)
        if self._log:
            _gather_logs(self._log, self._spec["ranks"])
        if unreachable:
            text = f"job {self._number}: PBS cannot reach {', '.join(unreachable)}"
            raise AttemptLost(Note("node-unreachable", text, job=self._number, hosts=unreachable))


def job_state(number: str) -> str | None:
    """Return PBS's letter for a job, such as R, or None on a node without qstat.

    Raises:
        AttemptLost: If PBS does not answer.
    """
    return query_job_field(["qstat", "-f", number], _STATE, kept_variables("PBS"))


def _kill_on_node(host: str, command: Sequence[str]) -> bool:
    """Kill the ranks that `command` started on a node, and return whether PBS reached the node."""
    try:
        remote = ["pbs_tmrsh", host, *pkill_command(command)]
        result = subprocess.run(
            remote,
            env=kept_variables("PBS"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=CLIENT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return False
    return result.returncode != TMRSH_FAILED


def _rank_log(log: Path, rank: int) -> Path:
    """Return a rank's own log, since nodes that append to one file over NFS overwrite each other."""
    return log.with_name(f"{log.stem}-{rank}{log.suffix}")


def _gather_logs(log: Path, n_ranks: int) -> None:
    """Append the logs of all ranks to the run's log, and remove them."""
    with open(log, "ab") as output:
        for rank_log in (_rank_log(log, rank) for rank in range(n_ranks)):
            with contextlib.suppress(FileNotFoundError):
                with open(rank_log, "rb") as part:
                    shutil.copyfileobj(part, output)
                rank_log.unlink()


launcher_class = Pbs
