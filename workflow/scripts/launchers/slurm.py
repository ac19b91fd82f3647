"""Start ranks as tasks of one srun inside a Slurm job, without ssh. MPI programs use Slurm's PMIx."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from common.files import format_utc
from common.notes import Note
from common.shell import Program, Unanswered
from declared.site import Site
from launchers.clients import CLIENT_TIMEOUT_S, query_scheduler
from launchers.exit_reasons import starter_failure_reason
from launchers.jobs import cores_per_task, job_ended_error, outside_of_job_error, select_hosts
from launchers.log import read_end
from launchers.oom_evidence import NODE_MEMORY, format_oom_reason
from launchers.processes import kill, spawn
from launchers.protocol import GRACE_S, AttemptLost
from launchers.variables import kept_variables
from ranks.worker import energy
from sites import slurm as slurm_clients
from sites import virtual

STEP_TIMEOUT_S = 10.0  # time limit for Slurm to start or to end a step
_TASK_ERROR = re.compile(r"srun: error: (\S+): tasks? (\d+)([\d,-]*): (.+)")
# Messages of slurmstepd on a step that exceeded the memory of its control group, or the limit of Slurm's
# accounting (JobAcctGatherParams=OverMemoryKill).
_OOM_LINE = re.compile(
    r"^(?:slurmstepd\S*: |\[\S+\] )?error: .*(?:Detected \d+ oom[-_]kill event|exceeded memory limit)"
)
_EXIT_CODE = re.compile(r"Exited with exit code (\d+)")
_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")
RUNNING = "RUNNING"
JOB_STATE_OOM = "OUT_OF_MEMORY"
TASK_STATE_OOM = "Out Of Memory"  # how messages of srun name this state of a task
# Slurm samples energy every 30 s by default (JobAcctGatherFrequency).
STEP_ENERGY = energy.MeterKind("slurm", "node", "counter", 30.0, None, None)
NO_VALUE = 2.0**63  # Slurm writes NO_VAL64, 2^64 - 2, for an unknown value
# What srun prints if a node is gone, the job has ended, or srun cannot connect to a daemon of Slurm.
_INFRASTRUCTURE_MESSAGES = (
    "Node failure",
    "Unable to confirm allocation",
    "Unable to create step",
    "already completing",
    "Communication connection failure",
)


def job_number() -> str | None:
    """Return the number of the Slurm job that this process runs in, or None."""
    return os.environ.get("SLURM_JOB_ID") or None


def job_hosts(number: str) -> list[str]:
    """Return the nodes of a job.

    Raises:
        AttemptLost: If Slurm does not answer or has no such job.
    """
    return query_slurm("scontrol", "show", "hostnames", *_job_fields(number, "NodeList")).split()


def job_state(number: str) -> str:
    """Return a job's state, such as RUNNING or CANCELLED.

    Raises:
        AttemptLost: If Slurm does not answer or has no such job.
    """
    (state,) = _job_fields(number, "JobState")
    return state


def _job_fields(number: str, *names: str) -> list[str]:
    """Return fields of a job.

    Raises:
        AttemptLost: If Slurm does not answer, or the answer lacks a field, as of a job that starts or ends.
    """
    answer = query_slurm("scontrol", "show", "job", number, "--oneliner")
    # The first value counts: the comment of a job, which comes last, can look like a field.
    fields = dict(reversed(_FIELD.findall(answer)))
    if missing := [name for name in names if fields.get(name, "Unknown") == "Unknown"]:
        text = f"scontrol does not describe job {number} (no {missing[0]})"
        raise AttemptLost(Note("scheduler-silent", text, program="scontrol", answer=answer[:300]))
    return [fields[name] for name in names]


class Slurm:
    """Implement launchers.protocol.Launcher. A run uses the first nodes of the job."""

    def __init__(self, site: Site, spec: Mapping[str, Any], mpi: bool = False) -> None:
        number = job_number()
        if number is None:
            raise outside_of_job_error(
                site, "a Slurm job", "use snakemake --profile slurm, or ./ringside submit"
            )
        submitted, started = _job_fields(number, "SubmitTime", "StartTime")
        self.hosts = select_hosts(site, job_hosts(number), spec["nodes"], f"Slurm job {number}")
        self._site, self._spec, self._mpi = site, spec, mpi
        self.name = f"ringside-{spec['run_id']}"[:200]
        self._process: subprocess.Popen[bytes] | None = None
        self.job = {"number": number, "submitted_at": _to_utc(submitted), "started_at": _to_utc(started)}
        if site.placement == "virtual" and "bandwidth_bytes_s" in spec:
            virtual.limit_links(self.hosts, spec["bandwidth_bytes_s"])

    def start(self, program: Program, log: Path) -> list[subprocess.Popen[bytes]]:
        """See Launcher."""
        spec = self._spec
        srun = [
            "srun",
            f"--job-name={self.name}",
            f"--nodes={spec['nodes']}",
            f"--nodelist={','.join(self.hosts)}",
            f"--ntasks={spec['ranks']}",
            f"--ntasks-per-node={min(spec['ranks'], spec['ranks_per_node'])}",
            f"--cpus-per-task={cores_per_task(spec)}",
            # With rank_cores, ranks bind themselves.
            f"--cpu-bind={'none' if 'rank_cores' in spec else 'cores'}",
            *self._placement_options(),
            "--mem=0",
            f"--mpi={'pmix' if self._mpi else 'none'}",
            "--input=none",
            f"--immediate={STEP_TIMEOUT_S:.0f}",  # a longer wait for nodes would count as run time
            # A failed task does not end the step at once: the others have GRACE_S to log their errors. Then
            # srun ends, which is all that `launch` sees of the failure.
            "--kill-on-bad-exit=0",
            f"--wait={GRACE_S:.0f}",
        ]
        identity = 'RINGSIDE_RANK="$SLURM_PROCID" RINGSIDE_LOCAL_RANK="$SLURM_LOCALID"'
        # Slurm's other variables describe the job's geometry and would become defaults of the step.
        job_variables = {
            name: os.environ[name] for name in ("SLURM_JOB_ID", "SLURM_CONF") if name in os.environ
        }
        with open(log, "ab") as output:
            step = [*srun, *program.command_after(self._site.setup, identity)]
            self._process = spawn(step, {**kept_variables(), **job_variables}, output)
        return [self._process]

    def _placement_options(self) -> list[str]:
        """Return srun's options that place ranks and their accelerators on sockets.

        Slurm spreads the tasks of a node over its sockets one by one (cyclic). Accelerators are numbered by
        PCI address, socket after socket, so the ranks of a GPU run fill sockets in the same order (block).

        By default every rank sees all accelerators of its node. With --gpu-bind, Slurm can hide the
        accelerators of other tasks. NCCL then cannot open the memory of a peer, and fails or copies through
        the host. With one accelerator for each rank (single), Slurm selects one that gres.conf places close
        to the cores of the rank. With several (per_task), it assigns them in order, wherever they are.
        """
        if self._spec["device"] == "cpu":
            return ["--distribution=block"]
        options = ["--distribution=block:block"]
        if self._site.scheduler.gpu_bind and self._spec["device"] == "cuda":
            n_gpus = self._spec["replicas_per_rank"]
            options.append(f"--gpu-bind={'single:1' if n_gpus == 1 else f'per_task:{n_gpus}'}")
        return options

    def raise_if_lost(self, log: Path) -> None:
        """See Launcher. Reads the state of the job and the messages of srun."""
        # The training caused OUT_OF_MEMORY, so it is a result of the run (`explain`). In every other state,
        # Slurm has ended the job, so the attempt is lost. By Slurm's source, read and not tried, the state is
        # COMPLETING while processes of the job exist, and PREEMPTED, NODE_FAIL or TIMEOUT only afterwards.
        if (state := job_state(self.job["number"])) not in (RUNNING, JOB_STATE_OOM):
            raise job_ended_error(str(self.job["number"]), state)
        lines = read_end(log).splitlines()
        messages = [line for line in lines if line.startswith("srun: ")]
        for line in messages:
            if any(message in line for message in _INFRASTRUCTURE_MESSAGES):
                raise AttemptLost(Note("node-or-job-gone", line))
        # If srun failed, reports no rank, and nobody else printed anything, it started no rank.
        only_slurm = all(line.startswith(("srun: ", "slurmstepd: ")) for line in lines if line.strip())
        reports_rank = any(_TASK_ERROR.fullmatch(line) or _OOM_LINE.match(line) for line in lines)
        if self._process and self._process.poll() and messages and only_slurm and not reports_rank:
            raise AttemptLost(Note("not-started", messages[-1]))

    def explain(self, exit_statuses: Sequence[int | None], log: Path) -> Note:
        """See Launcher. Reads the messages of srun: memory ran out, or the first failed task."""
        log_lines = read_end(log).splitlines()
        errors = [error for line in log_lines if (error := _TASK_ERROR.fullmatch(line))]
        if scheduler_reason := _slurm_oom_reason(errors, log_lines):
            return scheduler_reason
        if errors:
            host, rank, other_ranks, ending = errors[0].groups()
            text = f"rank {rank}{other_ranks} on {host}: {ending.lower()}"
            return Note("rank-failed", text, rank=int(rank), host=host, exit_status=_exit_status(ending))
        return starter_failure_reason("srun", exit_statuses[0] or 0)

    def kill_ranks(self) -> None:
        """See Launcher. Kills the step through Slurm, then srun."""
        process = self._process
        if process is None:
            return
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while (steps := self._steps()) and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    ["scancel", "--signal=KILL", *steps],
                    capture_output=True,
                    check=False,
                    timeout=CLIENT_TIMEOUT_S,
                )
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        kill([process])

    def _steps(self) -> list[str]:
        """Return the numbers of the run's steps that have not ended, [] if Slurm does not answer."""
        try:
            answer = query_slurm(
                "squeue", "--steps", f"--jobs={self.job['number']}", "--noheader", "--format=%i|%j"
            )
        except AttemptLost:
            return []
        rows = (line.split("|", 1) for line in answer.splitlines() if "|" in line)
        return [number for number, name in rows if name == self.name]


