"""Start ranks as the tasks of one Flux job, inside a Flux instance (flux batch, flux alloc)."""

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.files import format_utc
from common.notes import Note
from common.shell import Program, Unanswered
from declared.site import Site
from launchers.clients import capture_client, client_message, query_scheduler
from launchers.exit_reasons import rank_failure_reason, starter_failure_reason
from launchers.jobs import cores_per_task, job_ended_error, outside_of_job_error, select_hosts
from launchers.processes import kill, spawn
from launchers.protocol import GRACE_S, AttemptLost
from launchers.variables import kept_variables

JOB_TIMEOUT_S = 10.0  # time limit for Flux to start the job of the ranks, or to end it
RUNNING = "RUN"
EXCEPTION_CODE = "flux-exception"
_NODE_LOST_PREFIXES = ("node failure", "lost contact")  # notes of exceptions of type exec that no rank caused


class Flux:
    """Implement launchers.protocol.Launcher. A run uses the first nodes of the instance that are up."""

    def __init__(self, site: Site, spec: Mapping[str, Any], _mpi: bool = False) -> None:
        if "FLUX_URI" not in os.environ:
            raise outside_of_job_error(site, "an instance of Flux", "use snakemake --profile flux")
        hosts = list(dict.fromkeys(_up_nodes()))
        if len(hosts) < spec["nodes"] <= int(query_flux("getattr", "size")):
            text = f"only {', '.join(hosts) or 'no node'} is up, the run needs {spec['nodes']} nodes"
            raise AttemptLost(Note("nodes-down", text, up=hosts, needed=spec["nodes"]))
        self.hosts = select_hosts(site, hosts, spec["nodes"], "flux resource list")
        self._site, self._spec = site, spec
        self._id, self._process = "", None  # type: tuple[str, subprocess.Popen[bytes] | None]
        self._requirements = [f"--requires=host:{','.join(self.hosts)}"] if hosts[spec["nodes"] :] else []
        self._enclosing_job = os.environ.get("FLUX_ENCLOSING_ID")  # unset in the outermost instance
        self.job = _describe_job(self._enclosing_job)

    def start(self, program: Program, log: Path) -> list[subprocess.Popen[bytes]]:
        """See Launcher.

        Raises:
            AttemptLost: If Flux does not start the ranks within JOB_TIMEOUT_S. A longer wait for nodes would
                count as run time.
        """
        spec = self._spec
        identity = 'RINGSIDE_RANK="$FLUX_TASK_RANK" RINGSIDE_LOCAL_RANK="$FLUX_TASK_LOCAL_ID"'
        self._id = query_flux(
            "submit",
            f"--job-name=ringside-{spec['run_id']}"[:200],
            f"--nodes={spec['nodes']}",
            f"--ntasks={spec['ranks']}",
            f"--cores-per-task={cores_per_task(spec)}",
            *([f"--gpus-per-task={spec['replicas_per_rank']}"] if spec["device"] != "cpu" else []),
            *self._requirements,
            "--setopt=cpu-affinity=per-task",
            f"--setopt=exit-timeout={GRACE_S:.0f}s",
            *program.command_after(self._site.setup, identity),
        )
        with contextlib.suppress(AttemptLost):  # the events below have the reason
            query_flux("job", "wait-event", f"--timeout={JOB_TIMEOUT_S:.0f}", self._id, "start", tries=1)
        events = self._events()
        if not any(event["name"] == "start" for event in events):
            text = f"Flux did not start job {self._id} within {JOB_TIMEOUT_S:.0f} s: nodes are busy"
            raise AttemptLost(
                _exception_note(events) or Note("not-started", text, job=self._id, within_s=JOB_TIMEOUT_S)
            )
        with open(log, "ab") as output:
            self._process = spawn(["flux", "job", "attach", self._id], _environment(), output)
        return [self._process]

    def raise_if_lost(self, _log: Path) -> None:
        """See Launcher. Reads the state of the enclosing job and Flux's events."""
        if self._enclosing_job and (state := job_state(self._enclosing_job)) != RUNNING:
            raise job_ended_error(self.job["number"], state)
        for event in self._events():
            context = event.get("context", {})
            if event["name"] == "exception" and (
                context["type"] != "exec" or context["note"].startswith(_NODE_LOST_PREFIXES)
            ):
                raise AttemptLost(
                    Note(EXCEPTION_CODE, context["note"] or context["type"], type=context["type"])
                )

    def explain(self, exit_statuses: Sequence[int | None], _log: Path) -> Note:
        """See Launcher. Reads Flux's events: the first failed task, or the reason that Flux gives."""
        for event in self._events("--path=exec"):
            if event["name"] == "shell.task-exit":
                task = event["context"]
                host = self.hosts[task["rank"] // self._spec["ranks_per_node"]]
                return rank_failure_reason(task["rank"], -task["signaled"] or task["exitcode"], host)
        return _exception_note(self._events()) or starter_failure_reason(
            "flux job attach", exit_statuses[0] or 0
        )

    def kill_ranks(self) -> None:
        """See Launcher. Kills the ranks through Flux, then the attached client."""
        if self._id:
            with contextlib.suppress(AttemptLost):
                query_flux("job", "kill", "--signal=SIGKILL", self._id, tries=1)
            with contextlib.suppress(AttemptLost):
                query_flux("job", "wait-event", f"--timeout={JOB_TIMEOUT_S:.0f}", self._id, "clean", tries=1)
        if self._process:
            kill([self._process])

    def _events(self, *options: str) -> list[dict[str, Any]]:
        """Return the event log of the ranks' job (RFC 18 of Flux)."""
        log = query_flux("job", "eventlog", "--format=json", *options, self._id)
        return [json.loads(line) for line in log.splitlines()]


def job_state(number: str) -> str:
    """Return a job's state in the enclosing instance, such as RUN or CANCELED.

    Raises:
        AttemptLost: If the enclosing instance does not answer.
    """
    return query_flux("--parent", "jobs", "--no-header", "--format={status}", number)


def query_flux(*words: str, tries: int = 3) -> str:
    """Return the output of a Flux command.

    Raises:
        AttemptLost: If it fails `tries` times, 2 s apart.
    """

    def ask_once() -> str:
        result = capture_client(["flux", *words], _environment())
        if result.returncode:
            raise Unanswered(client_message(result))
        return result.stdout.strip()

    try:
        return query_scheduler(ask_once, "flux", f"flux {' '.join(words[:2])}", tries)
    except FileNotFoundError:
        text = "flux: command not found on this node"
        raise AttemptLost(Note("not-installed", text, program="flux")) from None


def _up_nodes() -> list[str]:
    """Return the nodes of this instance that are up, in Flux's order."""
    up = query_flux("resource", "list", "--states=up", "--no-header", "--format={nodelist}")
    return query_flux("hostlist", "--expand", up).split() if up else []


def _describe_job(number: str | None) -> dict[str, Any]:
    """Return the `job` of a Launcher: the one that runs this instance in the enclosing instance."""
    if not number:
        return {"number": "?", "submitted_at": None, "started_at": None}
    fields = query_flux(
        "--parent", "jobs", "--no-header", "--format={id.f58plain} {t_submit} {t_run}", number
    ).split()
    return {
        "number": fields[0],
        "submitted_at": format_utc(float(fields[1])),
        "started_at": format_utc(float(fields[2])),
    }


def _exception_note(events: Sequence[Mapping[str, Any]]) -> Note | None:
    """Return the reason of the first exception that Flux recorded for a job, or None."""
    context = next((event["context"] for event in events if event["name"] == "exception"), None)
    return Note(EXCEPTION_CODE, context["note"], type=context["type"]) if context else None


def _environment() -> dict[str, str]:
    """Return the environment of flux commands, with the address of the instance."""
    return {**kept_variables(), "FLUX_URI": os.environ.get("FLUX_URI", "")}


launcher_class = Flux
