# Everything that a user or CI calls. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made-of-requirements
RINGSIDE := PYTHONPATH=workflow/scripts $(BIN)/python -m
SNAKEMAKE := $(RINGSIDE) plan.unlock --if-stale && $(BIN)/snakemake
BENCH_PYTHON := PYTHONPATH=workflow/scripts:tests:benchmarks $(BIN)/python
BENCH := $(BENCH_PYTHON) benchmarks/overhead.py

# Settings of the caller's Python and pip are for other programs, as modules of a cluster set them.
unexport PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX PIP_ROOT PIP_REQUIRE_VIRTUALENV
export PIP_USER := 0
export SNAKEMAKE_PROFILE := $(CURDIR)/profiles/local
export PATH := $(CURDIR)/$(BIN):$(PATH)

# Variables, after the target: make figures STUDY=my-study SITE=my-cluster
#   STUDY      a study of config/studies/, instead of that of config.yaml
#   SITE       a site of config/sites/, instead of that of config.yaml
#   ARGS       further arguments for the program that the target calls, such as ARGS=--help
#   RUNS       runs to repeat: a status of records (failed, timeout, invalid, broken, ok) or a pattern of run_ids, such as '*ddp*.b32.*'
#   RUN        the run to trace: its run_id, or a pattern that fits one
#   FULL       yes: trace also what the library's own profiler tells
#   BASE       the campaign to compare with: a folder with runs.csv
#   OTHER      the campaign that is compared with BASE: a folder with runs.csv
#   AGAINST    a manifest.json to verify against, instead of the study's own
#   NAME       the site that make site writes: config/sites/NAME.yaml
#   PARTITION  Slurm's partition that it is to be, instead of the default
#   LOCAL      yes: make site describes this machine alone, although Slurm or OAR is on it
#   FILE       a bundle, for make unbundle; a trace of Score-P (traces.otf2), for make read-trace
#   NODES      nodes of the virtual cluster
#   BANDWIDTH  link rate of each of its nodes, as tc writes it (1gbit), or none
#   CPU        processor time of each of its nodes, in cores; of unlike nodes CPU=0.9,0.6,0.3
#   MEMORY     memory of each of its nodes
#   SCHEDULER  its scheduler: slurm or oar
# As they were written: what looks like a variable of make, such as RUNS='$(x)', is none. Recipes read them from the environment.
override STUDY := $(or $(value STUDY),$(value study))
override SITE := $(or $(value SITE),$(value site))
override RUNS := $(value RUNS)
override RUN := $(value RUN)
override FULL := $(value FULL)
override BASE := $(value BASE)
override OTHER := $(value OTHER)
override AGAINST := $(value AGAINST)
override NAME := $(value NAME)
override PARTITION := $(value PARTITION)
override LOCAL := $(value LOCAL)
OPTIONS = $(if $(STUDY)$(SITE)$(filter-out -%,$(ARGS)),--config) $(if $(STUDY),"study=$$STUDY") $(if $(SITE),"site=$$SITE") $(ARGS)
override FILE := $(value FILE)
export STUDY SITE RUNS RUN FULL BASE OTHER AGAINST NAME PARTITION LOCAL FILE

# Before there is a .venv, $(PYTHON) is asked for what it is.
OLD := import sys; sys.exit("make: Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + "; say make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)

# Two workers share the tests, file by file: most of a test is a start of Snakemake or of a framework on one core. Tests on a virtual
# cluster wait for Slurm most of the time: one worker has the machine's cluster, the other one the private clusters.
PARALLEL := --numprocesses=2 --dist=loadfile --no-loadscope-reorder

NODES := 3
BANDWIDTH := 1gbit
CPU := 0.6
MEMORY := 6G
SCHEDULER := slurm

# A misspelt variable would leave the configured study in its place.
KNOWN := ARGS PYTHON NODES BANDWIDTH CPU MEMORY SCHEDULER MAKEFLAGS MFLAGS
UNKNOWN := $(filter-out $(KNOWN),$(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name))))
$(if $(UNKNOWN),$(error $(firstword $(UNKNOWN)) is no variable of this Makefile; expected STUDY, SITE, RUNS, RUN, FULL, BASE, OTHER, AGAINST, NAME, PARTITION, LOCAL, FILE, $(wordlist 1,7,$(KNOWN))))

