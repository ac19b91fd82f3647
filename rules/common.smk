# What all stages share: the campaign that the configuration names, and the names that rules use.

import asyncio
import gc
import os
import signal
import sys
import threading
from pathlib import Path

CHECKOUT = Path(str(workflow.current_basedir)).parent  # whichever Snakefile was named: workflow/ has one, too
SCRIPTS = "workflow/scripts"
if workflow.is_main_process:
    gc.disable()  # until jobs start: the graph of jobs stays, and who looks for garbage in it takes a sixth of the planning
sys.path.insert(0, f"{CHECKOUT}/{SCRIPTS}")
os.environ["PYTHONPATH"] = f"{CHECKOUT}/{SCRIPTS}"
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

import snakemake.exceptions
from common import made_of, warm
from sites import disturbance
from sites.readiness import check_builds, check_bundle, check_launch, node_paths
from common.code import code as files_of_code
from common.errors import InputError, open_streams, print_error, say, system_error
from common.shell import check_node_by_pipe
from plan import ownership
from plan.campaign import load_campaign
from plan.scheduling import build_resources
from plan.specs import write_specs
from declared.configuration import read_config
from environments.made import check_unchanged
from records import time_left
from runs.attempts import machine_holder
from runs.progress import SESSION_VARIABLE, STOPPED_STATUS, Held, Interruption, Session
from runs.progress import after_nothing, count_usable, current_session, new_session, quiet


def or_say_so(action):
    """What `action` returns; where an input is wrong its one line and the end, which a traceback would bury."""
    try:
        return action()
    except InputError as error:
        print_error(error)
        sys.exit(2)
    except OSError as error:
        print_error(system_error(error))
        sys.exit(2)


def code(*modules):
    """Return the files that a program is made of. What they do decides whether its output is current (made_of), not their dates."""
    return ancient(files_of_code(*modules))


def in_the_checkout():
    """All paths are those of a checkout, whose name can be printed."""
    try:
        str(CHECKOUT).encode()
    except UnicodeEncodeError:
        problem, hint = "has bytes in its name that are not UTF-8", "rename the folder, or clone it elsewhere"
        raise InputError("wrong-encoding", problem, file=CHECKOUT, hint=hint) from None
    if Path.cwd() != CHECKOUT.resolve():
        raise InputError(
            "outside-of-checkout",
            "is not the workflow's checkout",
            file=Path.cwd(),
            hint=f"call snakemake in {CHECKOUT}, or clone it here",
        )


open_streams()
or_say_so(in_the_checkout)
if workflow.is_main_process:
    or_say_so(lambda: ownership.refuse_unwritable(Path(".snakemake")))
or_say_so(lambda: read_config(CHECKOUT / "config" / "config.yaml"))


configfile: "config/config.yaml"


CAMPAIGN = or_say_so(lambda: load_campaign(config, look=workflow.is_main_process))
DISTURBED = disturbance.looks(CAMPAIGN.site)  # from here to the first job, which is long enough to see
# Who comes second is told so in a line of ours; Snakemake's advice is to remove the lock.
snakemake.exceptions.LockException = lambda: or_say_so(ownership.refuse_second)
LOCKING = not {"--nolock", "--unlock"} & set(sys.argv)
DRY_RUN = workflow.output_settings.dryrun  # workflow.dryrun is known only when jobs are
if workflow.is_main_process and not DRY_RUN and LOCKING:
    or_say_so(lambda: ownership.refuse_stale(Path(".snakemake")))

STUDY = CAMPAIGN.study.name
SITE = CAMPAIGN.site.name
RESULTS = str(CAMPAIGN.results)
CACHE = str(CAMPAIGN.site.cache)
RUNS_CSV = str(CAMPAIGN.runs_csv)
EPOCHS_CSV = str(CAMPAIGN.epochs_csv)

# How rules call a program: in a process that has its libraries already, where there is one (started when the jobs are known).
WARM = f"python -IS {SCRIPTS}/common/warm.py"

