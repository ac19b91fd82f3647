# Everything that a user or CI calls. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made-of-requirements
RINGSIDE := PYTHONPATH=workflow/scripts $(BIN)/python -m
SNAKEMAKE := $(RINGSIDE) plan.unlock --if-stale && $(BIN)/snakemake
BENCH := PYTHONPATH=workflow/scripts:tests:tests/workflow:tests/cluster $(BIN)/python tests/bench/overhead.py

export SNAKEMAKE_PROFILE := $(CURDIR)/profiles/local
export PATH := $(CURDIR)/$(BIN):$(PATH)

# make figures STUDY=my-study SITE=my-cluster; ARGS adds whatever else the program takes
STUDY ?= $(study)
SITE ?= $(site)
OPTIONS = $(if $(STUDY)$(SITE),--config) $(if $(STUDY),"study=$$STUDY") $(if $(SITE),"site=$$SITE") $(ARGS)
export STUDY SITE

# Two workers share the tests, file by file: most of a test is a start of Snakemake or of a framework on one core.
PARALLEL := --numprocesses=2 --dist=loadfile --no-loadscope-reorder

NODES := 3
BANDWIDTH := 1gbit
CPU := 0.6
MEMORY := 6G

export RUNS BASE OTHER AGAINST

.DEFAULT_GOAL := help
.PHONY: help check figures report paper archive verify compare status peek images datasets plan models predict test statistics-test frameworks-test studies-test cluster-test images-test fault-test dry-run lint format lock cluster-up cluster-down apptainer recipes settings doctor submit repeat unlock architecture gallery bench-overhead bench-input bench-models bench-analysis bench-tests

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 24

figures: $(STAMP)  ## install what is missing, run what is missing, make figures and tables of the configured study
	@$(SNAKEMAKE) figures $(OPTIONS)

report: $(STAMP)  ## figures, tables and one page with everything, runs, curves and logs: results/<study>/report.html
	@$(SNAKEMAKE) report $(OPTIONS)

images: $(STAMP)  ## build the images that the study needs, at a site with deployment apptainer
	@$(SNAKEMAKE) images $(OPTIONS)

datasets: $(STAMP)  ## fetch and prepare the data sets that the study needs (where there is internet, before jobs need them)
	@$(SNAKEMAKE) datasets $(OPTIONS)

paper: $(STAMP)  ## the paper of the configured study: LaTeX sources and, where TeX is installed, the PDF
	@$(SNAKEMAKE) paper $(OPTIONS)

archive: $(STAMP)  ## everything behind the figures in one file, which makes them again elsewhere: results/<study>/<study>.tar.gz
	@$(SNAKEMAKE) archive $(OPTIONS)

verify: $(STAMP)  ## are figures, tables and records those that a manifest tells of? make verify STUDY=NAME AGAINST=FILE
	@$(RINGSIDE) provenance.verify --study "$$STUDY" $(if $(AGAINST),--against "$$AGAINST") $(ARGS)

compare: $(STAMP)  ## two campaigns, of another date, site or version: what changed? make compare BASE=FOLDER OTHER=FOLDER
	@$(SNAKEMAKE) compare --config "base=$$BASE" "other=$$OTHER" $(ARGS)

status: $(STAMP)  ## where the campaign stands: done, running, failed and why, time left; ARGS=--watch or --json
	@$(RINGSIDE) records.status $(OPTIONS)

peek: $(STAMP)  ## draw what is there so far, while the campaign goes on: results/<study>/peek
	@$(RINGSIDE) report.peek $(OPTIONS)

plan: $(STAMP)  ## say what the campaign will cost, before anything runs: make plan STUDY=NAME SITE=SITE
	@$(RINGSIDE) plan.cost $(OPTIONS)

models: $(STAMP)  ## all models in numbers: parameters, multiplications, bytes; ARGS names some
	@$(RINGSIDE) models.listing $(ARGS)

predict: $(STAMP)  ## how many nodes are worth it, without a campaign: ARGS="--step-time 0.1 --model resnet-50"; ARGS=--help says more
	@$(RINGSIDE) figures.outlook $(ARGS)

check: lint  ## lint, types and the quick tests (no training, Snakemake, builds or drawings): what to run while writing
	@$(BIN)/python -m pytest $(PARALLEL) --quiet -m "not training and not workflow and not slow and not simulation" tests/unit $(ARGS)

test: $(STAMP)  ## run all tests that need no root (they build the environments that they need, once)
	@$(BIN)/python -m pytest $(PARALLEL) -m "not every_framework and not every_study and not simulation" $(ARGS)

statistics-test: $(STAMP)  ## intervals and tests against hundreds of made-up studies: after a change of the analysis (2 min)
	@$(BIN)/python -m pytest $(PARALLEL) --dist=load -m simulation tests/unit $(ARGS)

frameworks-test: $(STAMP)  ## train and sweep every framework, against PyTorch; with SITE=NAME those that it has installed (LBANN, Tarantella), too
	@RINGSIDE_TEST_SITE=$(SITE) $(BIN)/python -m pytest tests/unit/runs/test_training.py tests/unit/runs/test_lbann_training.py tests/unit/network/test_sweep.py tests/unit/models/test_libraries.py $(ARGS)

