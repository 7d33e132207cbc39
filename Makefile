# make help lists the targets. PYTHON=python3.11 chooses the interpreter of .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help env test test-gpu demo bench clean
export PYTHON ?= python3

ACTIVATE := . tools/mpi-env.sh && . .venv/bin/activate

help:
	@echo "make env      virtual environment .venv: MPI, parallel HDF5, this package"
	@echo "make demo     train a small synthetic city on 4 ranks; results in runs/city"
	@echo "make test     all tests: serial, then on 2, 3 and 4 ranks"
	@echo "make test-gpu tests of the CUDA backend, on a machine with a GPU"
	@echo "make bench    time the rasterizer"
	@echo "make clean    remove .venv and all that was built; keep runs/, scenes/, wheelhouse/"

env:
	@tools/env.sh

test: env
	@tools/test.sh

test-gpu: env
	@$(ACTIVATE) && python -c "import cupy" 2>/dev/null || \
	    { echo "test-gpu: needs CuPy: .venv/bin/pip install -e '.[cuda]'" >&2; exit 2; }
	@$(ACTIVATE) && python -m pytest -q -m gpu tests/gpu

demo: env
	@tools/demo.sh

bench: env
	@$(ACTIVATE) && python benchmarks/raster.py

clean:
	@rm -rf .venv build dist .pytest_cache *.egg-info splaxel_mpi/_host*.so
	@find splaxel_mpi cuda_src tests -name __pycache__ -prune -exec rm -rf {} +
	@echo "removed .venv and what was built; kept runs/, scenes/ and wheelhouse/"
