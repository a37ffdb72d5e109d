# `make run` and `make test` set up what they need in .venv; a bare `make` lists the targets.
PORT ?= 9092
# BROKERS=3: a cluster; one broker's directory cannot be a cluster's.  STORE=zookeeper://...: where its brokers coordinate.
BROKERS ?=
STORE ?=
DATA ?= $(if $(BROKERS),data-cluster,data)
VENV := .venv
PY := $(VENV)/bin/python
NATIVE := $(wildcard csrc/*.c csrc/*.h kcore/*/*.pyx kcore/*/*.pxd) setup.py
# Processes that run the tests, at most 8: one more than there are cores, as many a test waits for the disk.
PYTEST_JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST_ARGS ?=
# How thoroughly bench-peers compares the storage classes: --quick, or nothing for the long run.
STORAGE ?= --quick
# The same of the comparison with Spark's Kafka connector.
SPARK ?= --quick

# pip: no notices.  Python compiles what it imports; compiling all of Spark, pandas and the like takes longer.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
export PIP_NO_COMPILE := 1
# Where this is set, each of the thousands of processes of the tests would compile all it imports again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-threads lint docs bench bench-peers interop wheel sanitize clean wheels built dev

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

run: built $(if $(filter zookeeper:%,$(STORE)),$(VENV)/.zookeeper)  ## a broker on 127.0.0.1:9092, its data in ./data (PORT=, DATA=); BROKERS=3 is a cluster (STORE=)
	@exec $(VENV)/bin/kcore serve --data $(DATA) --port $(PORT) --hints \
	  $(if $(BROKERS),--brokers $(BROKERS)) $(if $(STORE),--store $(STORE))

test: dev  ## the tests, on all cores (PYTEST_ARGS=, PYTEST_JOBS=; KCORE_LONG=1 adds the long ones)
	$(PY) -m pytest -n $(PYTEST_JOBS) --maxprocesses 8 $(PYTEST_ARGS)

test-threads: dev  ## the tests that start threads, with threads that take turns at each chance
	KCORE_SWITCH_INTERVAL=1e-6 $(PY) -m pytest -n $(PYTEST_JOBS) --maxprocesses 8 $(PYTEST_ARGS) \
	  $$(grep -rlE 'threading' tests/unit --include='test_*.py' --exclude-dir=spark --exclude-dir=tools)

lint: dev  ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

docs: dev  ## the pages as a site that needs no network: build/site/docs/site/index.html
	$(PY) -m sphinx -q -W --keep-going -b html -c docs/site . build/site

bench: dev  ## the table of docs/performance.md, for this machine
	mkdir -p build
	$(PY) -m pytest bench/micro bench/flow bench/spark --benchmark-enable --benchmark-json=build/bench.json
	$(PY) bench/report.py build/bench.json

bench-peers: dev  ## beside Apache Kafka's broker, classes, Spark connector, three replicas, fail-over, coordinators (Java, Maven)
	$(PY) bench/peers/run.py
	$(PY) bench/peers/large_requests.py
	$(PY) bench/peers/storage.py $(STORAGE)
	$(PY) bench/peers/spark.py $(SPARK)
	$(PY) bench/peers/replicate.py
	$(PY) bench/peers/failover.py
	$(PY) bench/peers/coordinators.py

interop: dev  ## Kafka reads what kcore writes, and the other way round (Java, Maven)
	PYTHON=$(PY) bash ci/interop.sh

sanitize: dev  ## fuzzing and tests under AddressSanitizer and UndefinedBehaviorSanitizer
	bash ci/sanitize.sh
	PYTHON=$(PY) bash ci/sanitize_modules.sh

wheel: $(VENV)/.base  ## sdist and wheel in dist/, the wheel tried in an environment of its own
	PYTHON=$(PY) bash ci/build_wheels.sh

wheels:  ## a wheel for every CPython here, built twice, audited and tried, and an SBOM, in wheelhouse/ (WHEELS=cpython-313)
	bash ci/build_all_wheels.sh $(WHEELS)

clean:  ## remove what make has made, .venv too
	rm -rf build dist wheelhouse $(VENV) *.egg-info
	find kcore -name '*.so' -delete
	find kcore -name '*.pyx' | sed 's/pyx$$/c/' | xargs rm -f

# Compiling and installing from the package index take turns on no resource: they run at the same time.
built: $(VENV)/.base
	@$(MAKE) -s --no-print-directory -j2 $(VENV)/.built $(VENV)/.run
dev: $(VENV)/.base
	@$(MAKE) -s --no-print-directory -j2 $(VENV)/.built $(VENV)/.dev

# A virtual environment with the build tools.
$(VENV)/.base: pyproject.toml ci/setup.sh
	@sh ci/setup.sh $(VENV)
	@touch $@

# The native modules, beside their sources, and the `kcore` command.
$(VENV)/.built: $(VENV)/.base $(NATIVE)
	@echo "compiling the native modules (a minute or so on two cores)"
	@$(PY) setup.py -q build_clib build_ext --inplace
	@KCORE_LINK_ONLY=1 $(PY) -m pip install -q --no-build-isolation --no-deps --config-settings editable_mode=compat -e .
	@touch $@

$(VENV)/.run: $(VENV)/.base
	@$(PY) ci/requirements.py run | xargs -d '\n' $(PY) -m pip install -q
	@touch $@

$(VENV)/.zookeeper: $(VENV)/.base
	@$(PY) ci/requirements.py zookeeper | xargs -d '\n' $(PY) -m pip install -q
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "installing what tests and lint need (1 GB: Spark, Java, Arrow, pandas and others)"
	@$(PY) ci/requirements.py dev | xargs -d '\n' $(PY) -m pip install -q
	@touch $@
