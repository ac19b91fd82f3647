# What all stages share: the campaign that the configuration names, and the names that rules use.

import os
import signal
import sys
import threading
from pathlib import Path

CHECKOUT = Path(str(workflow.current_basedir)).parent  # whichever Snakefile was named: workflow/ has one, too
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

# How rules call a program: in a process that has its libraries already, where there is one.
PREFORKED = f"python -IS {SCRIPTS}/common/prefork_server.py"

# The input `changed` of rules whose product rests on content: changed("<rule>", <files of its program>).
changed = CALL.content.changed

# Inputs that figures need although their programs read only tables; remade if removed.
REQUIRED_RECORDS = CALL.required_records
REQUIRED_INPUTS = [*REQUIRED_RECORDS, f"{RESULTS}/design.csv"] if CAMPAIGN.mode != "published" else []
records_of_block = CAMPAIGN.records_of_block

# A run takes all of the machine, everything else at least 1: nothing that loads it stands beside a run.
workflow.register_resource("machine", 100)

# What is light stays where Snakemake is (localrules of each file); so do builds, unless the site says otherwise.
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
