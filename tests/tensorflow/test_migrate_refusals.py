"""What cannot be right is refused before anything of the optimizer or the model has changed."""

import pathlib
import shutil

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from official.modeling.optimization import lamb as garden_lamb
from support.frontends import FRONTENDS, every_frontend, uncompiled
from support.migrating import ADDONS, GARDEN, build, renamed_model, stepped

import tf_lamb.keras
import tf_lamb.tf_keras


@pytest.fixture(autouse=True)
def eager():
    """Steps are few here: tracing them would take longer."""
    with uncompiled():
        yield


def copy_of(golden, kind, folder):
    source = golden["files"][kind]
    for file in source.parent.glob(source.name + "*"):
        shutil.copy(file, folder / file.name)
    return folder / source.name


def cut(file, keep):
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])


def short_data(folder):
    prefix = copy_of(ADDONS, "checkpoint", folder)
    cut(prefix.parent / f"{prefix.name}.data-00000-of-00001", 0.7)
    return prefix


def short_index(folder):
    prefix = copy_of(ADDONS, "checkpoint", folder)
    cut(prefix.parent / f"{prefix.name}.index", 0.5)
    return prefix


def flipped_data(folder):
    prefix = copy_of(ADDONS, "checkpoint", folder)
    file = prefix.parent / f"{prefix.name}.data-00000-of-00001"
    data = bytearray(file.read_bytes())
    data[100] ^= 255
    file.write_bytes(data)
    return prefix


def short_hdf5(folder):
    file = copy_of(ADDONS, "hdf5", folder)
    cut(file, 0.5)
    return file


def hdf5_without(name):
    def make(folder):
        file = copy_of(ADDONS, "hdf5", folder)
        with h5py.File(file, "a") as opened:
            del opened[name]
        return file

    return make


def without_model(folder):
    optimizer = garden_lamb.LAMB(0.1)
    variable = tf.Variable([1.0], name="w")
    optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    return tf.train.Checkpoint(optimizer=optimizer).write(str(folder / "ckpt"))


def other_shape(folder):
    model = tf_keras.Sequential([tf_keras.Input((5,)), tf_keras.layers.Dense(3, name="dense")])
    optimizer = garden_lamb.LAMB(0.1)
    optimizer.apply_gradients([(v, v) for v in model.trainable_variables])
    return tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(folder / "ckpt"))


BAD = {
    "data cut short": (short_data, ValueError, ["cut short or damaged", "Nothing was changed"]),
    "index cut short": (short_index, ValueError, ["cut short or damaged"]),
    "a byte flipped": (flipped_data, ValueError, ["cut short or damaged"]),
    "HDF5 cut short": (short_hdf5, ValueError, ["cut short or damaged", "model.h5"]),
    "HDF5 without a counter": (
        hdf5_without("optimizer_weights/LAMB/iter:0"), ValueError, ["no slots"],
    ),
    "HDF5 without a slot": (
        hdf5_without("optimizer_weights/LAMB/dense/kernel/v:0"), ValueError,
        ["incomplete", "'v' of 'dense/kernel'"],
    ),
    "HDF5 without slots": (hdf5_without("optimizer_weights"), ValueError, ["no slots", ".h5"]),
    "without the model": (without_model, ValueError, ["without the model", "model=model"]),
    "another model": (
        other_shape, ValueError, ["'m' of", "dense/kernel'", "(5, 3)", "(4, 3)", "another model"],
    ),
    "another family": (
        lambda _: GARDEN["lars_model"]["files"]["checkpoint"], ValueError, ["is LARS", "is LAMB"],
    ),
    "nothing there": (lambda folder: folder / "none", FileNotFoundError, ["ckpt-1"]),
    "an empty folder": (lambda folder: folder, FileNotFoundError, ["prefix"]),
    "no source at all": (lambda _: 3, TypeError, ["path", "tf_lamb"]),
    "unbuilt": (lambda _: tf_lamb.keras.LAMB(), ValueError, ["train it first"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@every_frontend
def test_bad_sources_change_nothing(frontend, name, tmp_path):
    host, room = FRONTENDS[frontend]
    make, error, words = BAD[name]
    source = make(tmp_path)
    host.backend.clear_session()
    model = renamed_model(host) if name == "another model" else build(host)
    optimizer, built = room.LAMB(0.1), room.LAMB(0.1)
    built.build(model.trainable_variables)
    before = model.get_weights()
    for each in (optimizer, built):
        with pytest.raises(error) as caught:
            room.migrate(source, each, model, weights=isinstance(source, pathlib.Path))
        for word in words:
            assert word in str(caught.value)
    assert optimizer.plan is None and int(built.iterations) == 0
    slots = [slot for i, _ in enumerate(built.plan.names) for slot in built.state_of(i).values()]
    assert not any(np.any(slot.numpy()) for slot in slots)
    for value, same in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, same)


@every_frontend
@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("Muon", {"exclude_from_layer_adaptation": ["embed"]}, "then: 'head/kernel'"),
        ("SOAP", {"exclude_from_layer_adaptation": ["embed"]}, "to them: 'head/kernel'"),
        ("SOAP", {"form": {"one_sided": True}}, "to them: 'dense/kernel'"),
        ("SOAP", {"max_precond_dim": 3}, "to them: 'dense/kernel'"),
    ],
)
def test_matrices_and_their_bases_are_the_same(frontend, family, changes, named):
    """A momentum is no first moment, and a second one belongs to its bases."""
    host, room = FRONTENDS[frontend]
    model, own = build(host), {"exclude_from_layer_adaptation": ["embed", "head"]}
    old, new = (getattr(room, family)(**given) for given in (own, own | changes))
    old.build(model.trainable_variables)
    with pytest.raises(ValueError, match=f"{named}.*[Nn]othing was changed"):
        room.migrate(old, new, model)
    assert new.plan is None
    same = getattr(room, family)(exclude_from_layer_adaptation=["embed", "^head/kernel$"])
    assert not room.migrate(old, same, model).changes


