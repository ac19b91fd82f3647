# Two targets of users, and those of developers. `make` alone lists them; all else that users call is a command: ./ringside --help.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RINGSIDE := PYTHONPATH=workflow/scripts $(BIN)/python -m
BENCH_PYTHON := PYTHONPATH=workflow/scripts:tests:benchmarks $(BIN)/python
BENCH := $(BENCH_PYTHON) benchmarks/overhead.py

# Settings of the caller's Python and pip are for other programs, as modules of a cluster set them.
unexport PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX PIP_ROOT PIP_REQUIRE_VIRTUALENV
export PIP_USER := 0
export SNAKEMAKE_PROFILE := $(CURDIR)/profiles/local
export PATH := $(CURDIR)/$(BIN):$(PATH)

# Variables: make figures STUDY=my-study SITE=my-cluster hands both to ./ringside run; developers' targets have ARGS, SITE and SERIES.
GIVEN = $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
OTHERS = $(filter-out STUDY SITE PYTHON MAKEFLAGS MFLAGS,$(GIVEN))
MEANT = $(shell $(PYTHON) -c 'import difflib, sys; print(*("; did you mean " + name + "?" for name in difflib.get_close_matches(sys.argv[1].upper(), ["STUDY", "SITE"], 1)))' '$(firstword $(OTHERS))')

# Two workers share the tests, file by file: most of a test is a start of Snakemake or of a framework on one core. Tests on a virtual
# cluster wait for Slurm most of the time: one worker has the machine's cluster, the other one the private clusters.
PARALLEL := --numprocesses=2 --dist=loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*\#\#.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help:  ## list the targets
	@sed -nE -e 's/^##@ (.*)/\n\1/p' -e 's/^([a-z-]+):.*## */  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

##@ A study

figures: export RINGSIDE_STUDY := $(or $(value STUDY),$(RINGSIDE_STUDY))
figures: export RINGSIDE_SITE := $(or $(value SITE),$(RINGSIDE_SITE))
figures:  ## install and run what is missing, then make all figures and tables of the study, as ./ringside run does: STUDY=NAME SITE=NAME
	$(if $(OTHERS),$(error unknown variable '$(firstword $(OTHERS))'$(MEANT); make figures takes STUDY and SITE, and ./ringside run --help lists all options))
	@$(PYTHON) ringside run

##@ Tests and checks of the code

# Tests write bytecode even where PYTHONDONTWRITEBYTECODE is set: each worker collects in 12 s of CPU time with it, in 37 s without.
test %-test check: export PYTHONDONTWRITEBYTECODE :=

check: lint  ## check style and types, and run the quick tests (no training, Snakemake, builds or drawings): while writing
	@$(BIN)/python -m pytest $(PARALLEL) --quiet -m "not training and not workflow and not slow and not long and not every_framework and not simulation and not versions and not thorough" tests/unit tests/gpu $(ARGS)

test: venv  ## run the tests that need no root and take less than 4 s each (the first time they build the environments that they need)
	@$(BIN)/python -m pytest $(PARALLEL) -m "not long and not every_framework and not every_study and not simulation and not versions and not thorough" $(ARGS)

optimum-test: venv  ## compare searches for strategies with the fastest of all of two small models: after a change of the search (2 min)
	@$(BENCH_PYTHON) tests/checks/planner_optimum.py $(ARGS)

statistics-test: venv  ## check intervals and tests against hundreds of simulated studies: after a change of the analysis (3 min)
	@$(BIN)/python -m pytest $(PARALLEL) --dist=load -m simulation tests/unit $(ARGS)

long-test: venv  ## run the tests that make test leaves out because they take longer (35 min); ARGS=--long-part=1: one of 10 parts
	@$(BIN)/python -m pytest $(PARALLEL) -m long $(ARGS)

thorough-test: venv  ## run more cases of what quicker tests cover: mutated inputs, figures of unusual campaigns, campaigns
	@RINGSIDE_MUTATIONS=4 $(BIN)/python -m pytest tests/unit/common/test_bad_input.py
	@$(BIN)/python -m pytest $(PARALLEL) -m thorough $(ARGS)

