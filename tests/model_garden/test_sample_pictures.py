"""sample_pictures: what it writes, that it writes it once, what it refuses, a few steps on it."""

import collections
import hashlib
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("official.vision")
datasets = pytest.importorskip("sklearn.datasets")
tf = pytest.importorskip("tensorflow")

from tf_lamb.model_garden import sample_pictures  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}
JPEG = b"\xff\xd8\xff"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures") / "new" / "digits"
    return folder, sample_pictures.write(folder)


def read(folder, part):
    """The pictures and the labels of a part, decoded."""
    pictures, labels = [], []
    for record in tf.data.TFRecordDataset(str(folder / f"{part}.tfrecord")):
        # The parser passes over features it was not asked for, so look at the names as well.
        assert set(tf.train.Example.FromString(record.numpy()).features.feature) == set(FEATURES)
        example = tf.io.parse_single_example(record, FEATURES)
        assert example["image/encoded"].numpy().startswith(JPEG)
        # TensorFlow's own choice is a fast transform, which is as far off as 57 of 255 on noise.
        picture = tf.io.decode_jpeg(example["image/encoded"], dct_method="INTEGER_ACCURATE")
        pictures.append(picture.numpy())
        labels.append(int(example["image/class/label"]))
    return np.stack(pictures), np.array(labels)


def nearest(pictures, originals):
    """For each picture, which of the originals it is, JPEG's error apart; how far at most."""
    a, b = (x.reshape(len(x), -1).astype("float32") for x in (pictures, originals))
    square = (a**2).sum(1)[:, None] - 2 * a @ b.T + (b**2).sum(1)
    index = square.argmin(1)
    return index, np.abs(a - b[index]).max()


def test_without_scikit_learn_it_says_the_pip_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    line = r'needs scikit-learn, which this .* lacks: pip install "\.\[model-garden\]"'
    with pytest.raises(ModuleNotFoundError, match=line):
        sample_pictures.write(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def hashes(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def run(module, *args, **env):
    return subprocess.run(
        [sys.executable, "-m", f"tf_lamb.model_garden.{module}", *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **env},
    )


def test_digits_are_all_there_each_in_one_part(tmp_path):
    facts = sample_pictures.write(tmp_path, size=8)
    (a, a_labels), (b, b_labels) = read(tmp_path, "train"), read(tmp_path, "validation")
    assert a.shape == (1437, 8, 8, 3) and b.shape == (360, 8, 8, 3)
    assert (facts["train_examples"], facts["validation_examples"]) == (1437, 360)
    source = datasets.load_digits()
    originals = np.repeat(source.images[..., None] * 255 / 16, 3, axis=-1)
    which, error = nearest(np.concatenate([a, b]), originals)
    assert error < 3
    assert sorted(which) == list(range(1797))
    np.testing.assert_array_equal(np.concatenate([a_labels, b_labels]), source.target[which])


def test_digits_are_enlarged_and_grey(digits):
    pictures, _ = read(digits[0], "validation")
    assert pictures.shape == (360, 32, 32, 3) and pictures.dtype == np.uint8
    assert pictures.min() == 0 and pictures.max() > 250
    assert np.ptp(pictures.astype(int), axis=-1).max() <= 2


def test_validation_has_the_same_share_of_each_class(digits):
    counts = [np.bincount(read(digits[0], part)[1]) for part in ("train", "validation")]
    np.testing.assert_allclose(counts[1] / sum(counts), 0.2, atol=0.005)


def test_facts_are_those_of_the_files(digits):
    folder, facts = digits
    assert json.loads((folder / "data.json").read_text()) == facts
    assert facts["classes"] == [str(i) for i in range(facts["num_classes"])]
    assert (facts["size"], facts["num_classes"]) == (32, 10)
    labels = read(folder, "validation")[1].tolist()
    (label, count), *_ = collections.Counter(labels).most_common()
    assert facts["validation_commonest_class"] == str(label)
    assert facts["validation_commonest_class_share"] == pytest.approx(count / len(labels))


@pytest.mark.parametrize(
    "change, says",
    [
        ({"seed": 1}, "seed was 12345 and is now 1"),
        ({"size": 16, "validation_fraction": 0.1}, "size was 32 and is now 16, validation_frac"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(digits, change, says):
    before = hashes(digits[0])
    with pytest.raises(FileExistsError, match=says):
        sample_pictures.write(digits[0], **change)
    assert hashes(digits[0]) == before


@pytest.mark.slow
def test_another_process_writes_the_same_bytes(digits, tmp_path):
    done = run("sample_pictures", f"--output_dir={tmp_path}", PYTHONHASHSEED="123")
    assert done.returncode == 0, done.stderr
    first, _, rest = done.stdout.partition("\n")
    told = f"{tmp_path}: 1437 training and 360 validation pictures of 10 classes. Train on it:"
    assert first == told and str(tmp_path) in rest  # the command that does
    assert hashes(tmp_path) == hashes(digits[0])


def test_another_seed_keeps_other_pictures_for_validation(digits, tmp_path):
    sample_pictures.write(tmp_path, seed=1)
    assert hashes(tmp_path)["validation.tfrecord"] != hashes(digits[0])["validation.tfrecord"]


@pytest.mark.parametrize(
    "change, says",
    [
        ({"size": 7}, "size must be a whole number >= 8, not 7"),
        ({"validation_fraction": 1.0}, "validation_fraction is 1.0; use one between"),
        ({"validation_fraction": 0.001}, "validation_fraction is 0.001, too little or too much"),
    ],
)
def test_bad_settings_are_one_clear_error_and_write_nothing(change, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        sample_pictures.write(tmp_path / "out", **change)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("module", ["sample_pictures", "sample_data"])
def test_help_lists_the_flags(module):
    done = run(module, "--help")
    assert "--output_dir: local folder to write to" in done.stdout


def test_import_is_cheap():
    code = (
        "import sys, tf_lamb.model_garden.sample_pictures\n"
        "assert not {'tensorflow', 'official', 'sklearn', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_split_is_of_every_class():
    labels = [0] * 10 + [1] * 20
    parts = sample_pictures.train_validation_split(list(range(30)), labels, 0.2, seed=1)
    assert sorted(parts["train"][0] + parts["validation"][0]) == list(range(30))
    assert collections.Counter(parts["validation"][1]) == {0: 2, 1: 4}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lamb", "lars"])
def test_the_yaml_trains_on_digits(name, digits, tmp_path):
    folder, _ = digits
    overrides = {
        "task.train_data.input_path": folder / "train.tfrecord",
        "task.validation_data.input_path": folder / "validation.tfrecord",
        "trainer.train_steps": 10,
        "trainer.steps_per_loop": 5,
        "trainer.summary_interval": 5,
        "trainer.validation_interval": 10,
        "trainer.optimizer_config.warmup.tf_lamb.steps": 2,
        "trainer.optimizer_config.learning_rate.tf_lamb_polynomial.steps": 8,
    }
    done = run(
        "train",
        f"--experiment={name}/resnet_imagenet",
        f"--config_file=model_garden_configs/resnet_small_{name}_cpu.yaml",
        "--mode=train_and_eval",
        f"--model_dir={tmp_path}",
        "--seed=1",
        "--params_override=" + ",".join(f"{key}={value}" for key, value in overrides.items()),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = dict(line.split("  ", 1) for line in done.stdout.splitlines() if "  " in line)
    assert rows["steps"].strip() == "10 of 10"
    before, after = (float(part.split()[0]) for part in rows["training loss"].split("->"))
    assert after < before
    assert "always answering '3', the commonest class, gives 10.3%" in rows["top-1 accuracy"]