def test_keras_muon_that_is_not_built_has_no_slots():
    with pytest.raises(
        ValueError, match=r"keras\.optimizers\.Muon has no slots before it is built"
    ):
        tf_lamb.keras.migrate(keras.optimizers.Muon(), tf_lamb.keras.Muon(), build(keras))


def test_keras_muon_leaves_convolutions_to_adam():
    layers = [keras.layers.Conv2D(2, 2, name="conv"), keras.layers.Dense(3, name="dense")]
    model = keras.Sequential([keras.Input((4, 4, 1)), *layers])
    old, new = keras.optimizers.Muon(), tf_lamb.keras.Muon()
    old.build(model.trainable_variables)
    with pytest.raises(ValueError, match=r"conv/kernel'\. .*=\['\^sequential.*conv/kernel\$'\]"):
        tf_lamb.keras.migrate(old, new, model)
    assert new.plan is None
    as_there = tf_lamb.keras.Muon(exclude_from_layer_adaptation=["^conv/kernel$"])
    assert len(tf_lamb.keras.migrate(old, as_there, model).matched) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fresh": ["nowhere"]}, "fresh names 'nowhere'"),
        ({"rename": {"nowhere": "head/bias"}}, "rename names 'nowhere'"),
        ({"rename": {"dense/kernel": "nowhere"}}, "under the name 'nowhere'"),
        ({"rename": {"dense/bias": "head/bias"}}, r"'head/bias'.*\(2,\)|shape"),
        ({"weights": True}, "holds no weights"),
    ],
    ids=["fresh", "renamed here", "renamed there", "another shape", "weights"],
)
def test_arguments_of_migrate_that_cannot_be_right(arguments, words):
    old, model = stepped(), renamed_model(tf_keras)
    new = tf_lamb.tf_keras.LAMB(0.1)
    with pytest.raises(ValueError, match=words):
        tf_lamb.tf_keras.migrate(old, new, model, **arguments)
    assert new.plan is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (tf_lamb.keras.LAMB, "is of keras, and the model of tf_keras"),
        (keras.optimizers.Adam, "with an optimizer of tf_lamb, not with"),
    ],
    ids=["of the other Keras", "of Keras"],
)
def test_migration_into_a_stranger_is_refused(make, words):
    old, model = stepped(), renamed_model(tf_keras)
    with pytest.raises(TypeError, match=words):
        tf_lamb.migrate(old, make(), model)


def test_keras_muon_takes_biases_of_two_axes_for_matrices():
    inputs = keras.Input((4, 6))
    attended = keras.layers.MultiHeadAttention(2, 3, name="attention")(inputs, inputs)
    model = keras.Model(inputs, keras.layers.Dense(3, name="dense")(attended))
    old = keras.optimizers.Muon()
    old.build(model.trainable_variables)
    biases = [f"attention/{of}/bias" for of in ("query", "key", "value")]
    as_there = tf_lamb.keras.Muon(exclude_from_layer_adaptation=["attention/"])
    with pytest.raises(ValueError, match=r"exclude_from_.*query/kernel.* fresh=\[.*value/bias'\]"):
        tf_lamb.keras.migrate(old, tf_lamb.keras.Muon(), model)
    report = tf_lamb.keras.migrate(old, as_there, model, fresh=biases)
    assert set(report.fresh) == set(biases) and "dense/kernel" in report.matched
    rules = {f"the rule of {bias}": ("Newton-Schulz", "AdamW") for bias in biases}
    assert rules.items() <= report.changes.items()


def test_a_checkpoint_of_keras_3_is_refused_with_the_way_that_leads_on(tmp_path):
    model, arguments = renamed_model(keras), {"epsilon": 1e-7, "weight_decay_mode": "decoupled"}
    old = keras.optimizers.Lamb(0.1)
    old.build(model.trainable_variables)
    old.apply_gradients([(tf.ones(v.shape), v.value) for v in model.trainable_variables])
    path = tf.train.Checkpoint(model=model, optimizer=old).write(str(tmp_path / "ckpt"))
    new = tf_lamb.keras.LAMB(0.1, exclude_from_layer_adaptation=[], **arguments)
    with pytest.raises(ValueError, match=r"newer interface.*old\.build.*restore\(path\), and pass"):
        tf_lamb.keras.migrate(path, new, model)
    assert new.plan is None
    again = keras.optimizers.Lamb(0.1)
    again.build(model.trainable_variables)
    tf.train.Checkpoint(model=model, optimizer=again).read(path).assert_consumed()
    report = tf_lamb.keras.migrate(again, new, model)
    assert (report.step, report.changes) == (1, {})
    for i, momentum in enumerate(old._momentums):
        np.testing.assert_array_equal(new.state_of(i)["m"].numpy(), momentum.numpy())