frameworks-test: venv  ## train and benchmark every framework, against PyTorch; with SITE=NAME also those that the site has installed (LBANN, Tarantella)
	@RINGSIDE_TEST_SITE="$$SITE" $(BIN)/python -m pytest tests/unit/ranks/test_training.py tests/unit/ranks/test_traced_training.py tests/unit/ranks/test_lbann_training.py tests/unit/ranks/test_deepspeed.py tests/unit/ranks/test_devices.py tests/unit/ranks/test_mesh_training.py tests/unit/ranks/test_precision.py tests/unit/ranks/test_strategy_training.py tests/unit/ranks/test_memory_estimate.py tests/unit/ranks/test_command_training.py tests/unit/ranks/test_user_model.py tests/unit/ranks/test_mesh_memory.py tests/unit/ranks/test_planned_mesh.py tests/unit/network/test_collective_benchmark.py tests/unit/models/test_libraries.py tests/unit/benchmarks/test_accelerator.py tests/unit/models/test_attention.py tests/unit/models/test_pipelines.py tests/unit/ranks/test_out_of_memory.py tests/gpu/test_deepspeed.py tests/gpu/test_training.py $(ARGS)

versions-test: venv  ## use the oldest Snakemake, PyTorch and TensorFlow that sites may have, against the newest (installs them, 7 GB)
	@$(BIN)/python -m pytest -m versions tests/unit/ranks/test_versions.py tests/unit/invocation/test_content_check.py $(ARGS)

studies-test: venv  ## run every reduced study to its figures (about 30 min)
	@$(BIN)/python -m pytest tests/workflow/test_studies.py $(ARGS)

cluster-test: venv  ## run a campaign on a virtual Slurm cluster both ways, and check the cluster, the doctor and ringside site (needs root)
	@$(BIN)/python -m pytest tests/cluster -m "not fault and not long and not every_image and not bundle and not oar and not thorough" $(ARGS)

cluster-long-test: venv  ## run what cluster-test leaves out: blocks cut short, an interval target, heterogeneous nodes, an image (needs root)
	@$(BIN)/python -m pytest tests/cluster -m "long and not fault and not every_image" $(ARGS)

fault-test: venv  ## break everything that breaks on clusters, one after the other (needs root, about 15 min)
	@$(BIN)/python -m pytest tests/cluster -m "fault and not oar" $(ARGS)

oar-test: venv  ## run a campaign on a virtual cluster with OAR, and break it (needs root, about 10 min); with SITE=NAME also LBANN, if that site has it
	@RINGSIDE_TEST_SITE="$$SITE" $(BIN)/python -m pytest tests/cluster/test_oar.py $(ARGS)

images-test: venv  ## build the images of all frameworks and run a part of a study in each (needs root; 30 min the first time)
	@$(BIN)/python -m pytest tests/cluster/test_images.py $(ARGS)

bundle-test: venv  ## carry a bundle to where there is no network, and make figures there, also on Slurm (needs root, 5 to 10 min, fetches 0.5 GB)
	@$(BIN)/python -m pytest tests/cluster/test_bundle.py $(ARGS)

fuzz: venv  ## mutate files and let their readers read them (10 min for each reader); ARGS='--seconds 60 --target runs'
	@PYTHONPATH=workflow/scripts:tests $(BIN)/python -m fuzz.run $(ARGS)

rotation-test: venv  ## run one part (5 min) of the targets that CI does not run whole, chosen by the commit; ARGS=--list, ARGS='--part NAME'
	@PYTHONPATH=tests $(BIN)/python tests/checks/rotation.py $(ARGS)

dry-run: venv  ## plan every shipped study, profile and site at least once; nothing runs
	@$(BIN)/python tests/checks/dry_run.py $(ARGS)

dry-run-all: venv  ## plan every shipped study with every profile, and the configured study at every site with every profile
	@$(BIN)/python tests/checks/dry_run.py --all $(ARGS)

lint: venv  ## check style, types and rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/snakefmt --check Snakefile workflow/Snakefile rules
	@$(BIN)/mypy workflow/scripts
	@ls -d workflow/scripts/ranks/frameworks/*/ | xargs --max-procs=2 -I{} sh -c '$(BIN)/mypy --no-error-summary {}*.py'
	@$(BIN)/lint-imports --no-cache --no-logo > $(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }
	@$(BIN)/python tests/checks/architecture.py --check
	@$(BIN)/python tests/checks/names.py
	@$(BIN)/python tests/checks/snakemake_lint.py
	@$(BIN)/python tests/checks/snakemake_api.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict > $(VENV)/docs.log 2>&1 || { cat $(VENV)/docs.log; exit 1; }
	@! grep "excluded from the built site" $(VENV)/docs.log  # mkdocs reports these broken links, but does not count them

format: venv  ## rewrite code and rules in the project's style
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .
	@$(BIN)/snakefmt Snakefile workflow/Snakefile rules

##@ Files that are made, not written

venv:  ## make .venv, or make it again where it is older than requirements.txt (every target here calls this first)
	@PYTHONPATH=workflow/scripts $(PYTHON) -m environments.controller

lock: venv  ## make all locks again (requirements.txt, containers/*/requirements.*.txt)
	@$(RINGSIDE) environments.lock $(ARGS)

