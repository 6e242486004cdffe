# Every target makes its own .venv when there is none and says what it is doing.
# Needed on the machine: Python 3.10 to 3.13 (PYTHON=python3.12 picks one) and make.

PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
TEST_FLAGS ?=  # such as "--numprocesses 8", "-k packing"
OLDEST_PYTHON ?= python3.10
OLDEST_VENV := .venv-oldest
OLDEST_TESTS := $(addprefix tests/,checkpoints tokenizers kernels layers models readers corpus \
	labelled tasks training pretraining finetuning inference conversion commands)

# Else each process of the tests, some hundred, would compile the package and the tests anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo poems test test-slow test-browser test-hf test-clients test-oldest lint docs translations bench suite
.NOTPARALLEL:

help:
	@echo "make demo       pretrain a small RoFormer on real Chinese text, in about 10 minutes"
	@echo "make poems      have a small RoFormer learn Tang and Song verse and write poems, 15 minutes"
	@echo "make test       run the tests; make test-slow runs the long ones,"
	@echo "                make test-browser those that need Chromium,"
	@echo "                make test-hf those that need torch and transformers,"
	@echo "                make test-clients those that need clients such as openai and cohere,"
	@echo "                make test-oldest most of the quick ones on the lowest versions allowed"
	@echo "make lint       ruff (lint and format) and mypy"
	@echo "make docs       build the documentation site in site/, strictly (not part of make test)"
	@echo "make translations  update and compile the Chinese messages of reports and cards"
	@echo "make bench      measure against bert4keras and Hugging Face, about an hour and a half;"
	@echo "                make bench CASES=\"inference startup\" measures some of it; the service, which"
	@echo "                prints its figures, only where it is named: make bench CASES=\"inference serve\""
	@echo "make suite      fine-tune a checkpoint on many sets, compared with TF-IDF, some hours;"
	@echo "                make suite CHECKPOINT=folder SUITE_FLAGS=\"--quick\", under 15 minutes"

demo: $(VENV)/.installed-demo
	@echo "demo: pretraining a small RoFormer on real Chinese text, about 10 minutes on 2 cores"
	@$(RUN) -m pretrain.demo

poems: $(VENV)/.installed-poems
	@echo "poems: a small RoFormer learns Tang and Song verse, about 15 minutes on 2 cores"
	@$(RUN) -m pretrain.poems

# Four on two cores: who waits for a process of its own, or for the disk, leaves a core to others.
# Each computes in one thread: threads of tiny operations only wait for each other.
# One that dies ends the run, which names its test: put in its place, another waits for ever.
test: $(VENV)/.installed-dev
	@echo "test: running the quick tests"
	@TF_NUM_INTRAOP_THREADS=1 OMP_NUM_THREADS=1 $(RUN) -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(TEST_FLAGS)

test-slow: $(VENV)/.installed-dev
	@echo "test-slow: running the tests that take long"
	@$(RUN) -m pytest -m "slow and not hf" $(TEST_FLAGS)

test-browser: $(VENV)/.installed-dev
	@echo "test-browser: running the tests that need Chromium and its driver"
	@$(RUN) -m pytest -m browser $(TEST_FLAGS)

test-hf: $(VENV)/.installed-hf
	@echo "test-hf: running the tests that need torch and transformers"
	@$(RUN) -m pytest -m hf $(TEST_FLAGS)

test-clients: $(VENV)/.installed-clients
	@echo "test-clients: running the tests that need clients of other services"
	@$(RUN) -m pytest -m clients $(TEST_FLAGS)

test-oldest:
	@echo "test-oldest: running most of the quick tests on the lowest versions that are allowed"
	@$(MAKE) --no-print-directory VENV=$(OLDEST_VENV) PYTHON=$(OLDEST_PYTHON) \
		$(OLDEST_VENV)/.installed-oldest
	@$(OLDEST_VENV)/bin/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
		$(OLDEST_TESTS) $(TEST_FLAGS)

lint: $(VENV)/.installed-dev
	@echo "lint: ruff check, ruff format, mypy"
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

# NO_MKDOCS_2_WARNING hides a notice of mkdocs-material about MkDocs 2.
docs: $(VENV)/.installed-docs
	@echo "docs: building the documentation, strictly, into site/"
	@NO_MKDOCS_2_WARNING=1 TF_CPP_MIN_LOG_LEVEL=3 $(RUN) -m mkdocs build --strict --quiet

# Collects the messages of Python files, templates and help pages. New ones then need a translation
# by hand.
TRANSLATED = roformer_tf/locale/zh/LC_MESSAGES/roformer_tf
translations: $(VENV)/.installed-dev
	@echo "translations: collecting messages, updating and compiling $(TRANSLATED).po"
	@mkdir -p build
	@$(RUN) tests/support/help_texts.py > build/help_texts.py
	@$(VENV)/bin/pybabel --quiet extract --mapping pyproject.toml --keyword Message --keyword say --no-location \
		--width 100 --project roformer_tf --output-file build/messages.pot roformer_tf build/help_texts.py
	@$(VENV)/bin/pybabel --quiet update --input-file build/messages.pot --output-file $(TRANSLATED).po \
		--locale zh --no-fuzzy-matching --ignore-obsolete --ignore-pot-creation-date --width 100
	@$(VENV)/bin/pybabel --quiet compile --input-file $(TRANSLATED).po --output-file $(TRANSLATED).mo

