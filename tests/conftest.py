"""Eight logical CPUs before TensorFlow starts, so that replicas can be tested on one machine."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# JAX with several CPU devices, for the same reason.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import pytest

BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")

# What runs under every Keras backend; the rest of the suite is about TensorFlow.
PORTABLE = (
    "test_adascale.py", "test_adversarial.py", "test_autowarmup.py", "test_decentralized.py",
    "test_divergence.py", "test_keras.py", "test_nonfinite.py", "test_normalization.py",
    "test_preflight_keras.py", "test_sharded.py", "test_trust_ratios_keras.py",
)  # fmt: skip


def pytest_ignore_collect(collection_path):
    if BACKEND != "tensorflow" and collection_path.name.startswith("test_"):
        return collection_path.name not in PORTABLE
    return None


@pytest.fixture(scope="session", autouse=True)
def logical_devices():
    if BACKEND == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 8
        )


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The data of the smallest BERT."""
    import garden

    return garden.write_records(tmp_path_factory.mktemp("data"))