.DEFAULT_GOAL := help
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*\#\#.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help:  ## list the targets
	@sed -nE -e 's/^##@ (.*)/\n\1/p' -e 's/^([a-z-]+):.*## */  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

##@ A study

figures: $(STAMP)  ## install and run what is missing, then make all figures and tables of the study
	@$(SNAKEMAKE) figures $(OPTIONS)

report: $(STAMP)  ## make figures, tables and one page with everything, each run's record, curves and log: results/<study>/report.html
	@$(SNAKEMAKE) report $(OPTIONS)

images: $(STAMP)  ## build the images that the study needs, at a site with deployment apptainer
	@$(SNAKEMAKE) images $(OPTIONS)

datasets: $(STAMP)  ## download and prepare the data sets that the study needs (on a machine with internet access)
	@$(SNAKEMAKE) datasets $(OPTIONS)

paper: $(STAMP)  ## make the study's paper: LaTeX sources and, where TeX is installed, the PDF: results/<study>/paper
	@$(SNAKEMAKE) paper $(OPTIONS)

archive: $(STAMP)  ## pack everything behind the figures into one file that makes them again elsewhere: results/<study>/<study>.tar.gz
	@$(SNAKEMAKE) archive $(OPTIONS)

bundle: $(STAMP)  ## pack what the study needs at a site without internet into one file: results/<study>/<study>-<site>.bundle.tar
	@$(RINGSIDE) provenance.bundle $(OPTIONS)

unbundle:  ## unpack a bundle into the cache, where there is no internet: make unbundle FILE=<bundle>
	@$(PYTHON) -c '$(OLD)'
	@PYTHONPATH=workflow/scripts $(PYTHON) -m environments.unbundle $(if $(STUDY),--study "$$STUDY") $(if $(SITE),--site "$$SITE") $(ARGS) "$$FILE"

verify: $(STAMP)  ## check that figures, tables and records are those of a manifest: make verify STUDY=NAME AGAINST=FILE
	@$(RINGSIDE) provenance.verify $(if $(STUDY),--study "$$STUDY") $(if $(AGAINST),--against "$$AGAINST") $(ARGS)

compare: $(STAMP)  ## compare two campaigns of another date, site or version: make compare BASE=FOLDER OTHER=FOLDER
	@$(SNAKEMAKE) compare $(if $(BASE)$(OTHER),--config) $(if $(BASE),"base=$$BASE") $(if $(OTHER),"other=$$OTHER") $(ARGS)

status: $(STAMP)  ## show where the campaign stands: done, running, failed and why, time left; ARGS=--watch or --json
	@$(RINGSIDE) records.status $(OPTIONS)

peek: $(STAMP)  ## draw the figures of the runs so far, while the campaign goes on: results/<study>/peek
	@$(RINGSIDE) report.peek $(OPTIONS)

pilot: $(STAMP)  ## run the first two blocks, and say from them what is cheaper: more runs, or longer ones (more epochs)
	@$(SNAKEMAKE) pilot $(OPTIONS)

plan: $(STAMP)  ## show what the campaign will cost (hours, node hours, disk) before anything runs: make plan STUDY=NAME SITE=SITE
	@$(RINGSIDE) plan.cost $(OPTIONS)

repeat: $(STAMP)  ## repeat runs and keep their old attempts: make repeat RUNS=<status or pattern>
	@$(RINGSIDE) records.repeat --run --runs "$$RUNS" $(OPTIONS)

trace: $(STAMP)  ## repeat one run traced, for Perfetto and Vampir: make trace RUN=<run_id or pattern>; FULL=yes with the library's profiler
	@$(RINGSIDE) traces.make --run "$$RUN" --full "$$FULL" $(OPTIONS)

read-trace: $(STAMP)  ## read a trace that Score-P wrote, as phases and for Perfetto: make read-trace FILE=scorep-.../traces.otf2
	@$(RINGSIDE) traces.otf2_read $(ARGS) "$$FILE"

unlock: $(STAMP)  ## remove the lock of a Snakemake that was killed
	@$(RINGSIDE) plan.unlock

##@ Models and predictions

models: $(STAMP)  ## list all models with parameters, multiplications and bytes; ARGS names some
	@$(RINGSIDE) models.listing $(ARGS)

predict: $(STAMP)  ## predict how many nodes are worth it, without a campaign: ARGS="--step-time 0.1 --model resnet-50"; ARGS=--help lists all
	@$(RINGSIDE) figures.outlook $(ARGS)

