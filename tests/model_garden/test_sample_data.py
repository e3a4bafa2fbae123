"""sample_data: what it writes, that it writes it once, and what it refuses."""

import collections
import hashlib
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("official.nlp.data")
tf = pytest.importorskip("tensorflow")

from pydoc_data import topics  # noqa: E402

from tf_lamb.model_garden import sample_data  # noqa: E402

SMALL = {"vocab_size": 300, "seq_length": 32, "max_predictions_per_seq": 5, "dupe_factor": 2}
FEATURES = {
    "input_word_ids": tf.io.FixedLenFeature([32], tf.int64),
    "input_type_ids": tf.io.FixedLenFeature([32], tf.int64),
    "input_mask": tf.io.FixedLenFeature([32], tf.int64),
    "masked_lm_positions": tf.io.FixedLenFeature([5], tf.int64),
    "masked_lm_ids": tf.io.FixedLenFeature([5], tf.int64),
    "masked_lm_weights": tf.io.FixedLenFeature([5], tf.float32),
    "next_sentence_labels": tf.io.FixedLenFeature([1], tf.int64),
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


def parse(path):
    for record in tf.data.TFRecordDataset(str(path)):
        # The parser passes over features it was not asked for, so look at the names as well.
        assert set(tf.train.Example.FromString(record.numpy()).features.feature) == set(FEATURES)
        yield {k: v.numpy() for k, v in tf.io.parse_single_example(record, FEATURES).items()}


def run(*args, **env):
    return subprocess.run(
        [sys.executable, "-m", "tf_lamb.model_garden.sample_data", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )


def hashes(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def test_folder_holds_the_files_and_nothing_else(written):
    assert sorted(p.name for p in written[0].iterdir()) == sorted(sample_data.FILES)


def test_records_have_the_features_that_model_garden_reads(written):
    folder, facts = written
    vocab = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    for name in ("train", "validation"):
        for example in parse(folder / f"{name}.tfrecord"):
            ids, length = example["input_word_ids"], example["input_mask"].sum()
            assert vocab[ids[0]] == "[CLS]" and vocab[ids[length - 1]] == "[SEP]"
            assert ids.max() < facts["vocab_size"] and not ids[length:].any()
            assert 1 <= example["masked_lm_weights"].sum() <= 5
            assert example["masked_lm_positions"].max() < length


def test_vocabulary_has_the_tokens_once_and_special_tokens_first(written):
    folder, facts = written
    vocab = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert len(vocab) == len(set(vocab)) == facts["vocab_size"] == 300
    assert tuple(vocab[:5]) == sample_data.SPECIAL_TOKENS


def test_facts_are_those_of_the_files(written, text_file):
    folder, facts = written
    assert json.loads((folder / "data.json").read_text()) == facts
    assert (facts["seq_length"], facts["max_predictions_per_seq"]) == (32, 5)
    assert facts["sources"] == [str(text_file)]
    assert (facts["train_documents"], facts["validation_documents"]) == (10, 2)
    assert facts["train_examples"] == sum(1 for _ in parse(folder / "train.tfrecord"))
    examples = list(parse(folder / "validation.tfrecord"))
    assert facts["validation_examples"] == len(examples) > 0
    masked = collections.Counter(
        int(token)
        for example in examples
        for token, weight in zip(
            example["masked_lm_ids"], example["masked_lm_weights"], strict=True
        )
        if weight
    )
    vocab = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    token, count = masked.most_common(1)[0]
    assert masked[vocab.index(facts["validation_commonest_masked_token"])] == count, vocab[token]
    assert facts["validation_masked_tokens"] == sum(masked.values())
    assert facts["validation_commonest_masked_share"] == pytest.approx(count / sum(masked.values()))


def test_second_call_reuses(written, text_file, capsys):
    folder, facts = written
    before = {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    assert sample_data.write(str(folder), input=str(text_file), **SMALL) == facts
    assert capsys.readouterr().out == f"reusing {folder}: same text, same settings\n"
    assert {p: p.stat().st_mtime_ns for p in folder.iterdir()} == before


@pytest.mark.parametrize(
    "change, says",
    [
        ({"seed": 1}, "seed was 12345 and is now 1"),
        (
            {"seq_length": 64, "dupe_factor": 3},
            "seq_length was 32 and is now 64, dupe_factor was 2",
        ),
        ({"input": None}, "text_sha256 was"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(written, text_file, change, says):
    folder, _ = written
    before = hashes(folder)
    with pytest.raises(FileExistsError, match=says) as error:
        sample_data.write(folder, **{"input": [text_file], **SMALL, **change})
    assert "use another output_dir or delete the folder" in str(error.value)
    assert hashes(folder) == before


def test_files_of_others_are_not_overwritten(text_file, tmp_path):
    (tmp_path / "vocab.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="has vocab.txt but no complete data set"):
        sample_data.write(tmp_path, input=[text_file], **SMALL)
    assert [p.name for p in tmp_path.iterdir()] == ["vocab.txt"]
    assert (tmp_path / "vocab.txt").read_text() == "mine"


def test_failure_while_writing_leaves_nothing(text_file, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(tf.io, "TFRecordWriter", fail)
    with pytest.raises(KeyboardInterrupt):
        sample_data.write(tmp_path, input=[text_file], **SMALL)
    assert not list(tmp_path.iterdir())


def test_another_process_writes_the_same_bytes(written, text_file, tmp_path):
    folder, _ = written
    done = run(
        f"--output_dir={tmp_path}",
        f"--input={text_file.parent}/*.txt",
        *(f"--{name}={value}" for name, value in SMALL.items()),
        PYTHONHASHSEED="123",
    )
    assert done.returncode == 0, done.stderr
    assert "training and" in done.stdout and "*** Example ***" not in done.stderr
    assert hashes(tmp_path) == hashes(folder)


def test_default_text_is_pythons_manual():
    (documents,) = sample_data.read_sources(None).values()
    assert len(documents) == len(topics.topics)
    assert all(sentence.strip() and "\n" not in sentence for d in documents for sentence in d)


@pytest.mark.parametrize(
    "count, fraction, held",
    [(2, 0.1, [0]), (20, 0.1, [0, 10]), (3, 0.99, [0, 1]), (10, 0.5, [0, 2, 4, 6, 8])],
)
def test_split_spreads_validation_evenly_and_leaves_something_to_train(count, fraction, held):
    parts = sample_data.train_validation_split({"a": [[str(i)] for i in range(count)]}, fraction)
    assert [int(d[0]) for d in parts["validation"]] == held
    assert sorted(parts["train"] + parts["validation"]) == sorted([str(i)] for i in range(count))


@pytest.mark.parametrize(
    "change, error, says",
    [
        ({"input": "absent.txt"}, FileNotFoundError, "'absent.txt' matches no file"),
        ({"input": "*.nothing"}, FileNotFoundError, r"'\*.nothing' matches no file"),
        ({"input": "."}, FileNotFoundError, "'.' is not a file"),
        ({"input": []}, ValueError, "0 document"),
        ({"input": "empty.txt"}, ValueError, "'empty.txt' is empty"),
        ({"input": "latin1.txt"}, ValueError, "'latin1.txt' is not UTF-8"),
        ({"input": "one.txt"}, ValueError, "1 document.*put blank lines between"),
        ({"input": "invisible.txt"}, ValueError, "validation part.*no token"),
        ({"vocab_size": 5}, ValueError, "vocab_size must be a whole number >= 100, not 5"),
        ({"seq_length": 7}, ValueError, "seq_length must be a whole number >= 8, not 7"),
        ({"max_predictions_per_seq": 0}, ValueError, "max_predictions_per_seq must be a whole"),
        ({"dupe_factor": 0}, ValueError, "dupe_factor must be a whole number >= 1, not 0"),
        ({"validation_fraction": 0.0}, ValueError, "validation_fraction is 0.0; use one between"),
        ({"validation_fraction": 1.0}, ValueError, "validation_fraction is 1.0; use one between"),
        ({"validation_fraction": float("nan")}, ValueError, "validation_fraction is nan"),
    ],
)
def test_bad_input_is_one_clear_error_and_writes_nothing(
    change, error, says, text_file, tmp_path, monkeypatch
):
    (tmp_path / "out").mkdir()
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "latin1.txt").write_bytes("Ein Satz über Umlaute.\n".encode("latin-1"))
    (tmp_path / "one.txt").write_text("First sentence.\nSecond sentence.\n")
    (tmp_path / "invisible.txt").write_text("\u200b\n\nA sentence with tokens.\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=says):
        sample_data.write("out", **{"input": [text_file], **SMALL, **change})
    assert not list((tmp_path / "out").iterdir())


def test_output_dir_that_is_a_file_is_refused(text_file, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match="is a file; name a folder"):
        sample_data.write(tmp_path / "file", input=[text_file], **SMALL)


def test_command_line_shows_the_message_without_a_traceback(tmp_path):
    done = run(f"--output_dir={tmp_path / 'out'}", "--input=absent.txt")
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    assert "sample_data: input 'absent.txt' matches no file" in done.stderr
    assert "Traceback" not in done.stderr


def test_import_is_cheap_and_defines_no_flags():
    code = (
        "import sys; from absl import app, flags, logging; before = set(flags.FLAGS)\n"
        "import importlib.util as u\n"
        f"spec = u.spec_from_file_location('sample_data', {sample_data.__file__!r})\n"
        "spec.loader.exec_module(u.module_from_spec(spec))\n"
        "assert set(flags.FLAGS) == before\n"
        "assert not {'tensorflow', 'official', 'tokenizers', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
