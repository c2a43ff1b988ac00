# The commands of a developer. Each calls ./waypost, which makes its environment at the first use.

.PHONY: check test all slow bench docs pictures lock format help

help: ## List these commands
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' Makefile

check: ## Lint, types, import layers and the unit tests: what to run before each commit
	./waypost test tests/unit -q -n auto

test: ## The tests that take some minutes
	./waypost test

all: ## All tests but the slow ones, as .ci/run has them
	./waypost test --all

slow: ## Tests that take minutes each: power cuts, kills, attacks at full size
	./waypost test -m slow

bench: ## The benchmarks, compared with other brokers in the same run; keep the machine quiet
	./waypost bench

docs: ## Build and serve the documentation
	./waypost docs

pictures: ## Make the pictures of the consoles in the docs, with Chromium (two minutes)
	./waypost test --version > /dev/null
	.venv/bin/python -P -m tests.console.pictures
	.venv/bin/python -P -m tests.console.settings_picture

# Pins stay where they are unless a package is named. The packages of Python 3.11 are all that a newer one needs.
COMPILE = .venv/bin/uv pip compile --quiet --python-version 3.11 --python-platform linux --generate-hashes --custom-compile-command 'make lock' --no-emit-index-url \
	--no-emit-find-links --no-annotate $(if $(PACKAGE),--upgrade-package $(PACKAGE)) pyproject.toml
AS_PINNED = --constraint requirements.lock

lock: ## Pin the packages of pyproject.toml with hashes; PACKAGE=NAME moves that one to its newest release
	$(COMPILE) --extra edge --extra kafka --extra cloud --extra postgresql --extra spark --extra images --extra docs --extra dev -o requirements.lock
	$(COMPILE) $(AS_PINNED) --extra edge --extra kafka -o requirements-gateway.lock
	$(COMPILE) $(AS_PINNED) --extra edge --extra kafka --extra cloud --extra postgresql -o requirements-hub.lock
	$(COMPILE) $(AS_PINNED) --extra spark -o requirements-analytics.lock
	$(COMPILE) $(AS_PINNED) --extra images -o requirements-images.lock
	$(COMPILE) $(AS_PINNED) --extra docs -o requirements-docs.lock
	$(COMPILE) $(AS_PINNED) --extra build -o requirements-build.lock
	$(COMPILE) $(AS_PINNED) --extra jre -o requirements-jre.lock

format: ## Format the Python code
	./waypost test --version > /dev/null
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
