"""Ranks as tasks of one Flux job, inside an instance of Flux (flux batch, flux alloc, flux start): no ssh."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.files import utc
from common.notes import Note
from common.shell import Program
from declared.site import Site
from launchers.launch import (
    GRACE_S,
    Lost,
    cores_per_task,
    job_ended,
    kept_variables,
    kill,
    outside_of_job,
    rank_failure,
    spawn,
    starter_failure,
    too_few_nodes,
)

PATIENCE_S = 10.0  # for Flux to start the ranks, or to end them
RUNNING = "RUN"
EXCEPTION = "flux-exception"  # the code of what Flux itself says of a job that it ended
_LOST = ("node failure", "lost contact")  # how Flux's exceptions of type exec begin where no rank is the cause


class Flux:
    """See launchers.launch.Launcher. The first nodes of the instance that are up take the run."""

    def __init__(self, site: Site, spec: Mapping[str, Any], mpi: bool = False) -> None:
        if "FLUX_URI" not in os.environ:
            raise outside_of_job(site, "an instance of Flux", "use snakemake --profile flux")
        hosts = list(dict.fromkeys(_nodes()))
        if len(hosts) < spec["nodes"]:
            if int(ask("getattr", "size")) >= spec["nodes"]:
                text = f"only {', '.join(hosts) or 'no node'} is up, the run needs {spec['nodes']} nodes"
                raise Lost(Note("nodes-down", text, up=hosts, needed=spec["nodes"]))
            raise too_few_nodes("flux resource list", len(hosts), spec["nodes"])
        self._site, self._spec = site, spec
        self._id, self._process = "", None  # type: tuple[str, subprocess.Popen[bytes] | None]
        self._asked_for = [f"--requires=host:{','.join(hosts[: spec['nodes']])}"] if hosts[spec["nodes"] :] else []
        self._around = os.environ.get("FLUX_ENCLOSING_ID")  # the job that this instance is, if an instance is around it
        self.job = _job(self._around)
        self.hosts = hosts[: spec["nodes"]]

    def start(self, program: Program, log: Path) -> list[subprocess.Popen[bytes]]:
        """See Launcher. Lost when Flux does not start the ranks: what they would have to wait for is not the run's time."""
        spec = self._spec
        identity = 'RINGSIDE_RANK="$FLUX_TASK_RANK" RINGSIDE_LOCAL_RANK="$FLUX_TASK_LOCAL_ID"'
        self._id = ask(
            "submit",
            f"--job-name=ringside-{spec['run_id']}"[:200],
            f"--nodes={spec['nodes']}",
            f"--ntasks={spec['ranks']}",
            f"--cores-per-task={cores_per_task(spec)}",
            *(["--gpus-per-task=1"] if self._site.devices_per_node else []),
            *self._asked_for,
            "--setopt=cpu-affinity=per-task",
            f"--setopt=exit-timeout={GRACE_S:.0f}s",
            *program.behind(self._site.setup, identity),
        )
        with contextlib.suppress(Lost):  # the events say it better
            ask("job", "wait-event", f"--timeout={PATIENCE_S:.0f}", self._id, "start", tries=1)
        events = self._events()
        if not any(event["name"] == "start" for event in events):
            text = f"Flux did not start job {self._id} within {PATIENCE_S:.0f} s: nodes are busy"
            raise Lost(_fatal(events) or Note("not-started", text, job=self._id, within_s=PATIENCE_S))
        with open(log, "ab") as out:
            self._process = spawn(["flux", "job", "attach", self._id], _environment(), out)
        return [self._process]

    def explain(self, codes: Sequence[int | None], log: Path) -> Note:
        """See Launcher. What Flux's events say of the first task that failed, or that a node or the job itself is gone."""
        if self._around and (state := job_state(self._around)) != RUNNING:
            raise job_ended(self.job["number"], state)
        events = self._events()
        for event in events:
            said = event.get("context", {})
            if event["name"] == "exception" and (said["type"] != "exec" or said["note"].startswith(_LOST)):
                raise Lost(Note(EXCEPTION, said["note"] or said["type"], type=said["type"]))
        for event in self._events("--path=exec"):
            if event["name"] == "shell.task-exit":
                said = event["context"]
                host = self.hosts[said["rank"] // self._spec["ranks_per_node"]]
                return rank_failure(said["rank"], -said["signaled"] or said["exitcode"], host)
        return _fatal(events) or starter_failure("flux job attach", codes[0] or 0)

    def end(self) -> None:
        """End the ranks through Flux, then what is attached to them."""
        if self._id:
            for order in (["kill", "--signal=SIGKILL"], ["wait-event", f"--timeout={PATIENCE_S:.0f}"]):
                with contextlib.suppress(Lost):
                    ask("job", *order, self._id, *(["clean"] if order[0] == "wait-event" else []), tries=1)
        if self._process:
            kill([self._process])

    def _events(self, *options: str) -> list[dict[str, Any]]:
        """What Flux has noted of the ranks' job, in order."""
        said = ask("job", "eventlog", "--format=json", *options, self._id)
        return [json.loads(line) for line in said.splitlines()]


def job_state(number: str) -> str:
    """What the instance around this one says of its job, such as RUN or CANCELED. Lost when it does not answer."""
    return ask("--parent", "jobs", "--no-header", "--format={status}", number)


def ask(*words: str, tries: int = 3) -> str:
    """What a command of Flux answers. Lost when it fails, so many times within some seconds."""
    said = ""
    for left in reversed(range(tries)):
        try:
            done = subprocess.run(
                ["flux", *words],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=30,
                env=_environment(),
            )
        except FileNotFoundError:
            text = "flux: there is no such program on this node"
            raise Lost(Note("not-installed", text, program="flux")) from None
        except subprocess.TimeoutExpired:
            said = "no answer"
        else:
            if done.returncode == 0:
                return done.stdout.strip()
            said = " ".join((done.stderr or done.stdout).split())[:300]
        time.sleep(2 if left else 0)
    text = f"flux {' '.join(words[:2])}: {said}"
    raise Lost(Note("scheduler-silent", text, program="flux", answer=said))


def _nodes() -> list[str]:
    """The nodes of this instance that are up, in Flux's order."""
    up = ask("resource", "list", "--states=up", "--no-header", "--format={nodelist}")
    return ask("hostlist", "--expand", up).split() if up else []


def _job(number: str | None) -> dict[str, Any]:
    """The job that this instance is, as the one around it tells."""
    if not number:
        return {"number": "?", "submitted_at": None, "started_at": None}
    told = ask("--parent", "jobs", "--no-header", "--format={id.f58plain} {t_submit} {t_run}", number).split()
    return {"number": told[0], "submitted_at": utc(float(told[1])), "started_at": utc(float(told[2]))}


def _fatal(events: Sequence[Mapping[str, Any]]) -> Note | None:
    """Return what ended a job for good, in Flux's words."""
    said = next((event["context"] for event in events if event["name"] == "exception"), None)
    return Note(EXCEPTION, said["note"], type=said["type"]) if said else None


def _environment() -> dict[str, str]:
    """What flux needs: the instance that it is to ask."""
    return {**kept_variables(), "FLUX_URI": os.environ.get("FLUX_URI", "")}


launcher = Flux