def meters(launcher: Slurm) -> list[dict[str, Any]]:
    """Return the energy of the run's step on all nodes from Slurm's accounting (acct_gather_energy)."""
    joules, reason = step_energy(launcher.job["number"], launcher.name)
    return [energy.entry(STEP_ENERGY, reason, window="run", joules=joules)]


def step_energy(job: str, name: str) -> tuple[float | None, Note | None]:
    """Return the joules of the last step of this name in a job, or the reason why they are unknown.

    A step and its energy can reach the accounting some seconds after the end of the step.
    """
    reason = Note("no-step", f"sacct has no step {name} of job {job}", step=name, job=job)
    for pause_s in (1, 2, 0):
        try:
            answer = slurm_clients.run_client(
                "sacct",
                f"--jobs={job}",
                "--format=JobIDRaw,JobName,ConsumedEnergyRaw",
                "--parsable2",
                "--noheader",
            )
        except Unanswered as unanswered:
            return None, Note("scheduler-silent", str(unanswered), program="sacct")
        rows = [line.split("|") for line in answer.splitlines()]
        if values := [row[2] for row in rows if len(row) == 3 and row[1] == name and "." in row[0]]:
            joules = float(values[-1]) if values[-1].isdecimal() else 0.0
            if 0 < joules < NO_VALUE:
                return joules, None
            text = (
                f"sacct reports {values[-1] or 'no'} energy: this cluster has no energy plugin "
                "(AcctGatherEnergyType)"
            )
            reason = Note("no-meter", text, answer=values[-1])
        time.sleep(pause_s)
    return None, reason