MEASURED = $(filter-out serve,$(CASES))
bench: $(VENV)/.installed-dev
	@echo "bench: ours beside bert4keras and Hugging Face, about an hour and a half on 2 cores"
	@$(if $(CASES),$(if $(MEASURED),$(RUN) -m benchmarks.run --cases $(MEASURED),true),$(RUN) -m benchmarks.run)
	@$(if $(filter serve,$(CASES)),$(RUN) -m benchmarks.bench_serve --rivals,true)

CHECKPOINT ?= chinese_roformer-tf-mini
SUITE_FLAGS ?=  # such as "--quick", "--data FOLDER", "--sets tnews bustm"
suite: $(VENV)/.installed-dev
	@echo "suite: fine-tuning $(CHECKPOINT) on the sets of ../shared/data, or of --data"
	@$(RUN) -m benchmarks.suite --checkpoint $(CHECKPOINT) $(SUITE_FLAGS)

# pip asks an index that it cannot reach again and again, for minutes, with a warning each time.
# This has it fetch one small dependency first, by the same index, mirror, proxy or folder of
# wheels that it is configured to use.
define reach_packages
@$(RUN) -m pip download --quiet --retries 1 --timeout 10 --no-deps --dest $(VENV)/.reached \
	tqdm > $(VENV)/.reached.log 2>&1 \
	|| { echo "setup: pip cannot fetch packages; is there a network, or a mirror in \`pip config\`?" \
		"Its own words are in $(VENV)/.reached.log" >&2; exit 1; }
endef

$(VENV)/.made:
	@echo "setup: making $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 10) <= sys.version_info < (3, 14) else \
		"Python 3.10 to 3.13 is needed; $(PYTHON) is %d.%d. Try make PYTHON=python3.12" % sys.version_info[:2])'
	@$(PYTHON) -c 'import platform, sys; sys.exit("There is no TensorFlow 2.20 for Macs with an Intel \
		processor, nor for a Python built for them." \
		if (sys.platform, platform.machine()) == ("darwin", "x86_64") else None)'
	@$(PYTHON) -m venv $(VENV)
	$(reach_packages)
	@$(RUN) -m pip install --quiet --upgrade pip
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.made pyproject.toml
	@echo "setup: installing roformer-tf and what the demo needs into $(VENV) (a few minutes)"
	$(reach_packages)
	@$(RUN) -m pip install --quiet --editable '.[demo]'
	@touch $@

$(VENV)/.installed-poems: $(VENV)/.made pyproject.toml
	@echo "setup: installing roformer-tf and what the poems need into $(VENV) (a few minutes)"
	$(reach_packages)
	@$(RUN) -m pip install --quiet --editable '.[poems]'
	@touch $@

# bert4keras, which the tests compare with, asks for an old Keras; without its own
# requirements it runs on tf-keras, beside Keras 3.
$(VENV)/.installed-dev: $(VENV)/.made pyproject.toml
	@echo "setup: installing roformer-tf and what the tests need into $(VENV) (a few minutes)"
	$(reach_packages)
	@$(RUN) -m pip install --quiet --editable '.[demo,dev,jax,onnx,serve]'
	@$(RUN) -m pip install --quiet --no-deps bert4keras==0.11.5
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.made pyproject.toml
	@echo "setup: installing roformer-tf and what the documentation needs into $(VENV)"
	$(reach_packages)
	@$(RUN) -m pip install --quiet --editable '.[docs]'
	@touch $@

$(VENV)/.installed-hf: $(VENV)/.installed-dev
	@echo "setup: installing torch and transformers into $(VENV) (a few minutes)"
	$(reach_packages)
	@$(RUN) -m pip install --quiet --editable '.[hf]'
	@touch $@

$(VENV)/.installed-clients: $(VENV)/.installed-dev
	@echo "setup: installing clients of other services into $(VENV)"
	$(reach_packages)
	@$(RUN) -m pip install --quiet --editable '.[clients]'
	@touch $@

# The requirements are read from the package once it is installed, so pyproject.toml stays the one
# place where versions stand.
$(VENV)/.installed-oldest: $(VENV)/.made pyproject.toml
	@echo "setup: installing roformer-tf and the lowest versions that it allows into $(VENV)"
	$(reach_packages)
	@$(RUN) -m pip install --quiet --no-deps --editable .
	@$(RUN) tests/support/oldest_versions.py > $(VENV)/.oldest
	@$(RUN) -m pip install --quiet --editable '.[demo,dev,jax,onnx,serve]' \
		--constraint $(VENV)/.oldest
	@$(RUN) -m pip install --quiet --no-deps bert4keras==0.11.5
	@touch $@