# What figures and tables stand on although a program reads only the tables: what was removed of it is made again.
REQUIRED_RECORDS = list(CAMPAIGN.records.values()) if CAMPAIGN.mode == "campaign" else []
STANDS_ON = [*REQUIRED_RECORDS, f"{RESULTS}/design.csv"] if CAMPAIGN.mode != "published" else []
records_of_block = CAMPAIGN.records_of_block

os.environ.setdefault(SESSION_VARIABLE, new_session())

# A run takes all of the machine, everything else at least 1: nothing that loads it stands beside a run.
workflow.register_resource("machine", 100)


# What is light stays where Snakemake is (localrules of each file); so do builds, unless the site says otherwise.
BUILD_LOCALLY = CAMPAIGN.site.scheduler.build_on == "login"
BUILD_RESOURCES = build_resources(CAMPAIGN.site)


def is_made(stamp):
    """Whether a cache has this, so that it is no job's output.

    As one it could be out of date for other reasons than its absence (other params, as of another site that shares the cache);
    and then Snakemake leaves out all that stands on it, since that takes it as ancient (9.27, DAG.update_needrun).
    """
    return workflow.is_main_process and Path(stamp).exists()


def lacking(stamps):
    """The digests of those stamps that have to be made, as the constraint of a wildcard."""
    return "|".join(Path(stamp).parent.name for stamp in stamps if not is_made(stamp)) or "(?!)"


wildcard_constraints:
    run_id=r"[^/]+",
    key=r"[0-9a-f]{12}",


# What Snakemake says around every job would bury the lines that say how far the campaign is.
from snakemake.executors import dryrun
from snakemake.logging import logger
from snakemake.settings.enums import Quietness


def stop_campaign():
    """Let no further job begin, as Snakemake does at SIGTERM, and return whether: not where the caller says --keep-going.

    That of the profiles is about jobs that were lost. Snakemake's own handler would wait for a lock that the caller may hold.
    """
    if {"--keep-going", "-k"} & set(sys.argv):
        return False
    workflow.scheduler._user_kill = "graceful"
    return True


TERMINALS = [stream for stream in (1, 2) if os.isatty(stream)]


def end_campaign(signum, frame):
    """Let the runs under way end, then exit, as Snakemake does at SIGTERM. A terminal that was closed takes no words any more."""
    if signum == signal.SIGHUP:
        for stream in TERMINALS:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    # In a thread: the scheduler's lock may be held right where this signal came.
    threading.Thread(target=workflow.scheduler.exit_gracefully).start()


def tell_usable():
    """Say how many runs figures are made of, as the last line; the exit status tells where there are none."""
    if "figures" in {job.rule.name for job in workflow.dag.jobs} and not DRY_RUN:
        usable = count_usable(Path(RUNS_CSV))
        say(f"ringside: {usable}")
        if not usable.facts["usable"]:
            sys.exit(STOPPED_STATUS)


ASKED_FOR = CAMPAIGN.pilot if "pilot" in sys.argv else CAMPAIGN
SESSION = (
    or_say_so(
        lambda: Session(
            CAMPAIGN.results,
            current_session(),
            planned=len(ASKED_FOR.records),
            done=len(ASKED_FOR.available()),
            left_s=time_left.observer(ASKED_FOR),
            known=lambda: ASKED_FOR.now().known(),
            stop=stop_campaign,
        )
    )
    if CAMPAIGN.mode == "campaign" and workflow.is_main_process
    else None
)
logger.addFilter(lambda record: quiet(SESSION, record))
logger.addFilter(Interruption())
logger.addFilter(lambda record: after_nothing(record, tell_usable))
HELD = Held()  # until onstart has looked, where that is called
if not DRY_RUN and "--no-hooks" not in sys.argv:
    logger.addFilter(HELD)
if workflow.is_main_process:
    made_of.watch(workflow, [] if CAMPAIGN.design_stands else [f"{RESULTS}/design.csv"])