def query_slurm(*command: str) -> str:
    """Return the output of a Slurm command.

    Raises:
        AttemptLost: If it fails three times, 2 s apart.
    """
    return query_scheduler(lambda: slurm_clients.run_client(*command), command[0], command[0])


def _slurm_oom_reason(errors: Sequence[re.Match[str]], log_lines: Sequence[str]) -> Note | None:
    """Return the reason if Slurm killed a task because memory ran out, None otherwise.

    Args:
        errors: Matches of _TASK_ERROR: host, rank, further ranks, and how they ended.
        log_lines: All lines of the log, including those of slurmstepd.
    """
    task_error = next((error for error in errors if error[4] == TASK_STATE_OOM), None)
    step_error = next(filter(_OOM_LINE.match, log_lines), None)
    if task_error is None and step_error is None:
        return None
    task = task_error or next((error for error in errors if _exit_status(error[4]) == -signal.SIGKILL), None)
    facts = {"place": NODE_MEMORY, "rank": int(task[2]), "host": task[1]} if task else {"place": NODE_MEMORY}
    return format_oom_reason(facts, step_error or f"Slurm: {TASK_STATE_OOM}")


def _exit_status(ending: str) -> int | None:
    """Return the exit status of a task, or its negative signal, from a text of srun such as "Killed".

    The result is None for texts that name neither, such as "Out Of Memory".
    """
    if match := _EXIT_CODE.fullmatch(ending):
        return int(match[1])
    name = ending.removesuffix(" (core dumped)")
    return next((-number for number in signal.valid_signals() if signal.strsignal(number) == name), None)


def _to_utc(text: str) -> str:
    """Return a local time, as Slurm prints it, in UTC."""
    return format_utc(datetime.fromisoformat(text).timestamp())


launcher_class = Slurm
