# make reproduce            set up, run the default study, say what it shows     (STUDY=name-or-path for another)
#      SCALE=lite           a paper's study as its overlay reduces it, e.g. STUDY=lcfl SCALE=lite
#      TABLE= METHOD= FEDERATION= SEED=     only a part of it, without the report, e.g. STUDY=lcfl TABLE=II
#      JOBS=2               without Snakemake, so many jobs side by side: none starts a Python of its own, which takes seconds
#      PROFILE=slurm        on a cluster, see docs/cluster.md; SITE=FOLDER has the site's account and partition
# make campaign             set up, run the papers' open blocks that judge most numbers an hour, for 2 hours: docs/campaign.md
#                           (HOURS=0.5, JOBS=2, ARGS="--only 'clove/mnist-*'"; ARGS=--list only lists them)
# make download             set up, fetch what a study needs: where there is internet, before jobs run where there is none
# make test                 set up, run what a change can break: 5 minutes       (ARGS="-k streams" for some)
# make test-all             that, and what takes longer: kills and resumes of real processes, Snakemake's plans, whole
#                           studies, wheels, browsers                            (ARGS="-m slow" for these alone)
#                           but for the two that need more, `make fuzz` and `make test-slurm`
# make fuzz                 readers of files from outside under damaged files, 10 minutes           (MINUTES=1 for fewer)
# make check                formatting, lint, types, order of imports, workflow lint
# make docs                 site/: these pages, notebooks and a reference as a site to search, without a network; a warning is an error
# make benchmark            time and memory beside a plain PyTorch loop, half an hour  (ARGS="--only round-mlp" for some)
# make test-slurm           the default study, and what can go wrong, on a SLURM of two nodes here; Error 77: none installed
# make dist                 dist/: a wheel, and the sources of one, for those who have no checkout
# make setup                only .venv, from the lock file

PYTHON ?= python3
STUDY ?=
SCALE ?= paper
PROFILE ?=
JOBS ?=
SITE ?=
ARGS ?=
MINUTES ?= 10
HOURS ?= 2
# A test that hangs says where, and ends the others' wait for it.
HANGING = -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true
# A name is a file of workflow/studies; anything with a dot or a slash is a path.
STUDY_FILE = $(if $(STUDY),$(if $(or $(findstring .,$(STUDY)),$(findstring /,$(STUDY))),$(STUDY),workflow/studies/$(STUDY).yaml),config.yaml)
SCALE_FILE = $(if $(filter-out paper,$(SCALE)),$(STUDY_FILE:.yaml=.$(SCALE).yaml))
PART = $(foreach name,TABLE FEDERATION METHOD SEED,$(if $($(name)),--$(shell echo $(name) | tr A-Z a-z) "$($(name))"))
SNAKEMAKE = snakemake $(if $(PROFILE),--workflow-profile "workflow/profiles/$(PROFILE)") $(if $(SITE),--profile "$(SITE)")
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PYTHONUNBUFFERED = 1

.PHONY: reproduce campaign download known test test-all fuzz test-slurm check docs dist benchmark setup kmedoids lock pins costs clean

reproduce: known
ifneq ($(PROFILE),)
	@found=$$(clusterfl plan --save --config "$(STUDY_FILE)" $(SCALE_FILE) $(PART)) && echo "$$found" | tail -n 4
endif
ifneq ($(JOBS),)
	clusterfl run --jobs "$(JOBS)" --keep-going --config "$(STUDY_FILE)" $(SCALE_FILE) $(PART)
	@$(if $(strip $(PART)),true,clusterfl summary --config "$(STUDY_FILE)" $(SCALE_FILE))
else ifeq ($(strip $(PART)),)
	$(SNAKEMAKE) $(if $(STUDY),--configfile "$(STUDY_FILE)" $(SCALE_FILE))
	@clusterfl summary --config "$(STUDY_FILE)" $(SCALE_FILE)
else
	files=$$(clusterfl jobs --config "$(STUDY_FILE)" $(SCALE_FILE) $(PART) --files) && $(SNAKEMAKE) --configfile "$(STUDY_FILE)" $(SCALE_FILE) -- $$files
endif

campaign: setup
	clusterfl campaign --hours "$(HOURS)" $(if $(JOBS),--jobs "$(JOBS)") $(ARGS)

download: known
	snakemake --configfile "$(STUDY_FILE)" $(SCALE_FILE) --until download