if DRY_RUN and Quietness.RULES in (workflow.output_settings.quiet or ()):
    dryrun.Executor.printjob = (
        lambda executor, job: None
    )  # to describe each job to nobody takes a fourth of the planning


onstart:
    gc.freeze()
    gc.enable()
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) != signal.SIG_IGN:  # as nohup wants it
            signal.signal(signum, end_campaign)
    if LOCKING:
        or_say_so(lambda: ownership.claim(Path(".snakemake")))
    or_say_so(lambda: ownership.refuse_unwritable(CAMPAIGN.results))
    # Snakemake's limit of jobs per second leaves one more timer behind with every job, each firing every second: after
    # fifty runs it took a tenth of a core beside the run that was being measured.
    workflow.scheduler.job_rate_limiter = None
    # Slurm's plugin looks ten seconds later after every look at which no job ended, up to three minutes, in which a cluster
    # on which runs follow each other stands idle: as often as the profile says instead.
    if workflow.executor_plugin.name == "slurm":
        workflow.scheduler._executor.sleep = lambda: asyncio.sleep(
            workflow.remote_execution_settings.seconds_between_status_checks
        )
    needed = {job.rule.name for job in workflow.dag.needrun_jobs()}
    launched = {"run", "sweep", "timing"} & needed
    disturbed = (
        disturbance.told(DISTURBED(bool(machine_holder())), CAMPAIGN.site, CAMPAIGN.runs_csv) if launched else None
    )
    if launched:
        or_say_so(lambda: check_launch(CAMPAIGN, workflow.executor_plugin.name, runs="run" in launched))
        or_say_so(lambda: check_unchanged(map(Path, CAMPAIGN.environments.values())))
    to_build, to_prepare = (
        sorted({job.wildcards[of] for job in workflow.dag.needrun_jobs() if job.rule.name == of})
        for of in ("environment", "dataset")
    )
    built_by = {"extra_p": "extrap", "found": "planner"}
    tools = [built_by[job.rule.name] for job in workflow.dag.needrun_jobs() if job.rule.name in built_by]
    or_say_so(lambda: check_bundle(CAMPAIGN.site, [*to_build, *tools], to_prepare))
    if to_build:
        or_say_so(lambda: check_builds(CAMPAIGN.site, to_build))
    if {"run", "precision"} & needed:
        to_run = {job.wildcards.run_id for job in workflow.dag.needrun_jobs() if job.rule.name == "run"}
        or_say_so(lambda: write_specs(CAMPAIGN, to_run))
    if CAMPAIGN.site.launcher != "local":  # what submits jobs reads it; Slurm's jobs begin with it
        seen = node_paths(CAMPAIGN)
        os.environ["RINGSIDE_NODE_PATHS"] = "\n".join(seen)
        if workflow.executor_plugin.name == "slurm":
            remote = workflow.remote_execution_settings
            remote.precommand = " && ".join(filter(None, [check_node_by_pipe(seen), remote.precommand]))
    HELD.release(logger)
    if len([job for job in workflow.dag.needrun_jobs() if job.is_shell]) > 1 and warm.VARIABLE not in os.environ:
        os.environ[warm.VARIABLE] = warm.start()
    if "base" not in config:  # which is about other campaigns
        print(CAMPAIGN.outlook(), *CAMPAIGN.left_out(), *CAMPAIGN.never_precise(), sep="\n", flush=True)
    if disturbed:
        print(f"ringside: {disturbed}", flush=True)


onsuccess:
    if "figures" in {job.rule.name for job in workflow.dag.jobs}:
        print(
            f"figures: {RESULTS}/figures, tables: {RESULTS}/tables; one page with everything: ./ringside report {STUDY}",
            flush=True,
        )
    tell_usable()


onerror:
    if SESSION and SESSION.stopped:
        say(f"ringside: {SESSION.stopped}", to_stderr=True)
        sys.exit(STOPPED_STATUS)
