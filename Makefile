# The commands of a developer. Each calls ./waypost, which makes its environment at the first use.

.PHONY: check test slow bench format help

help: ## List these commands
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' Makefile

check: ## Lint, types, import layers and the unit tests: what to run before each commit
	./waypost test -n 2 -q tests/unit

test: ## All tests that need no minutes, as .ci/run has them
	./waypost test -n 2

slow: ## Tests that take minutes each: power cuts, kills, attacks at full size
	./waypost test -m slow

bench: ## The benchmarks, beside peers in the same run; keep the machine quiet
	./waypost bench

format: ## Format the Python code
	./waypost test --version > /dev/null
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
