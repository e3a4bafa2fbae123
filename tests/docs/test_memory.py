"""The page of memory: its bytes are those of the optimizers' variables, for one model."""

import keras
import pytest
from support.frontends import BACKEND, on_jax
from support.pages import ROOT, table

import tf_lamb.keras as ours

layers, PAGE = keras.layers, ROOT / "docs" / "memory.md"
HEADER, *ROWS = table(PAGE, "Bytes a parameter")
POLICIES = ("float32", "bfloat16")
SHARED = "shard_update=True"
OURS = {name: getattr(ours, name) for name in ("LAMB", "LANS", "LARS", "Muon", "AdamP", "SGDP")}


@pytest.fixture
def policy(request):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy(before)


def state(label, frozen=None):
    """The optimizer of a label, built for the model; and the model."""
    model = keras.Sequential([
        keras.Input((16,), dtype="int32"), layers.Embedding(256, 64, name="embedding"),
        layers.Dense(256, "relu"), layers.Dense(64), layers.LayerNormalization(),
        layers.Flatten(), layers.Dense(64),
    ])  # fmt: skip
    if frozen:
        model.get_layer(frozen).trainable = False
    optimizer = eval(label, {"keras": keras, **OURS})
    optimizer.build(model.trainable_variables)
    return optimizer, model


def bytes_of(variable):
    """On one device."""
    if BACKEND == "jax":
        return variable.value.addressable_shards[0].data.nbytes
    return keras.ops.convert_to_numpy(variable).nbytes


def a_parameter(label):
    optimizer, model = state(label)
    return sum(map(bytes_of, optimizer.variables)) / model.count_params()


def label_of(row):
    return row[0].split("`")[1]


ONE_DEVICE = [row for row in ROWS if SHARED not in row[0]]


@pytest.mark.parametrize("policy", POLICIES, indirect=True)
@pytest.mark.parametrize("row", ONE_DEVICE, ids=label_of)
def test_the_state_takes_what_the_page_says(row, policy):
    cell = row[1 + POLICIES.index(policy)]
    assert f"{a_parameter(label_of(row)):.1f}" == cell


@on_jax
@pytest.mark.parametrize("policy", POLICIES, indirect=True)
def test_on_eight_devices_too(policy):
    shared = [row for row in ROWS if SHARED in row[0]]
    assert shared
    for row in shared:
        assert "on each of eight devices" in row[0]
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        try:
            assert f"{a_parameter(label_of(row)):.1f}" == row[1 + POLICIES.index(policy)]
        finally:
            keras.distribution.set_distribution(None)


def test_what_is_small_and_what_is_frozen():
    sizes = [sum(map(bytes_of, state(f"LAMB({a})")[0].variables)) for a in ("", "on_spike='skip'")]
    assert sizes[1] - sizes[0] == 516
    kept, model = state('LAMB(treatments={"dense": {"rate": 0}})')
    assert sum(map(bytes_of, kept.variables)) == sizes[0]
    less, _ = state("LAMB()", frozen="embedding")
    saved = 8 * model.get_layer("embedding").count_params()
    assert sum(map(bytes_of, less.variables)) == sizes[0] - saved
