"""Decide the status of a run from one attempt. `judge_run` has the last word.

`launchers.launch` decides how the ranks ended: ok, oom, failed or timeout. This module checks whether the
measurements count. If an attempt says nothing about the training, it raises `AttemptLost`: the attempt then
gets no record, so the next Snakemake that is asked for the run executes it.
"""

import errno
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import MACHINE_ERRORS
from common.notes import Note
from common.redaction import redact_log
from common.run_status import RunStatus
from declared.site import Site
from launchers.log import read_end
from launchers.protocol import AttemptLost, Outcome
from models.graph import BYTES
from models.messages import number_bytes
from plan.identity import PlannedRun
from runs import own_commands, reasons, transport

# Errors of the machine, not of the training, even if they last, such as a full disk. Ports are drawn at
# random: another attempt can find a free one.
_MACHINE_OR_PORT_ERRORS = (*MACHINE_ERRORS, errno.EADDRINUSE)
# Escape sequences for colours and cursors (ECMA-48), and for the title of xterm.
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07)")
# Texts in the errors of ranks and of torchrun that follow from the error of another process.
_CONSEQUENCES = (
    "a rank is gone",
    "torch.distributed.elastic",
    "torch/distributed/elastic",
    "ChildFailedError",
)
_ERROR = re.compile(r"Error|\berror(?::| on rank)")


class Verdict(NamedTuple):
    """The status of an attempt, and the reason if it is not OK."""

    status: RunStatus
    reason: Note | None = None


@dataclass(frozen=True)
class Measurements:
    """What was measured during an attempt.

    Attributes:
        measured: The record's entry of the same name; None if the ranks did not finish.
        epochs: The rows of epochs.csv.
        log_problem: What is wrong with the log of a user-supplied command, or None.
    """

    measured: dict[str, Any] | None
    epochs: Sequence[Mapping[str, Any]]
    log_problem: Note | None = None


def judge_run(
    planned_run: PlannedRun,
    outcome: Outcome,
    trace_problem: Note | None,
    measurements: Measurements,
    hosts: Sequence[str],
    log: Path,
    has_snakemake_ended: bool,
) -> Verdict:
    """Decide the status of a run from one attempt. Nothing changes the status afterwards.

    Args:
        planned_run: The run.
        outcome: How the ranks ended. TIMEOUT is final; OK can become FAILED or INVALID; FAILED and OOM stay,
            or the attempt is lost.
        trace_problem: Why Score-P left no trace, which makes a run FAILED.
        measurements: What was measured; `check_measurements` turns OK into FAILED or INVALID.
        hosts: Nodes on which the ranks were started.
        log: The log of the ranks.
        has_snakemake_ended: Whether Snakemake, or the process between it and this one, ended during the
            attempt.

    Raises:
        AttemptLost: If the attempt failed or ran out of memory after Snakemake had ended, or if it failed
            because of an error of the machine.
    """
    verdict = Verdict(outcome.status, outcome.reason)
    if outcome.status == RunStatus.OK and trace_problem:
        verdict = Verdict(RunStatus.FAILED, trace_problem)
    elif outcome.status == RunStatus.OK:
        gradient_bytes = reduced_bytes(planned_run, measurements.measured)
        verdict = check_measurements(measurements, planned_run.spec, planned_run.site, hosts, gradient_bytes)
    # Whatever ended Snakemake, such as the scheduler or a node without memory, often kills the ranks as well.
    # Their failure then says nothing about the training, even if memory ran out. A timeout does, because the
    # ranks had all of their time.
    if verdict.status in (RunStatus.FAILED, RunStatus.OOM) and has_snakemake_ended:
        raise AttemptLost(
            Note("parent-killed", "Snakemake or the process between it and the supervisor ended")
        )
    if verdict.status == RunStatus.FAILED and verdict.reason:
        return Verdict(RunStatus.FAILED, extend_failure_reason(verdict.reason, log))
    return verdict


def check_measurements(
    measurements: Measurements,
    run_spec: Mapping[str, Any],
    site: Site,
    hosts: Sequence[str],
    gradient_bytes: int,
) -> Verdict:
    """Return the verdict on an attempt if its ranks, started on `hosts`, ended without an error.

    It is FAILED if epochs are missing, or if the log of a user-supplied command cannot be read. It is INVALID
    for the first of these reasons that applies:

    1. the log of a user-supplied command does not fit the plan,
    2. a loss is not finite in some epoch,
    3. weights are not finite after the last epoch,
    4. a rank was paused,
    5. ranks were on other nodes than `hosts`,
    6. nodes of a site with distinct nodes share a machine,
    7. other processes used too much CPU time,
    8. a hypervisor took too much CPU time,
    9. gradients did not use the site's network (`transport.wrong_network_reason`).

    docs/explanation/measurement.md has the same list.
    """
    measured, epochs, log_problem = measurements.measured, measurements.epochs, measurements.log_problem
    if measured and log_problem:
        is_unreadable = log_problem.code == own_commands.UNREADABLE
        return Verdict(RunStatus.FAILED if is_unreadable else RunStatus.INVALID, log_problem)
    if measured is None or len(epochs) != run_spec["levels"]["epochs"]:
        n_planned = run_spec["levels"]["epochs"]
        text = f"ended after {len(epochs)} of {n_planned} epochs"
        return Verdict(RunStatus.FAILED, Note("ended-early", text, epochs=len(epochs), planned=n_planned))
    reason = _invalid_reason(measured, epochs, run_spec, site, hosts, gradient_bytes)
    return Verdict(RunStatus.INVALID, reason) if reason else Verdict(RunStatus.OK)


