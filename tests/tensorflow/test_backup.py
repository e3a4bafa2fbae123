"""Frontends 1 and 2: a fit that was killed, in whatever it did, ends with the same bits.

Nothing is compiled: what a backup holds does not depend on it.
"""

import importlib
import pathlib
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf
from support import backing_up, processes
from support.backing_up import EPOCHS, STEPS, fit, new_model, state
from support.crashing import full_disk
from support.frontends import FRONTENDS, every_frontend, uncompiled


@pytest.fixture(autouse=True, scope="module")
def eager():
    with uncompiled():
        yield


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Frontend -> what it ends with."""
    ends = {}
    for frontend in FRONTENDS:
        model = new_model(frontend)
        fit(frontend, model, tmp_path_factory.mktemp(frontend))
        ends[frontend] = state(model)
    return ends


def killed(frontend, folder, when, number=0, stock=False):
    folder.mkdir(exist_ok=True)
    output = folder.with_suffix(".txt")
    code = processes.exit_code(
        backing_up.die_in_fit, frontend, str(folder), stock, when, number, output=output
    )
    assert code in {-signal.SIGKILL, -signal.SIGXFSZ}, output.read_text()[-2000:]


def ended(frontend, folder):
    """The epochs of a fit and what it ends with, in a process as new as the one that was killed."""
    file = folder.with_suffix(".npz")
    assert processes.exit_code(backing_up.end_in_file, frontend, str(folder), str(file)) == 0
    with np.load(file) as found:
        return list(found.values())


def assert_same_bits(expected, model):
    got = state(model)
    assert len(expected) == len(got)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize(
    ("frontend", "when", "number", "epoch"),
    [
        ("keras", "batch", 2 * STEPS + 3, 2),
        ("tf_keras", "batch", 2 * STEPS + 3, 2),
        # In the middle of writing the backup of the third epoch.
        ("keras", "byte", 5000, 2),
        ("tf_keras", "byte", 700, 2),
        # When the weights are written, but are not yet the backup.
        ("keras", "written", 0, 2),
    ],
)
def test_a_killed_fit_ends_with_the_same_bits(tmp_path, frontend, when, number, epoch):
    folder = tmp_path / "backup"
    killed(frontend, folder, when, number)
    epochs, *resumed = ended(frontend, folder)
    assert epochs.tolist() == [*range(epoch, EPOCHS)]
    epochs, *whole = ended(frontend, tmp_path / "whole")
    assert epochs.tolist() == [*range(EPOCHS)]
    assert [array.tobytes() for array in resumed] == [array.tobytes() for array in whole]


def test_why_keras_needs_another_one(unbroken, tmp_path):
    """The day that this fails, Keras's own is as safe."""
    killed("keras", tmp_path / "in", "byte", 5000, stock=True)
    with pytest.raises(OSError):
        fit("keras", new_model("keras"), tmp_path / "in", stock=True)
    killed("keras", tmp_path / "after", "written", stock=True)
    model = new_model("keras")
    fit("keras", model, tmp_path / "after", stock=True)
    assert not np.array_equal(unbroken["keras"][0], state(model)[0])


class Stop(Exception):
    """Leaves a fit and its backup."""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder of a frontend and a model, from a fit that ended in its third epoch."""
    originals = {}

    def copy(frontend, folder, **model):
        key = (frontend, *model.items())
        if key not in originals:
            originals[key] = tmp_path_factory.mktemp("stopped")
            leave_off(frontend, originals[key], **model)
        shutil.copytree(originals[key], folder, dirs_exist_ok=True)

    return copy


def leave_off(frontend, folder, **more):
    def stop(epoch, logs=None):
        if epoch == 2:
            raise Stop

    callback = importlib.import_module(frontend).callbacks.LambdaCallback(on_epoch_begin=stop)
    with pytest.raises(Stop):
        fit(frontend, new_model(frontend, **more), folder, [callback])


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@every_frontend
def test_a_full_disk_costs_no_backup(unbroken, stopped, tmp_path, frontend):
    stopped(frontend, tmp_path)
    before = contents(tmp_path)
    with full_disk(500), pytest.raises((OSError, tf.errors.OpError), match="(?i)too large"):
        fit(frontend, new_model(frontend), tmp_path)
    assert before.items() <= contents(tmp_path).items()
    model = new_model(frontend)
    assert fit(frontend, model, tmp_path) == [2, 3]
    assert_same_bits(unbroken[frontend], model)


DAMAGE = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "scribble": lambda path: path.write_text("no list of checkpoints"),
    "remove": pathlib.Path.unlink,
}


@pytest.mark.parametrize(
    ("frontend", "damage", "pattern"),
    [
        ("keras", "cut", "*.h5"), ("tf_keras", "cut", "*.data-*"), ("tf_keras", "cut", "*.index"),
        ("tf_keras", "remove", "*.index"), ("tf_keras", "empty", "checkpoint"),
        ("tf_keras", "scribble", "checkpoint"),
    ],
)  # fmt: skip
def test_a_broken_backup_is_refused(stopped, tmp_path, frontend, damage, pattern):
    stopped(frontend, tmp_path)
    (path,) = tmp_path.rglob(pattern)
    DAMAGE[damage](path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="backup_dir=.* cannot be restored") as error:
        fit(frontend, new_model(frontend), tmp_path)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)
    assert contents(tmp_path) == before


@every_frontend
@pytest.mark.parametrize("other", [{"units": 9}, {"optimizer": "LARS"}], ids=["model", "optimizer"])
def test_a_backup_of_another_model_is_refused(stopped, tmp_path, frontend, other):
    stopped(frontend, tmp_path, **({} if frontend == "keras" else other))
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="cannot be restored"):
        fit(frontend, new_model(frontend, **(other if frontend == "keras" else {})), tmp_path)
    assert contents(tmp_path) == before


@every_frontend
@pytest.mark.parametrize("is_filled", [False, True], ids=["empty", "filled"])
def test_a_stray_folder_beside_the_backup_is_ignored(
    unbroken, stopped, tmp_path, frontend, is_filled
):
    """A number as its name, as of an epoch, and in it what a real backup has."""
    stopped(frontend, tmp_path)
    for folder in {path.parent for path in contents(tmp_path)} | {tmp_path}:
        (folder / "7").mkdir()
        for path in folder.iterdir() if is_filled else ():
            if path.is_file():
                shutil.copy(path, folder / "7" / path.name.replace("_2.", "_7."))
    model = new_model(frontend)
    assert fit(frontend, model, tmp_path) == [2, 3]
    assert_same_bits(unbroken[frontend], model)


def test_a_folder_with_the_name_of_a_backup_is_refused(stopped, tmp_path):
    stopped("keras", tmp_path)
    (tmp_path / "after_epoch_7.weights.h5").mkdir()
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="backup_dir=.* cannot be restored") as error:
        fit("keras", new_model("keras"), tmp_path)
    assert "\n" not in str(error.value) and contents(tmp_path) == before