strategies: $(STAMP)  ## find the fastest strategies by simulation: of a study from costs measured at its site, or of a model without a campaign: ARGS="--model alexnet --batch-size 256 --devices 16"; ARGS=--help lists all
	@$(if $(filter --model% --help -h,$(ARGS)),$(RINGSIDE) strategies.find $(ARGS),$(SNAKEMAKE) strategies $(OPTIONS))

paper-strategies: $(STAMP)  ## make the figures of the paper of FlexFlow anew by simulation (15 min): ARGS="--out results/paper-strategies"
	@$(RINGSIDE) strategies.paper $(ARGS)

##@ Tests and checks of the code

# Tests write bytecode even where PYTHONDONTWRITEBYTECODE is set: each worker collects in 12 s of CPU time with it, in 37 s without.
test %-test check: export PYTHONDONTWRITEBYTECODE :=

check: lint  ## check style and types, and run the quick tests (no training, Snakemake, builds or drawings): while writing
	@$(BIN)/python -m pytest $(PARALLEL) --quiet -m "not training and not workflow and not slow and not long and not simulation and not starters and not versions and not thorough" tests/unit $(ARGS)

test: $(STAMP)  ## run the tests that need no root and take less than 4 s each (the first time they build the environments that they need)
	@$(BIN)/python -m pytest $(PARALLEL) -m "not long and not every_framework and not every_study and not simulation and not starters and not versions and not thorough" $(ARGS)

optimum-test: $(STAMP)  ## compare searches for strategies with the fastest of all of two small models: after a change of the search (2 min)
	@$(BENCH_PYTHON) tests/checks/planner_optimum.py $(ARGS)

statistics-test: $(STAMP)  ## check intervals and tests against hundreds of simulated studies: after a change of the analysis (3 min)
	@$(BIN)/python -m pytest $(PARALLEL) --dist=load -m simulation tests/unit $(ARGS)

long-test: $(STAMP)  ## run the tests that make test leaves out because they take longer (35 min); ARGS=--long-part=1: one of 10 parts
	@$(BIN)/python -m pytest $(PARALLEL) -m long $(ARGS)

thorough-test: $(STAMP)  ## run more cases of what quicker tests cover: mutated inputs, figures of unusual campaigns, campaigns
	@RINGSIDE_MUTATIONS=4 $(BIN)/python -m pytest tests/unit/common/test_bad_input.py
	@$(BIN)/python -m pytest $(PARALLEL) -m thorough $(ARGS)

starters-test: $(STAMP)  ## run explore.R and explore.ipynb by R and Jupyter, which it installs (Debian, as root; 2 min the first time)
	@$(BIN)/python -m pytest -m starters tests/unit/analysis/test_starters.py $(ARGS)

frameworks-test: $(STAMP)  ## train and sweep every framework, against PyTorch; with SITE=NAME also those that the site has installed (LBANN, Tarantella)
	@RINGSIDE_TEST_SITE="$$SITE" $(BIN)/python -m pytest tests/unit/ranks/test_training.py tests/unit/ranks/test_traced_training.py tests/unit/ranks/test_lbann_training.py tests/unit/ranks/test_deepspeed.py tests/unit/ranks/test_mesh_training.py tests/unit/ranks/test_strategy_training.py tests/unit/network/test_sweep.py tests/unit/models/test_libraries.py tests/unit/benchmarks/test_accelerator.py $(ARGS)

versions-test: $(STAMP)  ## train with the oldest PyTorch and TensorFlow that sites may have, against the newest (installs them, 7 GB)
	@$(BIN)/python -m pytest tests/unit/ranks/test_versions.py $(ARGS)

studies-test: $(STAMP)  ## run every reduced study to its figures (about 30 min)
	@$(BIN)/python -m pytest tests/workflow/test_studies.py $(ARGS)

cluster-test: $(STAMP)  ## run a campaign on a virtual Slurm cluster both ways, and check the cluster, the doctor and make site (needs root)
	@$(BIN)/python -m pytest tests/cluster -m "not fault and not long and not every_image and not bundle and not oar and not thorough" $(ARGS)

cluster-long-test: $(STAMP)  ## run what cluster-test leaves out: blocks cut short, chosen precision, unlike nodes, an image (needs root)
	@$(BIN)/python -m pytest tests/cluster -m "long and not fault and not every_image" $(ARGS)