reference: venv  ## write docs/reference again, from schemas, tables, models, frameworks, commands, this Makefile and the rules
	@$(RINGSIDE) reference.pages

architecture: venv  ## write the table and the picture of docs/architecture.md again, from the code
	@$(BIN)/python tests/checks/architecture.py

docs: venv  ## build the documentation site in site/; ARGS=serve shows it at http://127.0.0.1:8000
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(ARGS),build --strict)

paper-strategies: venv  ## make the figures of the paper of FlexFlow again by simulation (15 min): ARGS="--out results/paper-strategies"
	@$(RINGSIDE) strategies.paper $(ARGS)

gallery: venv  ## draw the pictures of docs/reference/figures.md again, from the kept campaigns
	@$(RINGSIDE) figures.gallery $(ARGS)

recipes: venv  ## write the recipes of the images again (containers/*/recipe.*.def)
	@$(RINGSIDE) environments.recipe

##@ Clusters

apptainer:  ## install Apptainer, which builds and runs images (Debian, as root)
	@workflow/scripts/environments/install-apptainer

##@ Benchmarks

bench-overhead: venv  ## measure what the workflow itself costs: against bare loops, and dry-runs of large designs
	@$(BENCH) $(ARGS)

bench-input: venv  ## measure whether input limits training: samples per second of preparation, of each library's input, and of its training; your own: ARGS='--case DATASET MODEL BATCH'
	@$(BENCH) input $(ARGS)

bench-models: venv  ## measure PyTorch's models as built here against the same models written by hand
	@$(BENCH) models $(ARGS)

bench-analysis: venv  ## measure how long 20,000 runs of 100 epochs take from records to figures, and how much memory
	@$(BENCH) analysis --runs 20000 --epochs 100 $(ARGS)

bench-tests: venv  ## measure how long the tests take, and where their CPU time goes: ARGS='--target cluster-test'
	@$(BENCH) tests $(ARGS)

bench-intervals: venv  ## measure by simulation how often 95 % intervals cover the true value, and how wide they are (10 min)
	@$(BENCH) intervals $(ARGS)

bench-stopping: venv  ## measure by simulation how often intervals cover the true value with an interval target (10 min)
	@$(BENCH) stopping $(ARGS)

bench-tracing: venv  ## measure what trace: phases costs, framework by framework: ARGS='--pairs 3 --epochs 42' (trainings, epochs)
	@$(BENCH) tracing $(ARGS)

bench-memory: venv  ## measure how near estimates of the memory of ranks are to what PyTorch allocates on processors (2 min)
	@$(BENCH_PYTHON) benchmarks/memory_estimates.py $(ARGS)

bench-reference: venv  ## measure which work beside a run tells most of its epoch time, under a load that comes and goes (needs root; 60 trainings, 20 min); ARGS=--quiet: without a load
	@$(BENCH_PYTHON) benchmarks/reference_kinds.py $(ARGS)

bench-strategies: venv  ## measure how long the simulation of a strategy takes, all of it and a change alone; ARGS=--large: searches on 1,024 devices, too
	@$(BENCH_PYTHON) benchmarks/planner.py $(ARGS)

bench-prediction: venv  ## measure errors of predictions on public scaling series, those of a test, or of CSV files: SERIES=FOLDER; ARGS=--choose: with constants chosen by source, too
	@$(BENCH_PYTHON) benchmarks/public_series.py $(if $(SERIES),--series "$$SERIES") $(ARGS)

accelerator-test: venv  ## check in 8 minutes that a node's accelerator trains right, and how fast: make accelerator-test SITE=NAME
	@$(BENCH_PYTHON) benchmarks/accelerator.py $(if $(SITE),--site "$$SITE") $(ARGS)

.DEFAULT:
	$(error there is no target $@; the commands for users are those of ./ringside (./ringside --help), make help lists the others)
