"""Files that were written before load, bit for bit; those of another backend, too."""

import json
import zipfile

import h5py
import keras
import numpy as np
import pytest
from goldens import make_saved
from packaging.version import Version
from support.frontends import BACKEND, FRONTENDS

FILES = sorted(
    path
    for path in make_saved.FOLDER.iterdir()
    if path.suffix in (".keras", ".h5", ".index") and path.stem.startswith(("jax", *FRONTENDS))
)
if BACKEND != "tensorflow":  # a checkpoint is TensorFlow's
    FILES = [path for path in FILES if path.suffix != ".index"]


def keras_that_wrote(path):
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            return Version(file.attrs["keras_version"])
    with zipfile.ZipFile(path) as file:
        return Version(json.loads(file.read("metadata.json"))["keras_version"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_holds_what_was_saved(path):
    frontend = "tf_keras" if path.stem.startswith("tf_keras") else "keras"
    name = path.stem.partition("_")[2].removeprefix("keras_")
    host, ours = FRONTENDS[frontend]
    expected = np.load(path.with_suffix(".npz"))
    if path.suffix == ".index":
        import tensorflow as tf

        model = make_saved.built(host, ours, name)
        model.optimizer.build(model.trainable_variables)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        checkpoint.read(str(path.with_suffix(""))).assert_existing_objects_matched()
    else:
        if frontend == "keras" and Version(keras.__version__) < keras_that_wrote(path):
            pytest.skip("a Keras does not read the layers of a later one; make test has that one")
        model = host.models.load_model(path)
        model.optimizer.build(model.trainable_variables)  # Keras 3 leaves it unbuilt after HDF5
    found = make_saved.values(model)
    assert len(found) == len(expected) > 6
    for place, value in found.items():
        np.testing.assert_array_equal(value, expected[place], err_msg=place)
    kind = type(make_saved.optimizers(ours)[name])
    assert type(model.optimizer) is kind
