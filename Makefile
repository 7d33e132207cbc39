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
	@echo "make test-gpu tests of the CUDA backend, on a machine with a GPU or several"
	@echo "make bench    time the rasterizer"
	@echo "make clean    remove .venv and all that was built; keep runs/, scenes/, wheelhouse/"

env:
	@tools/env.sh

test: env
	@tools/test.sh

# With the Python of .venv or, where that cannot be made, with the one at hand: no network, no
# parallel HDF5.
test-gpu:
	@. tools/mpi-env.sh; if [ -d .venv ]; then . .venv/bin/activate; fi; \
	    python -c "import cupy, pytest, mpi4py" 2>/dev/null || \
	    { echo "test-gpu: pip install -e '.[cuda,test]' first" >&2; exit 2; }; \
	    python setup.py -q build_ext --inplace && python -m pytest -q -m gpu tests/gpu && \
	    tests/gpu/ranks.sh

demo: env
	@tools/demo.sh

bench: env
	@$(ACTIVATE) && python benchmarks/raster.py

clean:
	@rm -rf .venv build dist .pytest_cache *.egg-info splaxel_mpi/_host*.so
	@find splaxel_mpi cuda_src tests -name __pycache__ -prune -exec rm -rf {} +
	@echo "removed .venv and what was built; kept runs/, scenes/ and wheelhouse/"
