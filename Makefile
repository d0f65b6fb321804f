# Every target makes its own environment first; nothing has to be installed by hand.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ralseg-ready
# idle OpenMP threads that spin make torch ten times slower on busy cores
export OMP_WAIT_POLICY ?= PASSIVE
export GOMP_SPINCOUNT ?= 0
export MLFLOW_DISABLE_TELEMETRY ?= true
# tests that need real CamVid run where it is found
export RALSEG_CAMVID ?= $(abspath $(wildcard ../shared/data/camvid))
# and those that need the nuclei, where a folder of data sets is found
export RALSEG_DATA ?= $(abspath $(wildcard ../shared/data))

.PHONY: help install demo dashboard policy test test-fast kills known judges label-studio audit docs notebook release-check lint format \
	bench bench-short clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(READY)  ## make .venv and install ralseg with the known versions

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

SYNTHETIC_FULL := --config synthetic_pretrain.yaml --trainer.default_root_dir runs/synthetic_full

# at this scale a second thread brings nothing, a second process does: two share the theta_0s
demo: export OMP_NUM_THREADS ?= 1
demo: $(READY)  ## the main job on synthetic streets, in four to ten minutes; run it again and it goes on where it was
	$(BIN)/ralseg data check --config synthetic_pretrain.yaml --out runs/data_check
	$(BIN)/ralseg pretrain $(SYNTHETIC_FULL) --data.fit_on '[state_set,train_set,acquisition_set]' --data.fit_images null \
	  --trainer.max_epochs 9 --trainer.check_val_every_n_epoch 3 --ckpt last
	$(BIN)/ralseg test $(SYNTHETIC_FULL)
	$(BIN)/ralseg pretrain --config synthetic_pretrain.yaml --seeds 3 --ckpt last & beside=$$!; \
	  $(BIN)/ralseg pretrain --config synthetic_pretrain.yaml --seeds 2,4 --ckpt last && wait $$beside
	$(BIN)/ralseg fit --config synthetic_tune.yaml --ckpt last
	$(BIN)/ralseg compare --config synthetic_compare.yaml

dashboard: $(READY)  ## a page of the studies of this folder, and MLflow's
	$(BIN)/ralseg dashboard

# the regression's sums are those of the games; the shipped policy leaves contexts out (docs/policy.md)
policy: export OMP_NUM_THREADS ?= 1
policy: $(READY)  ## train the built-in policy anew, in synthetic worlds; run it again and it goes on where it was
	$(BIN)/ralseg fit --config worlds.yaml --ckpt last
	PYTHONPATH=. $(BIN)/python benchmarks/experience.py solve --context none --shrinkage 3000 --lean 8 \
	  --towards rarity_chosen=1,bald=1,entropy=0.5 --out ralseg/agents/shipped/ralseg.ckpt

# the tests' networks are tiny: a second thread costs more than it brings
test: export OMP_NUM_THREADS ?= 1
test: $(READY)  ## all tests
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=15

test-fast: export OMP_NUM_THREADS ?= 1
test-fast: $(READY)  ## the tests that take seconds, for while you work
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

# what `make test` does in a shortened form
kills: export OMP_NUM_THREADS ?= 1
kills: $(READY)  ## twenty kills of each command, then SIGTERM and Ctrl-C: does every run end the same?
	for command in fit acquire pretrain; do \
	  $(BIN)/python tests/support/kills.py $$command --trials 20 && \
	  $(BIN)/python tests/support/kills.py $$command --trials 5 --signal TERM --signal INT || exit 1; done
	$(BIN)/python tests/support/kills.py fit-actors --trials 5 --signal KILL --signal TERM --signal INT
	for command in acquire-closed fit-search fit-group fit-credit; do \
	  $(BIN)/python tests/support/kills.py $$command --trials 10 || exit 1; done
	$(BIN)/python tests/support/kills.py acquire-people --trials 20
	for command in compare compare-closed; do $(BIN)/python tests/support/kills.py $$command --trials 5 || exit 1; done

# read what ralseg writes for CVAT, COCO and VOC, and write what it reads (tests/annotation/test_label_judges.py)
JUDGES := .judges

judges: $(JUDGES)/.ready  ## datumaro, pycocotools and CVAT's SDK in an environment of their own, to judge files of labels

$(JUDGES)/.ready:
	$(PYTHON) -m venv $(JUDGES)
	$(JUDGES)/bin/pip install --quiet --disable-pip-version-check datumaro==1.13.12 pycocotools==2.0.11 'cvat-sdk[masks]==2.80.0'
	touch $@

# its own environment: the site's tools read the sources and need neither torch nor ralseg's pins
DOCS := .docs

docs: $(DOCS)/.ready  ## the docs site in site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --clean --quiet

docs-check: docs $(READY)  ## look at every page of the docs site in chromium, on a desk and on a phone; follow all links
	$(BIN)/python tests/support/site.py site

$(DOCS)/.ready: docs/requirements.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	touch $@

# its own environment, which sees .venv's packages: what shows a notebook is no part of the tests
NOTEBOOK := .notebook

notebook: $(NOTEBOOK)/.ready  ## run examples/tour.py cell by cell, and keep it with its pictures as examples/tour.ipynb
	PYTHONPATH=$(CURDIR) $(NOTEBOOK)/bin/python benchmarks/notebook.py

$(NOTEBOOK)/.ready: $(READY)
	$(PYTHON) -m venv $(NOTEBOOK)
	$(NOTEBOOK)/bin/pip install --quiet --disable-pip-version-check nbclient==0.11.0 ipykernel==7.4.0
	for venv in $(VENV) $(NOTEBOOK); do $$venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"; done \
	  | { read there; read here; echo "$$there" > "$$here/packages_of_ralseg.pth"; }
	touch $@

release-check: $(READY)  ## build sdist and wheel, install each into an empty environment, and run it there
	$(BIN)/python tests/support/release.py --keep dist

audit:  ## known holes in the pinned packages, from the public database (needs the internet)
	$(PYTHON) -m venv .audit
	.audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	.audit/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt

label-studio: .label-studio/bin/label-studio  ## Label Studio in an environment of its own (1 GB), for the tests that need it

.label-studio/bin/label-studio:
	$(PYTHON) -m venv .label-studio
	.label-studio/bin/pip install --quiet --disable-pip-version-check label-studio==1.23.2

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## let ruff format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## what things cost, as ratios; fails when one is over its bar
	PYTHONPATH=. $(BIN)/python benchmarks/all.py

bench-short: export OMP_NUM_THREADS ?= 1
bench-short: $(READY)  ## benchmarks in a shortened form; fails when a ratio is over its bar
	PYTHONPATH=. $(BIN)/python benchmarks/all.py --short

known: $(READY)  ## write down all options and help texts (ralseg/known), after one has changed
	$(BIN)/python -m ralseg.early_files

clean:  ## delete the environment and all runs
	rm -rf $(VENV) runs data_check mlflow.db mlartifacts
