.DEFAULT_GOAL := help
.PHONY: help setup run test check format bench image-test

help:  ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Install everything into .venv
	@builder/setup.sh run

run: setup  ## Run test_input.json through the worker and a real engine
	@.venv/bin/python handler.py

check:  ## Lint, types and the whole test suite
	@builder/setup.sh test
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/hadolint Dockerfile
	@.venv/bin/mypy
	@.venv/bin/pytest --numprocesses 2 --dist loadgroup --no-loadscope-reorder

test: check  ## The same as check

format:  ## Format and fix what can be fixed
	@builder/setup.sh test
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

bench:  ## Measure what the worker costs over the bare engine, and what rules and K do
	@builder/setup.sh test
	@.venv/bin/python bench/overhead.py
	@.venv/bin/python bench/jobs.py
	@.venv/bin/python bench/off.py
	@.venv/bin/python bench/acceptance.py
	@.venv/bin/python bench/adaptive.py
	@.venv/bin/python bench/prediction.py

image-test:  ## Build the Dockerfile on a stand-in base and run the image (root; minutes, gigabytes)
	@builder/setup.sh test
	@.venv/bin/python -m tests.image
