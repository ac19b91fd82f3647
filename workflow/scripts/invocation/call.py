"""Check and report one call of Snakemake: load the campaign, check the jobs' needs, and print the outcome.

`rules/common.smk` makes a `Call` while Snakemake reads the rules, and calls its methods from Snakemake's
handlers onstart, onsuccess and onerror. Snakemake does not call onstart with --no-hooks or --dry-run, or if
there is nothing to do.
"""

import gc
import importlib.metadata
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from common import prefork_server
from common.errors import InputError, open_streams, print_error, print_line, system_error
from common.shell import check_node_by_pipe
from declared.configuration import read_config
from environments.built import check_unchanged
from invocation.content_check import ContentCheck
from invocation.snakemake_scheduler import cancel_timers, end_at_signals, poll_slurm_steadily, stop_scheduling
from plan import ownership
from plan.campaign import Campaign, load_campaign
from plan.plan_files import write_plans
from records import time_left
from runs.machine_lock import machine_locked_by
from runs.progress import (
    CLOSING_LINES,
    HALTED_STATUS,
    LAUNCHING_RULES,
    CampaignProgress,
    Interruption,
    act_if_nothing_to_do,
    count_usable,
    filter_log,
    print_planned_search,
)
from runs.session import SESSION_VARIABLE, current_session, new_session
from sites import disturbance
from sites.readiness import check_builds, check_bundle, check_launch, node_paths

STATE = Path(".snakemake")
TESTED_MAJOR_VERSION = 9  # of Snakemake, whose API changes with each major version
LOGGER = "snakemake.logging"
TOOL_ENVIRONMENTS = {"extra_p": "extrap", "found": "planner"}  # rule -> the environment that it needs
Result = TypeVar("Result")


def exit_on_input_error(action: Callable[[], Result]) -> Result:
    """Return the result of `action`; after an InputError or OSError, print its lines and exit with status 2.

    Snakemake would print a traceback, in which the lines would be hard to find.
    """
    try:
        return action()
    except InputError as error:
        print_error(error)
        sys.exit(2)
    except OSError as error:
        print_error(system_error(error))
        sys.exit(2)


def prepare_process(checkout: Path, scripts: Path, plans: bool) -> None:
    """Set variables for the programs of jobs, and check folder and configuration; exit if a check fails.

    Snakemake has to run in the checkout and, if it plans, be able to write there.

    Args:
        checkout: The folder of the workflow.
        scripts: Its workflow/scripts.
        plans: Whether this process plans; otherwise it runs a single job.
    """
    os.environ["PYTHONPATH"] = str(scripts)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    open_streams()
    exit_on_input_error(lambda: check_snakemake(importlib.metadata.version("snakemake")))
    exit_on_input_error(lambda: _check_folder(checkout))
    if plans:
        exit_on_input_error(lambda: ownership.raise_if_unwritable(STATE))
    exit_on_input_error(lambda: read_config(checkout / "config" / "config.yaml"))


def check_snakemake(version: str) -> None:
    """Raise InputError for a major version of Snakemake that Ringside was not tested with.

    `min_version` in the Snakefile refuses older ones.
    """
    if int(version.partition(".")[0]) > TESTED_MAJOR_VERSION:
        raise InputError(
            "unsupported-version",
            f"this is Snakemake {version}",
            file="snakemake",
            expected=f"9.20 or a later version of {TESTED_MAJOR_VERSION}",
            hint="call `./ringside run`, or activate .venv, which has such a version",
        )


def _check_folder(checkout: Path) -> None:
    """Raise InputError unless Snakemake runs in the checkout, and the checkout's path is UTF-8."""
    try:
        str(checkout).encode()
    except UnicodeEncodeError:
        problem, hint = "has bytes in its name that are not UTF-8", "rename the folder, or clone it elsewhere"
        raise InputError("wrong-encoding", problem, file=checkout, hint=hint) from None
    if Path.cwd() != checkout.resolve():
        raise InputError(
            "outside-of-checkout",
            "is not the workflow's checkout",
            file=Path.cwd(),
            hint=f"call snakemake in {checkout}, or clone it here",
        )


