# Shared by all stages: the campaign that the configuration names, and the names that rules use.

import os
import signal
import sys
import threading
from pathlib import Path

CHECKOUT = Path(str(workflow.current_basedir)).parent  # for either Snakefile: workflow/ also has one
SCRIPTS = "workflow/scripts"
sys.path.insert(0, f"{CHECKOUT}/{SCRIPTS}")

from common.program_sources import program_sources
from invocation.call import Call, exit_on_input_error, prepare_process
from plan.scheduling import build_resources

prepare_process(CHECKOUT, CHECKOUT / SCRIPTS, plans=workflow.is_main_process)


configfile: "config/config.yaml"


CALL = Call(workflow, rules, config)
CAMPAIGN = CALL.campaign
STUDY = CAMPAIGN.study.name
SITE = CAMPAIGN.site.name
RESULTS = str(CAMPAIGN.results)
CACHE = str(CAMPAIGN.site.cache)
RUNS_CSV = str(CAMPAIGN.runs_csv)
EPOCHS_CSV = str(CAMPAIGN.epochs_csv)

# How rules call a program: in a process with preloaded libraries, if there is one.
PREFORKED = f"python -IS {SCRIPTS}/common/prefork_server.py"

# The input `changed` of rules whose products depend on the content of files: changed("<rule>", <files of its program>).
changed = CALL.content.changed

# Records that tables and figures depend on, although most of their programs read only runs.csv and epochs.csv.
REQUIRED_RECORDS = CALL.required_records
REQUIRED_INPUTS = [*REQUIRED_RECORDS, f"{RESULTS}/design.csv"] if CAMPAIGN.mode != "published" else []
record_paths_of_block = CAMPAIGN.record_paths_of_block

# A run takes the whole machine, every other job at least 1, so that nothing else loads the machine during a run.
workflow.register_resource("machine", 100)

# Light jobs run where Snakemake runs (localrules of each file); so do builds, unless the site says otherwise.
BUILD_LOCALLY = CAMPAIGN.site.scheduler.build_on == "login"
BUILD_RESOURCES = build_resources(CAMPAIGN.site)


report: "../workflow/report/workflow.rst"


wildcard_constraints:
    run_id=r"[^/]+",
    key=r"[0-9a-f]{12}",


onstart:
    CALL.start()


onsuccess:
    CALL.succeed()


onerror:
    CALL.fail()
