"""The page of memory: its bytes are those of the optimizers' variables, for one model."""

import keras
import pytest
from support.frontends import precision
from support.pages import ROOT, table

import tf_lamb.keras as ours

layers, PAGE = keras.layers, ROOT / "docs" / "memory.md"
# What each of several devices keeps, test_shared_update.py counts.
ROWS = [row for row in table(PAGE, "Bytes a parameter")[1:] if "shard_update" not in row[0]]
POLICIES = ("float32", "bfloat16")
OURS = {name: getattr(ours, name) for name in ("LAMB", "LANS", "LARS", "Muon", "AdamP", "SGDP")}


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


def size(optimizer):
    return sum(keras.ops.convert_to_numpy(v).nbytes for v in optimizer.variables)


def label_of(row):
    return row[0].split("`")[1]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("row", ROWS, ids=label_of)
def test_the_state_takes_what_the_page_says(row, policy):
    with precision("keras", policy=policy):
        optimizer, model = state(label_of(row))
    assert f"{size(optimizer) / model.count_params():.1f}" == row[1 + POLICIES.index(policy)]


def test_what_is_small_and_what_is_frozen():
    sizes = [size(state(f"LAMB({a})")[0]) for a in ("", "on_spike='skip'")]
    assert sizes[1] - sizes[0] == 516
    kept, model = state('LAMB(treatments={"dense": {"rate": 0}})')
    assert size(kept) == sizes[0]
    less, _ = state("LAMB()", frozen="embedding")
    saved = 8 * model.get_layer("embedding").count_params()
    assert size(less) == sizes[0] - saved