class Call:
    """The campaign of one call of Snakemake, and the reactions to Snakemake's events.

    Args:
        workflow: Snakemake's global `workflow`.
        rules: Snakemake's global `rules`.
        config: The configuration.

    Attributes:
        campaign: The study at a site that the configuration names.
        content: Compares products by content.
        dry_run: Whether nothing runs.
    """

    def __init__(self, workflow: Any, rules: Any, config: Mapping[str, Any]) -> None:
        self._workflow = workflow
        self._plans = bool(workflow.is_main_process)
        self._locks = not {"--nolock", "--unlock"} & set(sys.argv)
        self.dry_run = bool(workflow.output_settings.dryrun)
        if self._plans:
            # Garbage collection would repeatedly scan the graph of jobs: a sixth of planning time.
            gc.disable()
        self.campaign: Campaign = exit_on_input_error(lambda: load_campaign(dict(config), probe=self._plans))
        # The meter measures the CPU time of other processes until the first job starts.
        self._cpu_shares = disturbance.share_meter(self.campaign.site)
        if self._plans and not self.dry_run and self._locks:
            exit_on_input_error(lambda: ownership.refuse_stale(STATE))
        os.environ.setdefault(SESSION_VARIABLE, new_session())
        touch = bool({"--touch", "-t"} & set(sys.argv))
        self.content = ContentCheck(rules, self._plans, self.dry_run, touch)
        self._progress = self._begin_session()
        self._follow_log()
        poll_slurm_steadily()

    def _begin_session(self) -> CampaignProgress | None:
        if not self.campaign.is_measuring or not self._plans:
            return None
        campaign = self.campaign.pilot if "pilot" in sys.argv else self.campaign
        # Only the command line counts: keep-going in a profile is about lost jobs.
        keep_going = {"--keep-going", "-k"} & set(sys.argv)
        return exit_on_input_error(
            lambda: CampaignProgress(
                campaign.results,
                current_session(),
                n_planned=len(campaign.record_paths),
                n_done=len(campaign.existing_record_paths()),
                left_s=time_left.time_left_estimator(campaign),
                count_planned=lambda: campaign.with_current_decisions().count_runs(),
                stop_scheduling=None if keep_going else stop_scheduling,
            )
        )

    def _follow_log(self) -> None:
        """Add filters to Snakemake's log, which react to events and hide lines that would bury progress."""
        logger = logging.getLogger(LOGGER)
        logger.addFilter(self.content.filter)
        logger.addFilter(_follow_jobs)
        logger.addFilter(lambda record: filter_log(self._progress, record))
        logger.addFilter(Interruption())
        logger.addFilter(lambda record: act_if_nothing_to_do(record, self.print_outcome))
        logger.addFilter(_replace_advice_to_unlock)
        if self.dry_run:
            logger.addFilter(print_planned_search)

    @cached_property
    def required_records(self) -> list[str]:
        """Records that figures and tables need as inputs, although their programs read only tables."""
        return list(self.campaign.record_paths.values()) if self.campaign.is_measuring else []

    def is_made(self, stamp: str | Path) -> bool:
        """Return whether a cache has a stamp, which then must not be the output of a job.

        As an output, an existing stamp can be out of date. Snakemake would then skip all jobs that depend on
        it, because they declare it as ancient (9.27, DAG.update_needrun).
        """
        return self._plans and Path(stamp).exists()

    def missing_digests(self, stamps: Iterable[str | Path]) -> str:
        """Return the digests of missing stamps, as the constraint of a wildcard."""
        return "|".join(Path(stamp).parent.name for stamp in stamps if not self.is_made(stamp)) or "(?!)"

    def start(self) -> None:
        """Check what the jobs need, write the plans of runs, and start the prefork server (onstart).

        Print the campaign's summary; exit with status 2 if a check fails.
        """
        gc.freeze()
        gc.enable()
        end_at_signals()
        jobs = list(self._workflow.dag.needrun_jobs())
        due = {job.rule.name for job in jobs}
        launched = LAUNCHING_RULES & due
        if self._locks:
            exit_on_input_error(lambda: ownership.claim(STATE))
        exit_on_input_error(lambda: ownership.raise_if_unwritable(self.campaign.results))
        exit_on_input_error(lambda: _check_shares({job.rule.name: job for job in jobs if job.is_shell}))
        disturbance_note = self._disturbance() if launched else None
        exit_on_input_error(lambda: self._check_launch(runs="run" in launched) if launched else None)
        environments, datasets = (
            sorted({job.wildcards[wildcard] for job in jobs if job.rule.name == wildcard})
            for wildcard in ("environment", "dataset")
        )
        tools = [TOOL_ENVIRONMENTS[rule] for rule in sorted(due & TOOL_ENVIRONMENTS.keys())]
        exit_on_input_error(lambda: check_bundle(self.campaign.site, [*environments, *tools], datasets))
        exit_on_input_error(lambda: check_builds(self.campaign.site, environments))
        if {"run", "replication"} & due:
            runs = {job.wildcards.run_id for job in jobs if job.rule.name == "run"}
            exit_on_input_error(lambda: write_plans(self.campaign, runs))
        if self.campaign.site.launcher != "local":
            self._check_nodes()
        if sum(job.is_shell for job in jobs) > 1:
            self.start_server()
        campaign = self.campaign
        print(
            campaign.summary(),
            *campaign.skipped_runs(),
            *campaign.unreachable_target(),
            *(campaign.unused_records() if campaign.is_measuring else []),
            sep="\n",
            flush=True,
        )
        if disturbance_note:
            print(f"ringside: {disturbance_note}", flush=True)

    def _check_nodes(self) -> None:
        """Make jobs check that their nodes can access the paths that they need."""
        paths = node_paths(self.campaign)
        os.environ["RINGSIDE_NODE_PATHS"] = "\n".join(paths)
        if self._workflow.executor_plugin.name == "slurm":
            remote = self._workflow.remote_execution_settings
            remote.precommand = " && ".join(filter(None, [check_node_by_pipe(paths), remote.precommand]))

    def start_server(self, preloaded: tuple[str, ...] = ()) -> None:
        """Start a prefork server unless one is running.

        Args:
            preloaded: Modules that the server imports immediately.
        """
        if prefork_server.SERVER_VARIABLE not in os.environ:
            os.environ[prefork_server.SERVER_VARIABLE] = prefork_server.start_server(preloaded)

    def start_server_early(self, outputs: Iterable[str]) -> None:
        """Import the libraries of figures while Snakemake plans, if any of `outputs` is missing."""
        if (
            self._plans
            and not self.dry_run
            and self.campaign.runs_csv.exists()
            and not all(map(os.path.exists, outputs))
        ):
            self.start_server(prefork_server.ANALYSIS_LIBRARIES)

    def _disturbance(self) -> str | None:
        shares = self._cpu_shares(bool(machine_locked_by()))
        return disturbance.describe(shares, self.campaign.site, self.campaign.runs_csv)

    def _check_launch(self, runs: bool) -> None:
        check_launch(self.campaign, self._workflow.executor_plugin.name, runs=runs)
        check_unchanged(map(Path, self.campaign.environments.values()))

    def _makes(self, rule: str) -> bool:
        return rule in {job.rule.name for job in self._workflow.dag.jobs}

    def print_outcome(self) -> None:
        """Print where the report is, if it was requested, and then how many runs are usable."""
        if self._makes("report") and not self.dry_run:
            print_line(f"report: {self.campaign.results}/report.html")
        self.print_usable()

    def print_usable(self) -> None:
        """Print how many runs are usable, if figures were requested; exit with HALTED_STATUS if none is."""
        if self._makes("figures") and not self.dry_run:
            usable = count_usable(self.campaign.runs_csv)
            print_line(f"ringside: {usable}")
            if not usable.facts["usable"]:
                sys.exit(HALTED_STATUS)

    def succeed(self) -> None:
        """Write the remaining records of products, and print where the figures are (onsuccess)."""
        cancel_timers()
        self.content.finish_all()
        if self._makes("figures"):
            results, study = self.campaign.results, self.campaign.study.name
            places = f"figures: {results}/figures, tables: {results}/tables"
            print(f"{places}; one page with everything: ./ringside report {study}", flush=True)
        self.print_outcome()
        logging.getLogger(LOGGER).addFilter(lambda record: not str(record.msg).startswith(CLOSING_LINES))

    def fail(self) -> None:
        """Print why the campaign halted, if it did, and exit with HALTED_STATUS (onerror)."""
        cancel_timers()
        if self._progress and self._progress.failures.halted:
            print_line(f"ringside: {self._progress.failures.halted}", to_stderr=True)
            sys.exit(HALTED_STATUS)


def _check_shares(jobs: Mapping[str, Any]) -> None:
    """Raise InputError if a job requests no share of the machine: it could run during a measurement."""
    for rule, job in jobs.items():
        if not job.resources.get("machine"):
            hint = "add machine=1 to your --default-resources, which replace those of profiles/default"
            raise InputError("missing-resource", "has no resource machine", file=rule, hint=hint)


def _follow_jobs(record: logging.LogRecord) -> bool:
    """Cancel timers whenever a job begins; a filter of Snakemake's log."""
    if getattr(getattr(record, "event", None), "name", "") == "JOB_INFO":
        cancel_timers()
    return True


def _replace_advice_to_unlock(record: logging.LogRecord) -> bool:
    """Replace Snakemake's advice to remove the lock by an error, and exit; a filter of Snakemake's log.

    The error says which Snakemake is working in this folder.
    """
    if str(record.msg).startswith("LockException"):
        exit_on_input_error(ownership.refuse_second)
    return True