known: setup
	@test -f "$(STUDY_FILE)" || { echo "no study '$(STUDY)': give a path, or one of: $$(cd workflow && ls studies 2>/dev/null | sed -n 's/\.yaml$$//p' | tr '\n' ' ')"; exit 2; }
	@test -z "$(SCALE_FILE)" || test -f "$(SCALE_FILE)" || { echo "study '$(STUDY)' has no scale '$(SCALE)' ($(SCALE_FILE) isn't there); allowed: paper (default), lite"; exit 2; }
	@test -z "$(PROFILE)" || test -f "workflow/profiles/$(PROFILE)/config.yaml" || { echo "no profile '$(PROFILE)'; allowed: $$(ls workflow/profiles | grep -v site-example | tr '\n' ' ')"; exit 2; }
	@test -z "$(PROFILE)" || test -z "$(JOBS)" || { echo "JOBS=$(JOBS) runs here, PROFILE=$(PROFILE) on a cluster; omit one of them"; exit 2; }
	@test -z "$(SITE)" || test -f "$(SITE)/config.yaml" || { echo "SITE=$(SITE): $(SITE)/config.yaml isn't there; copy workflow/profiles/site-example and name the copy"; exit 2; }

# By file, for the tests of a file share what was trained once. A thread that waits leaves its core to the other process:
# an eighth of the time.
PYTEST = OMP_WAIT_POLICY=passive pytest -n 2 --dist loadfile $(HANGING)

test: setup
	$(PYTEST) $(ARGS)

test-all: setup
	$(PYTEST) -m "slow or not slow" --deselect tests/fuzz/test_fuzz.py::test_many $(ARGS)

fuzz: setup
	FUZZ_MINUTES="$(MINUTES)" pytest tests/fuzz -m slow -rP

test-slurm: setup
	tests/slurm/run.py $(ARGS)

check: setup
	ruff format --check src tests benchmarks
	ruff check src tests benchmarks
	mypy
	lint-imports
	snakefmt --check Snakefile workflow
	snakemake --lint

# One folder for each version; those of other versions, and the list of them all, stay beside it: docs/_site/versions.py.
docs: VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
docs: setup
	rm -rf "site/$(VERSION)"
	sphinx-build --quiet --fail-on-warning --fresh-env --doctree-dir site/.doctrees --conf-dir docs . "site/$(VERSION)"
	rm -rf site/jupyter_execute
	@echo site/index.html

# What others install: a wheel, and the sources of one.
dist: setup
	hatchling build --clean --directory dist
	@ls dist

benchmark: setup
	python -m benchmarks $(ARGS)

setup: .venv/ready

# Scripts in .venv name their Python between a shell's double quotes, and PATH has colons between its folders.
ODD = $(strip $(foreach letter,$$ ` " \ :,$(findstring $(letter),$(CURDIR))))

.venv/ready: requirements.lock pyproject.toml
	@test -z '$(ODD)' || { echo 'the folder has a name or lies in one with $(ODD), with which .venv cannot work; move it to a path without (spaces, apostrophes, brackets and letters of any language do no harm)'; exit 2; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 14) else f"Python 3.11, 3.12 or 3.13 is needed, $(PYTHON) is {v[0]}.{v[1]}; name another: make PYTHON=python3.12")'
	@echo "setting up .venv from requirements.lock (some minutes the first time)"
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@$(MAKE) --no-print-directory kmedoids || echo "scikit-learn-extra can't be built here (see above; it needs a C compiler). Everything else works: use clusterer: fasterpam, hierarchical or spectral instead of kmedoids."
	@touch $@

# Its published wheel doesn't import beside numpy 2, so it is compiled against the numpy that is installed.
kmedoids:
	@.venv/bin/python -c 'import warnings; warnings.simplefilter("ignore"); import sklearn_extra.cluster' 2>/dev/null || \
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --no-binary scikit-learn-extra scikit-learn-extra==0.3.0

# Pins what a fresh environment gets from pyproject.toml's ranges; local versions and addresses stay out.
lock:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet torch==2.13.0 torchvision==0.28.0
	.venv-lock/bin/python -m pip install --quiet ".[dev,docs,build,privacy,slurm]"
	.venv-lock/bin/python -m pip freeze --all --exclude clusterfl --exclude pip | sed 's/+[a-z0-9.]*$$//' > requirements.lock
	rm -rf .venv-lock

# Counts and digests of the catalogue's federations, of those whose data are at hand (CLUSTERFL_MIRROR).
pins: setup
	python -c 'from clusterfl.pipeline.describe import repin; repin()'

# What the shipped studies' runs take, for `clusterfl campaign`: 15 minutes, with their data under data/ (make download).
costs: setup
	python -c 'from clusterfl.claims.campaign.costs import remeasure; remeasure()'

clean:
	rm -rf .venv results/*/ data/*/ site .snakemake
