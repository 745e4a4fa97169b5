# The front door. Everything runs in the current Python environment.

.PHONY: setup check format test test-long machine-long fuzz soak golden bench bench-grammar gpu-report walks load independent demo clean

setup:  ## install the package with what tests and checks need, and the pre-commit hooks
	pip install -e '.[dev]'
	pre-commit install

check:  ## lint, format and types; mypy needs a folder named forktree, which a git-ignored link provides
	ruff check .
	ruff format --check .
	mkdir -p .mypy_cache/root && ln -sfn "$(CURDIR)" .mypy_cache/root/forktree
	cd .mypy_cache/root && mypy --config-file forktree/pyproject.toml -p forktree.lang -p forktree.runtime

format:  ## mend what can be mended
	ruff check --fix .
	ruff format .

test:  ## the ordinary tests
	pytest $(TARGET)

test-long:  ## the tests that take minutes
	pytest -m slow --timeout 3600 $(TARGET)

machine-long:  ## the stateful machine over the engine, for SECONDS (300)
	python tests/support/machine_long.py --seconds $(or $(SECONDS),300) $(ARGS)

fuzz:  ## every parser of untrusted input, for SECONDS (300)
	python tests/support/fuzz_long.py --seconds $(or $(SECONDS),300) $(ARGS)

soak:  ## an hour of programs over a pool that holds a fraction of them; a table and a verdict. MINUTES=60
	OMP_NUM_THREADS=1 nice python -m forktree.benchmarks.soak --minutes $(or $(MINUTES),60) $(ARGS)

golden:  ## rewrite the golden files; read the diff before you commit it
	pytest tests --update-golden -q -k golden

bench:  ## the workloads, one after another; nothing else should run. ARGS="--quick --only W1"
	python -m forktree.benchmarks $(ARGS)

bench-grammar:  ## schemas beside other grammar engines. SCHEMAS="a.jsonl b.jsonl"
	python -m forktree.benchmarks.grammar $(if $(SCHEMAS),--schemas $(SCHEMAS)) $(ARGS)

gpu-report:  ## registers, spills and shared memory of every GPU kernel, compiled for sm_80 and sm_90; needs no GPU
	python -m forktree.benchmarks.gpu.compile_report $(ARGS)

walks:  ## every schema of some files, walked token by token. SCHEMAS="a.jsonl b.jsonl"
	python -m forktree.benchmarks.walks --schemas $(SCHEMAS) $(ARGS)

load:  ## 64 clients that behave and misbehave, for some minutes; prints a table. ARGS="--minutes 3"
	python -m forktree.benchmarks.server.load $(ARGS)

independent:  ## the OpenAI backend against other servers. LLAMA_CPP_PYTHON=… VLLM_PYTHON=… name interpreters that have them
	FORKTREE_LLAMA_CPP_PYTHON=$(or $(LLAMA_CPP_PYTHON),python) $(if $(VLLM_PYTHON),FORKTREE_VLLM_PYTHON=$(VLLM_PYTHON)) \
		pytest tests/backend/clients/test_independent.py -v $(ARGS)

demo:
	forktree demo

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
