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
from official.modeling.optimization import lars as garden_lars
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


def hdf5_without(name):
    def make(folder):
        file = copy_of(ADDONS, "hdf5", folder)
        with h5py.File(file, "a") as opened:
            del opened[name]
        return file

    return make


def hdf5_uncompiled(folder):
    file = folder / "model.h5"
    renamed_model(tf_keras).save(file, save_format="h5")
    return file


def without_model(folder):
    optimizer = garden_lamb.LAMB(0.1)
    variable = tf.Variable([1.0], name="w")
    optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    return tf.train.Checkpoint(optimizer=optimizer).write(str(folder / "ckpt"))


def of_sgd(folder):
    model = renamed_model(tf_keras)
    optimizer = tf_keras.optimizers.legacy.SGD(0.1, momentum=0.9)
    optimizer.apply_gradients([(v, v) for v in model.trainable_variables])
    return tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(folder / "ckpt"))


def keras_file(folder):
    file = folder / "model.keras"
    renamed_model(tf_keras).save(file)
    return file


def other_shape(folder):
    model = tf_keras.Sequential([tf_keras.Input((5,)), tf_keras.layers.Dense(3, name="dense")])
    optimizer = garden_lamb.LAMB(0.1)
    optimizer.apply_gradients([(v, v) for v in model.trainable_variables])
    return tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(folder / "ckpt"))


BAD = {
    "data cut short": (short_data, ValueError, ["cut short or damaged", "Nothing was changed"]),
    "HDF5 without a slot": (
        hdf5_without("optimizer_weights/LAMB/dense/kernel/v:0"), ValueError,
        ["incomplete", "'v' of 'dense/kernel'"],
    ),
    "HDF5 without slots": (hdf5_without("optimizer_weights"), ValueError, ["no slots", ".h5"]),
    "HDF5 uncompiled": (hdf5_uncompiled, ValueError, ["not compiled"]),
    "without the model": (without_model, ValueError, ["without the model", "model=model"]),
    "SGD's momentum": (of_sgd, ValueError, ["'SGD'", "['momentum']"]),
    "a .keras file": (keras_file, ValueError, [".keras", "2.15"]),
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


def test_the_forms_of_momentum_do_not_mix():
    model = renamed_model(tf_keras)
    old = garden_lars.LARS(0.1, classic_momentum=False)
    old.apply_gradients([(v, v) for v in model.trainable_variables])
    with pytest.raises(ValueError, match="momentum 'outside'"):
        tf_lamb.tf_keras.migrate(old, tf_lamb.tf_keras.LARS(0.1), model)
    for frontend, (host, room) in FRONTENDS.items():
        new = room.LARS(0.1, form={"momentum": "mixed"})
        with pytest.raises(ValueError, match="'inside' or"):
            room.migrate(GARDEN["lars_model"]["files"]["checkpoint"], new, build(host)), frontend


@every_frontend
def test_the_matrices_of_muon_are_the_same(frontend):
    """A momentum is no first moment: which variables have which is told by name."""
    host, room = FRONTENDS[frontend]
    model = build(host)
    old = room.Muon(exclude_from_layer_adaptation=["embed", "head"])
    old.build(model.trainable_variables)
    for patterns, named in (
        (["embed"], "'head/kernel'"), (["embed", "dense"], "'dense/kernel', 'head/kernel'"),
    ):  # fmt: skip
        new = room.Muon(exclude_from_layer_adaptation=patterns)
        with pytest.raises(ValueError, match=f"then: {named}. .*head.*Nothing was changed"):
            room.migrate(old, new, model)
        assert new.plan is None


@every_frontend
def test_the_bases_of_soap_are_the_same(frontend):
    """A second moment belongs to its bases: whose they are is told by name."""
    host, room = FRONTENDS[frontend]
    model = build(host)
    old = room.SOAP(exclude_from_layer_adaptation=["embed", "head"], use_ema=True)
    old.build(model.trainable_variables)
    for changes, named in (
        ({"exclude_from_layer_adaptation": ["embed"]}, "'head/kernel'"),
        ({"form": {"one_sided": True}}, "'dense/kernel'"),
        ({"max_precond_dim": 3}, "'dense/kernel'"),
    ):
        new = room.SOAP(**{"exclude_from_layer_adaptation": ["embed", "head"], **changes})
        with pytest.raises(ValueError, match=f"to them: {named}. Pass the same .*was changed"):
            room.migrate(old, new, model)
        assert new.plan is None
    same = room.SOAP(exclude_from_layer_adaptation=["embed", "^head/kernel$"])
    assert not room.migrate(old, same, model).changes.keys() - {"use_ema"}


def test_keras_muon_has_slots_and_leaves_convolutions_to_adam():
    with pytest.raises(
        ValueError, match=r"keras\.optimizers\.Muon has no slots before it is built"
    ):
        tf_lamb.keras.migrate(keras.optimizers.Muon(), tf_lamb.keras.Muon(), build(keras))
    layers = [keras.layers.Conv2D(2, 2, name="conv"), keras.layers.Dense(3, name="dense")]
    model = keras.Sequential([keras.Input((4, 4, 1)), *layers])
    old, new = keras.optimizers.Muon(), tf_lamb.keras.Muon()
    old.build(model.trainable_variables)
    with pytest.raises(ValueError, match=r"conv/kernel'\. .*=\['\^sequential.*conv/kernel\$'\]"):
        tf_lamb.keras.migrate(old, new, model)
    assert new.plan is None
    as_there = tf_lamb.keras.Muon(exclude_from_layer_adaptation=["^conv/kernel$"])
    assert len(tf_lamb.keras.migrate(old, as_there, model).matched) == 4


def test_arguments_of_migrate_that_cannot_be_right():
    old = stepped()
    model = renamed_model(tf_keras)
    new = tf_lamb.tf_keras.LAMB(0.1)
    for arguments, word in (
        ({"fresh": ["nowhere"]}, "fresh names 'nowhere'"),
        ({"rename": {"nowhere": "head/bias"}}, "rename names 'nowhere'"),
        ({"rename": {"dense/kernel": "nowhere"}}, "under the name 'nowhere'"),
        ({"rename": {"dense/bias": "head/bias"}}, r"'head/bias'.*\(2,\)|shape"),
        ({"weights": True}, "holds no weights"),
    ):
        with pytest.raises(ValueError, match=word):
            tf_lamb.tf_keras.migrate(old, new, model, **arguments)
    for stranger, word in (
        (tf_lamb.keras.LAMB(), "is of keras, and the model of tf_keras"),
        (keras.optimizers.Adam(), "with an optimizer of tf_lamb, not with"),
    ):
        with pytest.raises(TypeError, match=word):
            tf_lamb.migrate(old, stranger, model)
    assert new.plan is None
