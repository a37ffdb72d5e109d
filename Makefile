# Two commands for a newcomer: `make run` and `make test`.  Both set up what they need in .venv.
PORT ?= 9092
DATA ?= data
VENV := .venv
PY := $(VENV)/bin/python
NATIVE := $(wildcard csrc/*.c csrc/*.h kcore/*/*.pyx kcore/*/*.pxd) setup.py
PYTEST_ARGS ?=
# How thoroughly bench-peers compares the storage classes: --quick, or nothing for the long run.
STORAGE ?= --quick
# The same of the comparison with Spark's Kafka connector.
SPARK ?= --quick

.PHONY: run test lint bench bench-peers interop wheel sanitize clean

run: $(VENV)/.built
	@echo "Starting a broker on 127.0.0.1:$(PORT), its data in $(DATA); Ctrl-C stops it.  Next, in another terminal:"
	@echo "  $(VENV)/bin/pip install confluent-kafka && $(VENV)/bin/python examples/quickstart.py 127.0.0.1:$(PORT)"
	@echo "  $(VENV)/bin/kcore dump $(DATA)/greetings-0     # what lies in the files"
	@echo "  $(VENV)/bin/kcore verify $(DATA)               # every CRC, every index"
	@exec $(VENV)/bin/kcore serve --data $(DATA) --port $(PORT)

test: $(VENV)/.built $(VENV)/.dev
	$(PY) -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.built $(VENV)/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: $(VENV)/.built $(VENV)/.dev
	mkdir -p build
	$(PY) -m pytest bench/micro bench/flow bench/spark --benchmark-enable --benchmark-json=build/bench.json
	$(PY) bench/report.py build/bench.json

bench-peers: $(VENV)/.built $(VENV)/.dev
	$(PY) bench/peers/run.py
	$(PY) bench/peers/storage.py $(STORAGE)
	$(PY) bench/peers/spark.py $(SPARK)

interop: $(VENV)/.built $(VENV)/.dev
	PYTHON=$(PY) bash ci/interop.sh

sanitize: $(VENV)/.built $(VENV)/.dev
	bash ci/sanitize.sh
	PYTHON=$(PY) bash ci/sanitize_modules.sh

wheel: $(VENV)/.base
	PYTHON=$(PY) bash ci/build_wheels.sh

# A virtual environment with the build tools and the run-time dependencies.
$(VENV)/.base: pyproject.toml ci/setup.sh
	@sh ci/setup.sh $(VENV)
	@touch $@

# The native modules, beside their sources, and the `kcore` command.
$(VENV)/.built: $(VENV)/.base $(NATIVE)
	@echo "building the native modules (a minute or so)"
	@$(PY) setup.py -q build_clib build_ext --inplace
	@$(PY) -m pip install -q --no-build-isolation --no-deps --config-settings editable_mode=compat -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@echo "installing what tests and lint need"
	@$(PY) ci/requirements.py dev | xargs -d '\n' $(PY) -m pip install -q
	@touch $@

clean:
	rm -rf build dist $(VENV) *.egg-info
	find kcore -name '*.so' -delete
	find kcore -name '*.pyx' | sed 's/pyx$$/c/' | xargs rm -f
