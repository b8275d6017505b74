# Every target sets up what it needs: `make test` and `make study` work on a fresh machine with Python, venv and make.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python
STUDY_ARGS ?=
MINUTES ?= 5
SEED ?= 0

.PHONY: help setup study claims test test-ptx test-ranks test-isa test-slow test-targets test-numba soak fuzz bench scoreboard check format clean

help:
	@echo "make setup      create $(VENV) with everything that the targets below need"
	@echo "make study      study a small transformer's tensors in low precision -> out/study/report.html"
	@echo "make claims     settle claims about low precision by experiment -> docs/claims.md (minutes; resumes)"
	@echo "make test       run the tests"
	@echo "make test-ptx   compile the GPU's kernels to PTX (minutes)"
	@echo "make test-ranks processes of torch that train together, with some killed (a minute)"
	@echo "make test-slow  run everything, the complete sweeps and PTX as well (many minutes)"
	@echo "make test-isa   the tests that meet other libraries' arithmetic, with fewer of this processor's instructions"
	@echo "make test-targets  the same results on other processors (minutes)"
	@echo "make test-numba    the same results with the oldest and the newest numba (minutes)"
	@echo "make soak       short processes that share one cache, killed and damaged, for MINUTES=5 from SEED=0"
	@echo "make fuzz       random calls beside the oracles, for MINUTES=5 from SEED=0"
	@echo "make bench      measure speed beside other libraries -> out/bench.json (ROWS=encode for some, OLD=old.json to compare)"
	@echo "make scoreboard hold other libraries' casts to their policies -> docs/scoreboard.md"
	@echo "make check      lint, format, types and spelling"

# The stamp remembers what was installed; a changed pin or dependency installs again.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "fpsim needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) -V). Use: make PYTHON=python3.12 setup"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@echo "Installing fpsim and what it needs (torch is the largest) into $(VENV), once: one to five minutes without a word."
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(VENV)/.installed

study: setup
	$(VENV)/bin/fpsim study $(STUDY_ARGS)

claims: setup
	$(VENV)/bin/fpsim claims --page docs/claims.md

# A file's tests stay together, so that the kernels they share are compiled once. xdist would run files with few tests
# last, which some take minutes for; in their own order (conftest.py) those come first.
# There is a worker on every core, beside which threads of NumPy and torch would only wait for each other.
ONE_EACH = OPENBLAS_NUM_THREADS=1 OMP_WAIT_POLICY=passive
# Tests start a hundred processes, each of which would compile fpsim's sources anew where the shell keeps no bytecode.
BYTECODE = PYTHONDONTWRITEBYTECODE=
# A worker that dies ends the run with the name of its test: xdist would wait for the dead one's other tests for ever.
WORKERS = -n auto --max-worker-restart=0
PYTEST = $(ONE_EACH) $(BYTECODE) $(RUN) -m pytest $(WORKERS) --dist loadfile --no-loadscope-reorder

test: setup
	$(PYTEST)

# Every module compiles in a process of its own, so that these may go to any worker.
test-ptx: setup
	$(RUN) -m pytest $(WORKERS) -m ptx tests/gpu

# Processes wait for each other as they start, so that two of these tests run at once.
test-ranks: setup
	$(PYTEST) -m "ranks and not slow"

test-slow: setup
	$(PYTEST) -m ""

# Tests that meet the arithmetic of torch, NumPy, JAX and BLAS, with the instructions of two other processors and one or two threads.
OTHERS_ARITHMETIC = tests/probe tests/analysis/studies/differences tests/test_docs.py
test-isa: setup
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=AVX2 OMP_NUM_THREADS=1 \
		$(PYTEST) $(OTHERS_ARITHMETIC)
	ONEDNN_MAX_CPU_ISA=AVX512_CORE ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=2 \
		$(PYTEST) $(OTHERS_ARITHMETIC)

# The same results on other processors, with the oldest and newest numba that the package takes, and without each private
# name of numba's, of which `make test` removes a few.
test-targets: setup
	$(RUN) -m tests.soak.targets

NUMBAS = $(VENV)/numba-oldest $(VENV)/numba-newest
$(VENV)/numba-oldest/.installed: NUMBA = numba==0.61.*
$(VENV)/numba-newest/.installed: NUMBA = numba>=0.61,<0.70
$(addsuffix /.installed,$(NUMBAS)): $(VENV)/.installed
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check '$(NUMBA)' 'numpy>=2.0' 'ml_dtypes>=0.5.1' 'scipy>=1.12' 'mpmath>=1.3'
	@touch $@

test-numba: $(addsuffix /.installed,$(NUMBAS))
	$(RUN) -m tests.soak.targets --python $(addsuffix /bin/python,$(NUMBAS))
	$(PYTEST) -m "" tests/runtime/test_numba_private.py

soak: setup
	$(RUN) -m tests.soak --minutes $(MINUTES) --seed $(SEED)

fuzz: setup
	$(RUN) -m tests.fuzz --minutes $(MINUTES) --seed $(SEED)

# The peers that only benchmarks need.
$(VENV)/.installed-peers: $(VENV)/.installed
	@echo "Installing the libraries that benchmarks compare with into $(VENV), once: a few minutes without a word."
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@touch $@

# ROWS=encode runs some rows, OLD=out/before.json says what changed since a record.
bench: $(VENV)/.installed-peers
	$(RUN) -m benchmarks $(if $(ROWS),--rows '$(ROWS)') $(if $(OLD),--compare '$(OLD)')

scoreboard: $(VENV)/.installed-peers
	$(RUN) -m benchmarks.scoreboard

check: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/codespell

format: setup
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