fault-test: $(STAMP)  ## break everything that breaks on clusters, one after the other (needs root, about 15 min)
	@$(BIN)/python -m pytest tests/cluster -m "fault and not oar" $(ARGS)

oar-test: $(STAMP)  ## run a campaign on a virtual cluster with OAR, and break it (needs root, about 10 min); with SITE=NAME also LBANN, if that site has it
	@RINGSIDE_TEST_SITE="$$SITE" $(BIN)/python -m pytest tests/cluster/test_oar.py $(ARGS)

images-test: $(STAMP)  ## build the images of all frameworks and run a part of a study in each (needs root; 30 min the first time)
	@$(BIN)/python -m pytest tests/cluster/test_images.py $(ARGS)

bundle-test: $(STAMP)  ## carry a bundle to where there is no network, and make figures there, also on Slurm (needs root, 5 to 10 min, fetches 0.5 GB)
	@$(BIN)/python -m pytest tests/cluster/test_bundle.py $(ARGS)

fuzz: $(STAMP)  ## mutate files and let their readers read them (10 min for each reader); ARGS='--seconds 60 --target runs'
	@PYTHONPATH=workflow/scripts:tests $(BIN)/python -m fuzz.run $(ARGS)

rotation-test: $(STAMP)  ## run one part (5 min) of the targets that CI does not run whole, chosen by the commit; ARGS=--list, ARGS='--part NAME'
	@PYTHONPATH=tests $(BIN)/python tests/checks/rotation.py $(ARGS)

dry-run: $(STAMP)  ## plan every shipped study, profile and site at least once; nothing runs
	@$(BIN)/python tests/checks/dry_run.py $(ARGS)

dry-run-all: $(STAMP)  ## plan every shipped study with every profile, and the configured study at every site with every profile
	@$(BIN)/python tests/checks/dry_run.py --all $(ARGS)

lint: $(STAMP)  ## check style, types and rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/snakefmt --check Snakefile workflow/Snakefile rules
	@$(BIN)/mypy workflow/scripts
	@ls -d workflow/scripts/ranks/frameworks/*/ | xargs --max-procs=2 -I{} sh -c '$(BIN)/mypy --no-error-summary {}*.py'
	@$(BIN)/lint-imports --no-cache --no-logo > $(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }
	@$(BIN)/python tests/checks/architecture.py --check
	@$(BIN)/python tests/checks/names.py
	@$(BIN)/python tests/checks/snakemake_lint.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict > $(VENV)/docs.log 2>&1 || { cat $(VENV)/docs.log; exit 1; }
	@! grep "excluded from the built site" $(VENV)/docs.log  # mkdocs reports these broken links, but does not count them

format: $(STAMP)  ## rewrite code and rules in the project's style
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .
	@$(BIN)/snakefmt Snakefile workflow/Snakefile rules

##@ Files that are made, not written

lock: $(STAMP)  ## make all locks again (requirements.txt, containers/*/requirements.*.txt)
	@$(RINGSIDE) environments.lock $(ARGS)

reference: $(STAMP)  ## write docs/reference again, from schemas, tables, models, frameworks, this Makefile and the rules
	@$(RINGSIDE) reference.pages

architecture: $(STAMP)  ## write the table and the picture of docs/architecture.md again, from the code
	@$(BIN)/python tests/checks/architecture.py

docs: $(STAMP)  ## build the documentation site in site/; ARGS=serve shows it at http://127.0.0.1:8000
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(ARGS),build --strict)

gallery: $(STAMP)  ## draw the pictures of docs/reference/figures.md again, from the kept campaigns
	@$(RINGSIDE) figures.gallery $(ARGS)

recipes: $(STAMP)  ## write the recipes of the images again (containers/*/recipe.*.def)
	@$(RINGSIDE) environments.recipe

##@ Clusters

apptainer:  ## install Apptainer, which builds and runs images (Debian, as root)
	@workflow/scripts/environments/install-apptainer

cluster-up: $(STAMP)  ## start a virtual cluster on this machine: NODES=3 BANDWIDTH=1gbit CPU=0.6 MEMORY=6G SCHEDULER=slurm, or oar (needs root)
	@$(RINGSIDE) virtual_cluster.control up --nodes "$(NODES)" --bandwidth "$(BANDWIDTH)" --cpu "$(CPU)" --memory "$(MEMORY)" --scheduler "$(SCHEDULER)" $(ARGS)

