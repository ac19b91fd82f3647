"""Read the jobs of a campaign in the cluster's queue, which is possible under Slurm only."""

from collections.abc import Mapping
from dataclasses import dataclass

from common.notes import Note
from common.shell import Unanswered
from plan.campaign import Campaign
from runs.submit import is_campaign_job
from sites import slurm

QUEUE_TIMEOUT_S = 5.0
UNREAD_QUEUES = {  # launcher -> name of the scheduler, and the command that shows its queue
    "oar": ("OAR", "oarstat"),
    "pbs": ("PBS", "qstat"),
    "flux": ("Flux", "flux jobs"),
}


@dataclass(frozen=True)
class Job:
    """A job of the campaign in the cluster's queue.

    Attributes:
        task: The block or the run that it executes.
        state: Slurm's state, such as RUNNING.
        nodes: Its nodes, or why it waits.
    """

    number: str
    task: str
    state: str
    since: str
    nodes: str

    @property
    def is_running(self) -> bool:
        """Whether it runs, instead of waiting."""
        return self.state == "RUNNING"


def read_jobs(campaign: Campaign, keys: Mapping[str, str]) -> tuple[list[Job] | None, str]:
    """Return the campaign's jobs in Slurm's queue and "", or None and the reason why the queue was not read.

    `keys` has the name of the run or benchmark of each key.
    """
    if unread := UNREAD_QUEUES.get(campaign.site.launcher):
        scheduler, command = unread
        return None, Note(
            "queue-not-read",
            f"{scheduler}'s queue is not read; see {command}",
            scheduler=scheduler,
            see=command,
        )
    if campaign.site.launcher != "slurm":
        return None, ""
    squeue = ("squeue", "--me", "--noheader", "--format=%i|%j|%T|%S|%R|%k")
    try:
        rows = [
            line.split("|", 5) for line in slurm.run_client(*squeue, timeout_s=QUEUE_TIMEOUT_S).splitlines()
        ]
    except Unanswered as unanswered:
        answer = str(unanswered)
        return None, Note("queue-unanswered", f"the queue does not answer: {answer}", answer=answer)
    jobs = []
    # Snakemake sets the comment of a job to rule_run_wildcards_<run_id>_<key>.
    for number, name, state, since, nodes, comment in (row for row in rows if len(row) == 6):
        run = keys.get(comment.rpartition("_")[2])
        if is_campaign_job(campaign, name, comment) or run:
            task = run or comment.removeprefix(f"{campaign.study.name} ")
            jobs.append(Job(number, task, state, since, nodes.strip("()")))
    return jobs, ""
