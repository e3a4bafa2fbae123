"""What holds in every room: which tests a backend runs, on which devices, and what they leave.

`KERAS_BACKEND` names the backend. On TensorFlow everything runs; elsewhere the rooms `contracts`,
`api` and `keras` do, and `extras` and `moving_in` but for the Model Garden, for the others have no
other backend. Of these, what is marked `once` does not: what computes nothing is the same on every
backend.
"""

import gc
import os
import pathlib
import random
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Eight devices, so that replicas can be tested on one machine; TensorFlow's are made below.
# What a shell has set stands behind, where it wins.
os.environ["XLA_FLAGS"] = " ".join(
    ["--xla_force_host_platform_device_count=8", os.environ.get("XLA_FLAGS", "")]
)

import pytest
from support import clusters, forgetting
from support.quick import quick

BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")
if BACKEND == "jax":
    os.environ.setdefault("JAX_ENABLE_X64", "1")  # the oracle is float64
TESTS = pathlib.Path(__file__).parent
BUILD = TESTS.parent / ".build"
# No test reads or writes the home of who runs it: Keras has its settings there, matplotlib its
# fonts, and a home may be one that cannot be written.
os.environ.setdefault("KERAS_HOME", str(BUILD / "keras"))
os.environ.setdefault("MPLCONFIGDIR", str(BUILD / "matplotlib"))
os.environ.setdefault("MPLBACKEND", "agg")  # figures are drawn in memory
# What JAX has compiled for one test is read for the next one, and in the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(BUILD / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
ON_EVERY_BACKEND = ("contracts", "api", "keras", "extras", "moving_in")
HEART = ("core", "contracts", "keras", "tensorflow")


def room_of(path):
    """The folder in which a test is, or its file."""
    return path.relative_to(TESTS).parts[0]


def is_of_every_backend(path):
    return room_of(path) in ON_EVERY_BACKEND and "model_garden" not in path.name


def pytest_ignore_collect(collection_path):
    if BACKEND != "tensorflow" and collection_path.name.startswith("test_"):
        return not is_of_every_backend(collection_path)
    return None


def pytest_addoption(parser):
    parser.addoption("--draw", metavar="SEED", help="run a sample of the tests, drawn by this seed")
    parser.addoption("--quick", action="store_true", help="run the quick tests")


def pytest_report_header(config):
    seed = config.getoption("draw")
    return None if seed is None else f"a sample: --draw={seed}; all tests: make test-all"


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    if (
        seed := config.getoption("draw")
    ) is not None and exitstatus == pytest.ExitCode.TESTS_FAILED:
        terminalreporter.write_line(f"The same sample again: make test-drawn DRAW={seed}")


def drawn(items, seed):
    """A sample of the tests, in their order; the same for every process that has the seed."""
    cases = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = set()
    for test, own in cases.items():
        draw = random.Random(f"{seed} {test}")
        if room_of(own[0].path) in HEART or draw.randrange(12) == 0:
            chosen.add(draw.choice(own))
    return [item for item in items if item in chosen]


def pytest_collection_modifyitems(config, items):
    if (seed := config.getoption("draw")) is not None:
        items[:] = drawn(items, seed)
    if config.getoption("quick"):
        chosen = quick([item.nodeid for item in items])
        items[:] = [item for item in items if item.nodeid in chosen]
    once = [item for item in items if item.get_closest_marker("once")]
    # Files that a command names are collected, whatever is ignored.
    once += [item for item in items if not is_of_every_backend(item.path)]
    if BACKEND != "tensorflow" and once:
        config.hook.pytest_deselected(items=once)
        items[:] = [item for item in items if item not in once]


def pytest_collection_finish():
    """What the frameworks made when they were imported stays: no collection looks through it."""
    if os.environ.get("KERAS_BACKEND", "tensorflow") != BACKEND:
        raise pytest.UsageError(
            "A module that a test imports has set KERAS_BACKEND, which the processes that other "
            "tests start would take over: set it where the module is run, not where it is imported."
        )
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def logical_devices():
    if "tensorflow" in sys.modules:
        clusters.logical_devices(8)


@pytest.fixture(scope="session", autouse=True)
def input_that_is_not_tuned():
    """What tunes tf.data's pipelines may sleep for a minute when its iterator is freed.

    It is told of that before it can know that it is meant, and sleeps on if it looks too early
    (TensorFlow 2.20, `Model::OptimizeLoop`). The hook is the one of tf.data's debug mode.
    """
    if "tensorflow" in sys.modules:
        import tensorflow as tf
        from tensorflow.python.data.ops import dataset_ops

        options = tf.data.Options()
        options.autotune.enabled = False
        dataset_ops.DatasetV2._apply_debug_options = lambda self: self.with_options(options)


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind():
    """What a host has built and compiled goes with the module that asked for it."""
    yield
    forgetting.forget()


@pytest.fixture(autouse=True)
def figures_closed():
    """Figures of pyplot go with the test that drew them: others count what they leave open."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
