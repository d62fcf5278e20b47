# Each target prepares the machine first (scripts/setup.sh), so any of them can be the first command after a clone.
.PHONY: help setup demo test check

help:
	@echo "make demo    three LIBERO episodes with the shipped checkpoint; report in demo_out/report.html"
	@echo "make test    the test suite"
	@echo "make check   lint, format and types"
	@echo "make setup   only prepare the machine and the environment"

setup:
	@scripts/setup.sh

demo:
	@scripts/setup.sh cosmos-robot demo --episodes 3 --out demo_out

test:
	@scripts/setup.sh pytest

check:
	@scripts/setup.sh ruff check
	@scripts/setup.sh ruff format --check
	@scripts/setup.sh mypy
