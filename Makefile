# Everything a person does here. MODEL, CORPUS, NB, DEVICE, DTYPE and TEXTS narrow or change `make run`.
MODEL  ?= minilm
CORPUS ?= lee
NB     ?=
DEVICE ?= auto
DTYPE  ?= auto
TEXTS  ?=

# the first Python that is new enough; override with PYTHON=...
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN    := .venv/bin
READY  := .venv/ready$(if $(filter mpnet,$(MODEL)),-mpnet)
EXTRAS := dev$(if $(filter mpnet,$(MODEL)),$(shell test -f $${ATTNLIB_CACHE:-$$HOME/.cache/attnlib}/all-mpnet-base-v2/model.safetensors || echo ,mpnet))
CHOICE  = --model '$(MODEL)' --corpus '$(CORPUS)' --device '$(DEVICE)' --dtype '$(DTYPE)' \
	$(if $(NB),--only '$(NB)') $(if $(TEXTS),--texts '$(TEXTS)')

.DEFAULT_GOAL := help
.PHONY: help setup run render test lab lint bench clean

help:     ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "%-9s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "make run NB=02 MODEL=bert-base-uncased CORPUS='texts/*.txt' DEVICE=cuda DTYPE=bfloat16 TEXTS=50"

setup: $(READY)  ## the environment alone, in .venv
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found: install one, or name it with PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

run: $(READY)  ## every notebook on MODEL and CORPUS, into build/
	@$(BIN)/python notebooks/run.py $(CHOICE)

render: $(READY)  ## for committers: run at the published settings and store outputs and results in notebooks/
	@$(BIN)/python notebooks/run.py --render $(CHOICE)

test: $(READY)  ## unit tests, and every notebook at small settings
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest --cov --cov-fail-under=100

lab: $(READY)  ## JupyterLab on the first notebook
	$(BIN)/jupyter lab notebooks/00_start_here.ipynb

lint: $(READY)  ## formatting and common mistakes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

bench: $(READY)  ## cost of capturing and of a survey, as ratios to the plain forward pass
	@$(BIN)/python tests/bench.py --model '$(MODEL)' --device '$(DEVICE)' --dtype '$(DTYPE)'

clean:    ## remove build/ and caches; .venv stays
	rm -rf build .pytest_cache .ruff_cache .hypothesis .coverage *.egg-info
	find attnlib notebooks tests -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf
