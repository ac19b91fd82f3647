"""Ranks by pbs_tmrsh, one call each, inside a PBS job (OpenPBS, PBS Professional): PBS's own task manager, no ssh.

What a task prints is not brought back to pbs_tmrsh: each rank writes a file of its own, and these are put into the log in the end.
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
    told,
    too_few_nodes,
)

TMRSH_FAILED = 255
RUNNING = "R"
# The rank's shell stays: it tells a death by a signal as 128 + its number; of a task that is killed itself, PBS tells the bare number.
_APART = 'out=$1; shift; "$@" >> "$out" 2>&1; exit $?'
_LOST = re.compile(r"^(?:\S*/)?pbs_tmrsh: .*", re.MULTILINE)
_STATE = re.compile(r"^\s*job_state = (\w)", re.MULTILINE)


class Pbs:
    """See launchers.launch.Launcher. The first nodes of the job's $PBS_NODEFILE take the run."""

    def __init__(self, site: Site, spec: Mapping[str, Any], mpi: bool = False) -> None:
        listed, number = os.environ.get("PBS_NODEFILE"), os.environ.get("PBS_JOBID")
        if not listed or not number:
            raise outside_of_job(site, "a PBS job", "use snakemake --profile pbs")
        hosts = list(dict.fromkeys(Path(listed).read_text().split()))
        if len(hosts) < spec["nodes"]:
            raise too_few_nodes(listed, len(hosts), spec["nodes"])
        self._site, self._spec, self._number = site, spec, number
        self._processes: list[subprocess.Popen[bytes]] = []
        self._command: Sequence[str] = ()
        self._log: Path | None = None
        self.job = {"number": number, "submitted_at": None, "started_at": None}
        self.hosts = hosts[: spec["nodes"]]

    def start(self, program: Program, log: Path) -> list[subprocess.Popen[bytes]]:
        """See Launcher."""
        self._command, self._log = program.command, log
        with open(log, "ab") as out:
            for rank in range(self._spec["ranks"]):
                node, local_rank = divmod(rank, self._spec["ranks_per_node"])
                identity = f"RINGSIDE_RANK={rank} RINGSIDE_LOCAL_RANK={local_rank}"
                there = replace(program, paths=()).behind(self._site.setup, identity)
                apart = ["bash", "-c", _APART, "ringside", str(_own_log(log, rank)), *there]
                if program.paths:  # the rank's own log lies in one of them
                    apart = [*check_node(program.paths), "--", *apart]
                self._processes.append(spawn(["pbs_tmrsh", self.hosts[node], *apart], _environment(), out))
        return self._processes

    def explain(self, codes: Sequence[int | None], log: Path) -> Note:
        """See Launcher. Where a task could not be started or followed, pbs_tmrsh says so: whoever failed first, it was by that."""
        said = _LOST.search(read_end(log))
        for rank, process in enumerate(self._processes):
            if said and process.poll() == TMRSH_FAILED:
                text = f"rank {rank} on {self._host(rank)}: {said[0].strip()}"
                raise Lost(Note("node-unreachable", text, rank=rank, host=self._host(rank)))
        if (state := job_state(self._number)) not in (RUNNING, None):
            raise job_ended(self._number, state, "state ")
        rank, code = next((rank, code) for rank, code in enumerate(codes) if code)
        return rank_failure(rank, 128 - code if 128 < code < 128 + 65 else code, self._host(rank))

    def _host(self, rank: int) -> str:
        return self.hosts[rank // self._spec["ranks_per_node"]]

    def end(self) -> None:
        """End what pbs_tmrsh started, then pbs_tmrsh itself; put what ranks wrote into the log.

        Lost where a node cannot be reached: PBS lets pbs_tmrsh wait for a task on a dead node, and the run to its time limit.
        """
        unfinished = any(process.poll() != 0 for process in self._processes)
        gone = [host for host in self.hosts if unfinished and not _ended(host, self._command)]
        kill(self._processes)
        if self._log:
            _gather(self._log, self._spec["ranks"])
        if gone:
            text = f"job {self._number}: PBS cannot reach {', '.join(gone)}"
            raise Lost(Note("node-unreachable", text, job=self._number, hosts=gone))


def job_state(number: str) -> str | None:
    """PBS's letter for a job, such as R; None where this node has no client that could be asked. Lost when it does not answer."""
    return told(["qstat", "-f", number], _STATE, _environment())


def _ended(host: str, command: Sequence[str]) -> bool:
    """Whether PBS could end what `command` started on a node."""
    try:
        there = ["pbs_tmrsh", host, *pkill(command)]
        done = subprocess.run(
            there, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode != TMRSH_FAILED


def _own_log(log: Path, rank: int) -> Path:
    """Where a rank writes: nodes that append to one file of a network file system overwrite each other."""
    return log.with_name(f"{log.stem}-{rank}{log.suffix}")


def _gather(log: Path, ranks: int) -> None:
    with open(log, "ab") as whole:
        for own in (_own_log(log, rank) for rank in range(ranks)):
            with contextlib.suppress(FileNotFoundError):
                with open(own, "rb") as part:
                    shutil.copyfileobj(part, whole)
                own.unlink()


def _environment() -> dict[str, str]:
    """What pbs_tmrsh and qstat need: the job that they belong to."""
    return {**kept_variables(), **{name: value for name, value in os.environ.items() if name.startswith("PBS")}}


launcher = Pbs
