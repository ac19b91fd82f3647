"""What launchers do with the scheduler's job around them: choose its nodes, report its absence or its end."""

from collections.abc import Mapping, Sequence
from typing import Any

from common.errors import InputError
from common.notes import Note
from declared.site import Site
from launchers.protocol import AttemptLost


def select_hosts(site: Site, hosts: Sequence[str], needed: int, job: str) -> list[str]:
    """Return the nodes of a run: the first `needed` of a job's `hosts` that the site does not exclude.

    Args:
        site: The site.
        hosts: All nodes of the job.
        needed: Number of nodes of the run.
        job: The job, or the file with its nodes, for the message.

    Raises:
        InputError: If the job has too few nodes.
        AttemptLost: If it has enough nodes, but too few without the excluded ones, because the node check
            ended after the job was submitted.
    """
    usable = site.usable_hosts(hosts)
    if len(usable) < needed <= len(hosts):
        excluded = sorted(set(hosts) - set(usable))
        text = f"{job} has {', '.join(excluded)}, which exclude_nodes leaves out"
        raise AttemptLost(Note("nodes-excluded", text, excluded=excluded, needed=needed))
    if len(usable) < needed:
        problem = f"has {len(hosts)} nodes, the run needs {needed}"
        raise InputError("too-few-nodes", problem, file=job, got=len(hosts), hint="ask for more")
    return usable[:needed]


def cores_per_task(spec: Mapping[str, Any]) -> int:
    """Return how many cores to request for each rank.

    For heterogeneous ranks this is the mean, since they distribute the cores of their node themselves.
    """
    core_counts = spec.get("rank_cores")
    return max(1, sum(core_counts) // len(core_counts)) if core_counts else int(spec["cores_per_rank"])


def outside_of_job_error(site: Site, job_kind: str, hint: str) -> InputError:
    """Return the error of a launcher outside of a job; `job_kind` is a phrase such as "a Slurm job"."""
    problem = f"{site.launcher} starts ranks inside {job_kind} only"
    return InputError("outside-of-job", problem, file=site.file, key="launcher", got=site.launcher, hint=hint)


def job_ended_error(number: str, state: str, prefix: str = "") -> AttemptLost:
    """Return the exception for a scheduler's job that ended during the run; `prefix` precedes its state."""
    return AttemptLost(
        Note("job-ended", f"job {number} ended during the run ({prefix}{state})", job=number, state=state)
    )