def _invalid_reason(
    measured: Mapping[str, Any],
    epochs: Sequence[Mapping[str, Any]],
    run_spec: Mapping[str, Any],
    site: Site,
    hosts: Sequence[str],
    gradient_bytes: int,
) -> Note | None:
    """Return the first of the reasons 2 to 9 of `check_measurements` that applies, or None."""
    for row in epochs:
        losses = [row[loss] for loss in ("train_loss", "validation_loss")]
        if not all(math.isfinite(loss) for loss in losses if loss is not None):
            text = f"the loss is not finite in epoch {row['epoch']:.0f}"
            return Note("loss-not-finite", text, epoch=row["epoch"])
    if measured["weights_finite"] is False:
        return Note("weights-not-finite", "weights are not finite after the last epoch")
    # Ranks record pauses below MIN_PAUSE_S (ranks.worker.heartbeat) as 0, so any other pause counts.
    if (paused_s := measured["paused_s"]) > 0:
        return Note("paused", f"{reasons.PAUSED_PREFIX} for {paused_s:.1f} s", paused_s=paused_s)
    shares = measured["other_cpu_share"], measured["steal_share"]
    if reason := misplaced_or_disturbed_reason(measured["hosts"], measured["machines"], hosts, shares, site):
        return reason
    # Only NCCL's log shows what carried the gradients of a user-supplied command.
    if measured["transport"] == transport.UNKNOWN:
        return None
    # Whatever the algorithm of an all-reduce, the busiest of n nodes sends at least (n - 1) / n of the
    # gradients: for each element, all nodes except one send a partial sum. A ring also sends the sum back,
    # hence the 2 (n - 1) / n of models.collectives. `transport` requires only MIN_SENT_SHARE of this bound.
    min_bytes = gradient_bytes * (run_spec["nodes"] - 1) / run_spec["nodes"]
    if reason := transport.wrong_network_reason(measured["transport"], run_spec, site, epochs, min_bytes):
        return Note(reason.code, f"{reasons.NETWORK_PREFIX}{reason}", **reason.facts)
    return None


def misplaced_or_disturbed_reason(
    hosts: Sequence[str], machines: int, expected: Sequence[str], shares: tuple[float, float], site: Site
) -> Note | None:
    """Return why ranks were misplaced or disturbed, or None: reasons 5 to 8 of `check_measurements`.

    Collective benchmarks and timings are checked in the same way.

    Args:
        hosts: Hosts of the ranks.
        machines: Number of machines behind these hosts.
        expected: Hosts on which the ranks were started.
        shares: Shares of CPU time of other processes and of CPU steal.
        site: The site.
    """
    if site.placement != "emulated" and _short_names(hosts) != _short_names(expected):
        text = f"{reasons.MISPLACED_PREFIX}ranks were on {', '.join(hosts)}, expected {', '.join(expected)}"
        return Note("misplaced", text, hosts=list(hosts), expected=list(expected))
    if site.placement == "distinct-nodes" and machines < len(hosts):
        text = (
            f"{reasons.MISPLACED_PREFIX}{', '.join(hosts)} are {machines} machine{'s' * (machines > 1)}, "
            "the site says distinct-nodes"
        )
        return Note("nodes-share-a-machine", text, hosts=list(hosts), machines=machines)
    for code, share, limit, description in (
        ("other-cpu-time", shares[0], site.max_other_cpu_share, "went to other processes"),
        ("cpu-steal", shares[1], site.max_steal_share, "was taken by the hypervisor (steal)"),
    ):
        if share > limit:
            used = f"{100 * share:.1f} % of the CPU time {description}"
            text = f"{reasons.DISTURBED_PREFIX}{used} (limit {100 * limit:g} %)"
            return Note(code, text, share=share, limit=limit)
    return None


def _short_names(hosts: Sequence[str]) -> list[str]:
    """Return host names without domains."""
    return [host.split(".")[0] for host in hosts]


def extend_failure_reason(reason: Note, log: Path) -> Note:
    """Return the reason of a failure with the last error in the log appended, or raise AttemptLost.

    Raises:
        AttemptLost: If that error is one of the machine, such as a full disk, and not of the training.
    """
    extended = append_last_error(reason, log)
    for number in _MACHINE_OR_PORT_ERRORS:
        if os.strerror(number) in extended:
            raise AttemptLost(Note("machine-error", extended, error=errno.errorcode[number]))
    return extended


def append_last_error(reason: Note, log: Path) -> Note:
    """Return `reason` with the last error in the log appended, preferably one that no other rank caused."""
    plain = (_TERMINAL.sub("", line) for line in read_end(log).splitlines())
    lines = ["".join(filter(str.isprintable, line)).strip() for line in plain]
    # Lines of Slurm report the failure, but not its cause.
    lines = [line for line in lines if line and not line.startswith(("srun: ", "slurmstepd: "))]
    errors = [line for line in lines if _ERROR.search(line)]
    causes = [line for line in errors if not any(text in line for text in _CONSEQUENCES)] or errors
    last = redact_log((causes or lines or [""])[-1])
    return (
        Note(reason.code, f"{reason}: {last[:300]}", **reason.facts, last_line=last[:300]) if last else reason
    )


def reduced_bytes(planned_run: PlannedRun, measured: Mapping[str, Any] | None) -> int:
    """Return the bytes of a run's gradients in the type that ranks reduce, 0 for an unknown model."""
    gradient_bytes = planned_run.graph.gradient_bytes if planned_run.graph else 0
    if planned_run.graph and planned_run.graph.module and measured:
        # Only the ranks know how many parameters a user-supplied PyTorch module has.
        gradient_bytes = BYTES * measured["program_report"]["parameters"]
    return gradient_bytes * number_bytes(planned_run.spec["levels"]).reduced // BYTES
