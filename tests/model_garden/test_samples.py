"""sample_data and sample_pictures: what they write, that they write it once, what they refuse."""

import collections
import hashlib
import itertools
import json
import os
import runpy
import shlex
import subprocess
import sys

import numpy as np
import pytest
import yaml

pytest.importorskip("official.nlp.data")
datasets = pytest.importorskip("sklearn.datasets")
tf = pytest.importorskip("tensorflow")

from pydoc_data import topics  # noqa: E402

from support.garden import ROOT  # noqa: E402

from tf_lamb.model_garden import sample_data, sample_pictures  # noqa: E402
from tf_lamb.model_garden.common import yamls  # noqa: E402
from tf_lamb.model_garden.folders import samples  # noqa: E402

SMALL = {"seq_length": 32, "max_predictions_per_seq": 5}
OF_TEXT = {
    "input_word_ids": tf.io.FixedLenFeature([32], tf.int64),
    "input_type_ids": tf.io.FixedLenFeature([32], tf.int64),
    "input_mask": tf.io.FixedLenFeature([32], tf.int64),
    "masked_lm_positions": tf.io.FixedLenFeature([5], tf.int64),
    "masked_lm_ids": tf.io.FixedLenFeature([5], tf.int64),
    "masked_lm_weights": tf.io.FixedLenFeature([5], tf.float32),
    "next_sentence_labels": tf.io.FixedLenFeature([1], tf.int64),
}
OF_PICTURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    """Twelve short topics, one a document."""
    path = tmp_path_factory.mktemp("text") / "topics.txt"
    documents = [topics.topics[key].strip().split("\n") for key in sorted(topics.topics)]
    documents = [[line for line in d if line.strip()] for d in documents if len(d) < 60][:12]
    path.write_text("\n\n".join("\n".join(d) for d in documents), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def written(text_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "new" / "folder"
    return folder, sample_data.write(folder, input=[text_file], **SMALL)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    return folder, sample_pictures.write(folder)


def parse(path, features):
    for record in tf.data.TFRecordDataset(str(path)):
        # The parser passes over features it was not asked for, so look at the names as well.
        assert set(tf.train.Example.FromString(record.numpy()).features.feature) == set(features)
        yield {k: v.numpy() for k, v in tf.io.parse_single_example(record, features).items()}


def run(module, *args, **env):
    return subprocess.run(
        [sys.executable, "-m", f"tf_lamb.model_garden.{module}", *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **env},
    )


def hashes(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def test_the_text_is_what_model_garden_reads_and_the_facts_are_those_of_the_files(written):
    folder, facts = written
    assert sorted(p.name for p in folder.iterdir()) == sorted(sample_data.FILES)
    assert json.loads((folder / "data.json").read_text()) == facts
    vocab = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert len(vocab) == len(set(vocab)) == facts["vocab_size"] <= 2000
    assert tuple(vocab[:5]) == sample_data.SPECIAL_TOKENS
    masked: collections.Counter = collections.Counter()
    for part in ("train", "validation"):
        examples = [*parse(folder / f"{part}.tfrecord", OF_TEXT)]
        assert facts[f"{part}_examples"] == len(examples) > 0
        masked.clear()
        for example in examples:
            ids, length = example["input_word_ids"], example["input_mask"].sum()
            assert vocab[ids[0]] == "[CLS]" and vocab[ids[length - 1]] == "[SEP]"
            assert ids.max() < len(vocab) and not ids[length:].any()
            assert 1 <= example["masked_lm_weights"].sum() <= 5
            assert example["masked_lm_positions"].max() < length
            weights = example["masked_lm_weights"].astype(bool)
            masked.update(itertools.compress(example["masked_lm_ids"].tolist(), weights))
    (_, count), *_ = masked.most_common()
    assert masked[vocab.index(facts["validation_commonest_masked_token"])] == count
    assert facts["validation_commonest_masked_share"] == pytest.approx(count / masked.total())


def test_a_given_vocabulary_is_taken_as_it_is(text_file, tmp_path):
    """Cased, in the order of its file, as a checkpoint has it that training begins with."""
    letters = [chr(code) for code in range(33, 127)]
    tokens = [*sample_data.SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    (tmp_path / "bert.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    given = {"vocab_file": tmp_path / "bert.txt", "do_lower_case": False, "dupe_factor": 1}
    facts = sample_data.write(tmp_path / "out", input=[text_file], **given, **SMALL)
    vocab = (tmp_path / "out" / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert vocab == tokens and facts["vocab_size"] == len(tokens)
    examples = parse(tmp_path / "out" / "train.tfrecord", OF_TEXT)
    ids = {int(i) for example in examples for i in example["input_word_ids"]}
    upper = {vocab.index(letter) for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
    assert ids & upper  # of words that begin a sentence


@pytest.mark.parametrize(
    ("count", "fraction", "held"),
    [
        (101, 0.1, list(range(0, 101, 10))),
        (2, 0.1, [0]),
        (3, 0.99, [0, 1]),
        (10, 0.5, [0, 2, 4, 6, 8]),
    ],
)
def test_the_split_spreads_validation_and_leaves_something_to_train(count, fraction, held):
    parts = sample_data.train_validation_split({"a": [[str(i)] for i in range(count)]}, fraction)
    assert [int(d[0]) for d in parts["validation"]] == held
    assert sorted(parts["train"] + parts["validation"]) == sorted([str(i)] for i in range(count))


def test_the_pictures_are_all_digits_each_in_one_part(digits):
    folder, facts = digits
    assert json.loads((folder / "data.json").read_text()) == facts
    pictures, labels, counts = [], [], []
    for part in ("train", "validation"):
        examples = [*parse(folder / f"{part}.tfrecord", OF_PICTURES)]
        assert facts[f"{part}_examples"] == len(examples)
        # TensorFlow's own choice is a fast transform, which is as far off as 57 of 255 on noise.
        decode = lambda jpeg: tf.io.decode_jpeg(jpeg, dct_method="INTEGER_ACCURATE")  # noqa: E731
        pictures += [decode(example["image/encoded"]).numpy() for example in examples]
        labels += (of_part := [int(example["image/class/label"]) for example in examples])
        counts.append(np.bincount(of_part))
    source, pictures = datasets.load_digits(), np.stack(pictures)
    assert pictures.shape == (1797, 32, 32, 3)
    # For each, the one that it was enlarged from.
    originals = tf.image.resize(source.images[..., None] * 255 / 16, (32, 32)).numpy()
    a, b = (x.reshape(1797, -1).astype("float32") for x in (pictures[..., :1], originals))
    which = ((b**2).sum(1) - 2 * a @ b.T).argmin(1)
    assert np.abs(a - b[which]).max() < 6 and sorted(which) == list(range(1797))
    np.testing.assert_array_equal(labels, source.target[which])
    np.testing.assert_allclose(counts[1] / sum(counts), 0.2, atol=0.005)
    assert facts["validation_commonest_class"] == str(counts[1].argmax()) == "3"


def test_a_second_call_reuses(written, text_file, capsys):
    folder, facts = written
    before = {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    assert sample_data.write(str(folder), input=str(text_file), **SMALL) == facts
    assert capsys.readouterr().out == f"reusing {folder}: same data, same settings\n"
    assert {p: p.stat().st_mtime_ns for p in folder.iterdir()} == before


@pytest.mark.parametrize("change", [{"seq_length": 64}, {"seed": 1}, {"input": None}])
def test_other_data_in_the_folder_are_refused(written, text_file, change):
    folder, _ = written
    before = hashes(folder)
    with pytest.raises(FileExistsError, match="other data or settings; use another output_dir"):
        sample_data.write(folder, **{"input": [text_file], **SMALL, **change})
    assert hashes(folder) == before


def test_a_file_in_the_place_of_the_folder_is_refused(written, text_file):
    folder, _ = written
    before = hashes(folder)
    with pytest.raises(NotADirectoryError, match="is a file; name a folder"):
        sample_data.write(folder / "vocab.txt", input=[text_file], **SMALL)
    assert hashes(folder) == before


@pytest.mark.parametrize(
    "change, error, says",
    [
        ({"input": "absent.txt"}, FileNotFoundError, "'absent.txt' matches no file"),
        ({"input": "latin1.txt"}, ValueError, "'latin1.txt' is not UTF-8"),
        ({"input": "one.txt"}, ValueError, "1 document.*put blank lines between"),
        ({"input": "invisible.txt"}, ValueError, "validation part.*no token"),
        ({"seq_length": 7}, ValueError, "seq_length must be a whole number >= 8, not 7"),
        ({"vocab_size": 5}, ValueError, "vocab_size must be a whole number >= 100, not 5"),
        ({"validation_fraction": 1.0}, ValueError, "validation_fraction is 1.0; use one between"),
        ({"vocab_file": "one.txt"}, ValueError, r"'one.txt' has no \[PAD\], .*; give a BERT"),
        ({"vocab_file": "absent.txt"}, FileNotFoundError, "vocab_file 'absent.txt' is not a file"),
    ],
)
def test_bad_input_is_one_clear_error_and_writes_nothing(
    change, error, says, text_file, tmp_path, monkeypatch
):
    (tmp_path / "out").mkdir()
    (tmp_path / "latin1.txt").write_bytes("Ein Satz über Umlaute.\n".encode("latin-1"))
    (tmp_path / "one.txt").write_text("First sentence.\nSecond sentence.\n")
    (tmp_path / "invisible.txt").write_text("\u200b\n\nA sentence with tokens.\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=says):
        sample_data.write("out", **{"input": [text_file], **SMALL, **change})
    assert not list((tmp_path / "out").iterdir())


def test_both_commands_print_the_command_that_trains_on_their_data(digits, written, monkeypatch):
    """With what differs from the config: these data have other lengths than it says."""
    shown = {}
    run_samples = lambda name, write, summary, *how: shown.setdefault(name, how)  # noqa: E731
    monkeypatch.setattr("tf_lamb.model_garden.folders.samples.run", run_samples)
    for name in ("sample_data", "sample_pictures"):
        monkeypatch.delitem(sys.modules, f"tf_lamb.model_garden.{name}")
        runpy.run_module(f"tf_lamb.model_garden.{name}", run_name="__main__")
    for name, (folder, facts) in (("sample_data", written), ("sample_pictures", digits)):
        command = samples.training_command(folder, facts, *shown[name])
        program, *words = shlex.split(command.removeprefix("python -m "))
        flags = dict(word.removeprefix("--").split("=", 1) for word in words)
        assert program == "tf_lamb.model_garden.train" and flags["mode"] == "train_and_eval"
        ((_, settings),) = yamls.read_files([flags["config_file"]])
        for setting in flags["params_override"].split(","):
            path, value = setting.split("=")
            settings = yamls.merged(settings, yamls.nested(path, yaml.safe_load(value)))
        for part in ("train", "validation"):
            data = settings["task"][f"{part}_data"]
            assert data["input_path"] == f"{folder}/{part}.tfrecord"
            assert data.get("seq_length") == facts.get("seq_length")
            assert data.get("max_predictions_per_seq") == facts.get("max_predictions_per_seq")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lamb", "lars"])
def test_the_yaml_trains_on_digits(name, digits, tmp_path):
    folder, _ = digits
    overrides = {
        "task.train_data.input_path": folder / "train.tfrecord",
        "task.validation_data.input_path": folder / "validation.tfrecord",
        "trainer.train_steps": 10, "trainer.steps_per_loop": 5, "trainer.summary_interval": 5,
        "trainer.validation_interval": 10, "trainer.optimizer_config.warmup.tf_lamb.steps": 2,
        "trainer.optimizer_config.learning_rate.tf_lamb_polynomial.steps": 8,
    }  # fmt: skip
    done = run(
        "train", f"--experiment={name}/resnet_imagenet",
        f"--config_file=model_garden_configs/resnet_small_{name}_cpu.yaml",
        "--mode=train_and_eval", f"--model_dir={tmp_path}", "--seed=1",
        "--params_override=" + ",".join(f"{key}={value}" for key, value in overrides.items()),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = dict(line.split("  ", 1) for line in done.stdout.splitlines() if "  " in line)
    assert rows["steps"].strip() == "10 of 10"
    before, after = (float(part.split()[0]) for part in rows["training loss"].split("->"))
    assert after < before
    assert "always answering '3', the commonest class, gives 10.3%" in rows["top-1 accuracy"]