cluster-down: $(STAMP)  ## stop the virtual cluster; nothing is left behind
	@$(RINGSIDE) virtual_cluster.control down $(ARGS)

site: $(STAMP)  ## write config/sites/NAME.yaml for this cluster or machine, then call the doctor on it: make site NAME=NAME; LOCAL=yes for this machine alone
	@$(RINGSIDE) sites.site_file --name="$$NAME" --partition="$$PARTITION" $(if $(LOCAL),--local="$$LOCAL") $(ARGS)

doctor: $(STAMP)  ## check in a minute what will not work at the Slurm site: make doctor SITE=NAME
	@$(RINGSIDE) sites.doctor $(OPTIONS)

submit: $(STAMP)  ## run the campaign on Slurm, one allocation per block, in the planned order; ARGS=--wait waits for the end
	@$(RINGSIDE) runs.submit $(OPTIONS)

##@ Benchmarks

bench-overhead: $(STAMP)  ## measure what the workflow itself costs: against bare loops, and dry-runs of large designs
	@$(BENCH) $(ARGS)

bench-input: $(STAMP)  ## measure whether data loading limits training: images per second of each library's input, and of its training
	@$(BENCH) input $(ARGS)

bench-models: $(STAMP)  ## measure PyTorch's models as built here against the same models written by hand
	@$(BENCH) models $(ARGS)

bench-analysis: $(STAMP)  ## measure how long 20,000 runs of 100 epochs take from records to figures, and how much memory
	@$(BENCH) analysis --runs 20000 --epochs 100 $(ARGS)

bench-tests: $(STAMP)  ## measure how long the tests take, and where their processor time goes: ARGS='--target cluster-test'
	@$(BENCH) tests $(ARGS)

bench-intervals: $(STAMP)  ## measure by simulation how often 95 % intervals hold the truth, and how wide they are (10 min)
	@$(BENCH) intervals $(ARGS)

bench-stopping: $(STAMP)  ## measure by simulation how often intervals hold the truth where replicates are chosen by precision (10 min)
	@$(BENCH) stopping $(ARGS)

bench-tracing: $(STAMP)  ## measure what trace: phases costs, framework by framework: ARGS='--pairs 3 --epochs 42' (trainings, epochs)
	@$(BENCH) tracing $(ARGS)

bench-reference: $(STAMP)  ## measure which work beside a run tells most of its epoch time, under a load that comes and goes (needs root; 60 trainings, 20 min); ARGS=--quiet: without a load
	@$(BENCH_PYTHON) benchmarks/reference_kinds.py $(ARGS)

bench-strategies: $(STAMP)  ## measure how long the simulation of a strategy takes, all of it and a change alone; ARGS=--large: searches on 1,024 devices, too
	@$(BENCH_PYTHON) benchmarks/planner.py $(ARGS)

accelerator-test: $(STAMP)  ## check in 8 minutes that a node's accelerator trains right, and how fast: make accelerator-test SITE=NAME
	@$(BENCH_PYTHON) benchmarks/accelerator.py $(if $(SITE),--site "$$SITE") $(ARGS)

# The checkout's path comes from the process, never through a shell: it may hold any character.
define FINISH_VENV
import os, shlex, sysconfig
here = os.getcwd()
with open(os.path.join("$(BIN)", "activate"), "a") as activate:
    activate.write(f"unset PYTHONPATH\nexport SNAKEMAKE_PROFILE={shlex.quote(here + '/profiles/local')}\n")
with open(os.path.join(sysconfig.get_path("purelib"), "ringside.pth"), "w") as modules:
    modules.write(here + "/workflow/scripts\nimport plan.start\n")
endef
export FINISH_VENV

# A .venv whose Python is gone, as after an upgrade of the system, is made again.
ifneq ($(wildcard $(STAMP)),)
ifneq ($(shell test -x $(BIN)/python || echo gone),)
.PHONY: $(STAMP)
endif
endif

$(STAMP): requirements.txt
	@$(PYTHON) -c '$(OLD)'
	@echo "make: installing the controller's environment into $(VENV)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { echo "make: $(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv"; exit 1; }
	@$(RINGSIDE) environments.bundled install --quiet --disable-pip-version-check --no-compile --require-hashes --requirement requirements.txt
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null || true  # on all cores, unlike pip
	@$(BIN)/python -c "$$FINISH_VENV"
	@touch $@
