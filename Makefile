# The commands of this house. Each first makes sure of uv and of the locked environment.
#
#   make run        real flight records in; a validated, trained, exported and tracked model out
#   make test       the test suite, but for what takes minutes a test
#   make test-long  the rest: gangs with faults, whole pipelines by kfp.local, Beam's own workers
#   make test-fast  without the tests that take more than five seconds
#   make check      format, lint, import rules, types, then the fast tests
#   make bench      the figures of the README, measured on this machine

.SILENT:
.DEFAULT_GOAL := help
.PHONY: help environment prometheus run test test-fast test-long check bench

# uv from the path, from pip's own folder, or from the folder that `environment` makes.
export PATH := $(PATH):$(HOME)/.local/bin:$(CURDIR)/.uv-tool/bin
IN := uv run --no-sync --

help:
	sed -n 's/^#   //p' Makefile

# One shell line each, since the make of macOS knows no .ONESHELL and must still say its one line.
environment:
	if [ "$$(uname -s)" != Linux ]; then \
	  echo "headrace runs on Linux only, where TFX has packages; this is $$(uname -s). Take a Linux machine or container." >&2; \
	  exit 1; \
	fi
	if ! command -v uv > /dev/null; then \
	  echo "uv is missing: installing it with pip"; \
	  python3 -m pip install --quiet uv 2> /dev/null || true; \
	fi
	if ! command -v uv > /dev/null; then \
	  echo "pip gave no uv: installing it into .uv-tool"; \
	  if ! { python3 -m venv .uv-tool && .uv-tool/bin/pip install --quiet uv; }; then \
	    echo "uv could not be installed; see https://docs.astral.sh/uv/getting-started/installation" >&2; \
	    exit 1; \
	  fi; \
	fi
	uv sync --locked

run: environment
	$(IN) headrace example flights
	$(IN) headrace run flights/pipeline.toml

# Tests that need a Prometheus are skipped without it, with that reason.
prometheus:
	if ! command -v promtool > /dev/null || ! command -v prometheus > /dev/null; then \
	  echo "no prometheus and promtool here: the tests of the alerts will be skipped."; \
	  echo "To run them: apt-get install prometheus, or, without its service,"; \
	  echo "  apt-get download prometheus && dpkg -x prometheus_*.deb DIR && export PATH=\$$PATH:DIR/usr/bin"; \
	fi

test: environment prometheus
	$(IN) pytest -n 2 --dist loadgroup -m "not long"

# One after another: each of them starts many processes, and waits for bounds in seconds.
test-long: environment
	$(IN) pytest -m long

test-fast: environment
	$(IN) pytest -n 2 --dist loadgroup -m "not slow"

check: environment
	$(IN) ruff format --check .
	$(IN) ruff check .
	$(IN) lint-imports
	$(IN) pyright
	$(IN) pytest -n 2 --dist loadgroup -m "not slow"

bench: environment
	for script in bench/*.py; do \
	  echo "== $$script"; \
	  $(IN) python "$$script" || exit 1; \
	done