studies-test: $(STAMP)  ## run every reduced study to its figures (about 30 min)
	@$(BIN)/python -m pytest tests/workflow/test_studies.py $(ARGS)

cluster-test: $(STAMP)  ## campaigns on a virtual Slurm cluster, both ways, in images, and three faults (needs root)
	@$(BIN)/python -m pytest tests/cluster -m "(not fault or ci) and not every_image" $(ARGS)

fault-test: $(STAMP)  ## everything that breaks on clusters, one after the other (needs root, about 15 min)
	@$(BIN)/python -m pytest tests/cluster/test_faults.py $(ARGS)

images-test: $(STAMP)  ## build the images of all frameworks and run a cut of a study in each (needs root; 30 min the first time)
	@$(BIN)/python -m pytest tests/cluster/test_images.py $(ARGS)

dry-run: $(STAMP)  ## plan every shipped study with every profile; nothing runs
	@$(BIN)/python tests/checks/dry_run.py

lint: $(STAMP)  ## check style, types and rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/snakefmt --check Snakefile rules
	@$(BIN)/mypy workflow/scripts
	@for module in workflow/scripts/runs/frameworks/*/*.py; do $(BIN)/mypy --no-error-summary $$module || exit 1; done
	@$(BIN)/lint-imports --no-cache --no-logo > $(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }
	@$(BIN)/python tests/checks/architecture.py --check
	@$(BIN)/python tests/checks/snakemake_lint.py

format: $(STAMP)  ## rewrite code and rules in the project's style
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .
	@$(BIN)/snakefmt Snakefile rules

lock: $(STAMP)  ## make all locks again (requirements.txt, containers/*/requirements.*.txt)
	@$(RINGSIDE) environments.lock $(ARGS)

settings: $(STAMP)  ## write config/README.md again, which lists every key of the configuration
	@$(RINGSIDE) declared.settings

recipes: $(STAMP)  ## write the images' recipes again (containers/*/recipe.*.def)
	@$(RINGSIDE) environments.recipe

apptainer:  ## install Apptainer, which makes and opens images (Debian, as root)
	@workflow/scripts/environments/install-apptainer

cluster-up: $(STAMP)  ## a virtual Slurm cluster on this machine: NODES=3 BANDWIDTH=1gbit CPU=0.6 MEMORY=6G (needs root)
	@$(RINGSIDE) cluster.virtual up --nodes "$(NODES)" --bandwidth "$(BANDWIDTH)" --cpu "$(CPU)" --memory "$(MEMORY)" $(ARGS)

cluster-down: $(STAMP)  ## end it; nothing is left behind
	@$(RINGSIDE) cluster.virtual down $(ARGS)

doctor: $(STAMP)  ## say in a minute what will not work at the Slurm site: make doctor ARGS="--config site=NAME"
	@$(RINGSIDE) cluster.doctor $(OPTIONS)

submit: $(STAMP)  ## run the campaign on Slurm, an allocation for each block, in the planned order
	@$(RINGSIDE) runs.submit $(OPTIONS)

repeat: $(STAMP)  ## repeat runs: make repeat RUNS=<pattern or status>; old attempts are kept
	@$(RINGSIDE) records.repeat --run --runs "$$RUNS" $(OPTIONS)

unlock: $(STAMP)  ## remove the lock of a Snakemake that was killed
	@$(RINGSIDE) plan.unlock

bench-overhead: $(STAMP)  ## what the workflow itself costs: against bare loops, and dry-runs of large designs
	@$(BENCH) $(ARGS)

bench-input: $(STAMP)  ## whether reading limits training: images a second of each library's input, and of its training
	@$(BENCH) input $(ARGS)

bench-models: $(STAMP)  ## PyTorch's models as they are built here against the same written by hand
	@$(BENCH) models $(ARGS)

bench-analysis: $(STAMP)  ## how long 20,000 runs of 100 epochs take from records to figures, and how much memory
	@$(BENCH) analysis --runs 20000 --epochs 100 $(ARGS)

bench-tests: $(STAMP)  ## how long the tests take, and what their processor time goes to: ARGS='--target cluster-test'
	@$(BENCH) tests $(ARGS)

architecture: $(STAMP)  ## write the table and the picture of docs/architecture.md again, from the code
	@$(BIN)/python tests/checks/architecture.py

gallery: $(STAMP)  ## draw the pictures of docs/gallery.md again, from the kept campaigns
	@$(RINGSIDE) figures.gallery $(ARGS)

$(STAMP): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit("make: Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + "; say make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@echo "make: installing the controller's environment into $(VENV)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { echo "make: $(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes --requirement requirements.txt
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null || true  # on all cores, unlike pip
	@echo 'export SNAKEMAKE_PROFILE="$(CURDIR)/profiles/local"' >> $(BIN)/activate
	@$(BIN)/python -c 'import sysconfig; open(sysconfig.get_path("purelib") + "/ringside.pth", "w").write("$(CURDIR)/workflow/scripts\n")'
	@touch $@
