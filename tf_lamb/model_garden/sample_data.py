"""Writes a small BERT pretraining set from text that is at hand: vocabulary, TFRecords, facts.

    python -m tf_lamb.model_garden.sample_data --output_dir=DIR [--input=a.txt,b.txt] [...]

Without `--input` the text is the English manual that every CPython ships (`pydoc_data.topics`), so
nothing is downloaded. The examples are made by Model Garden's own `create_pretraining_data`.
"""

import collections
import itertools
import pathlib
import random

from tf_lamb import model_garden
from tf_lamb.model_garden.folders import data_folder
from tf_lamb.model_garden.samples import text as sample_text

FILES = ("vocab.txt", "train.tfrecord", "validation.tfrecord", "data.json")


def write(
    output_dir,
    *,
    input=None,
    vocab_file=None,
    vocab_size=2000,
    seq_length=128,
    max_predictions_per_seq=20,
    dupe_factor=5,
    do_lower_case=True,
    seed=12345,
    validation_fraction=0.1,
):
    """Writes `vocab.txt`, `train.tfrecord`, `validation.tfrecord` and, last, `data.json`.

    The same text and settings give the same bytes. A second call finds them and writes nothing.

    Args:
      output_dir: local folder to write to, made if missing.
      input: text files or globs, comma-separated (in Python also a list), with one sentence a line
        and a blank line between documents. Default: Python's own manual.
      vocab_file: WordPiece vocabulary to use. Default: one learned from the training documents.
      vocab_size: tokens to learn; a short text may give fewer. Ignored with vocab_file.
      seq_length: tokens an example, padding included.
      max_predictions_per_seq: masked tokens an example, at most.
      dupe_factor: passes over the text, each with other masks.
      do_lower_case: lower the text and strip its accents.
      seed: of the masks, the sentence pairs and the order.
      validation_fraction: share of the documents that is kept for validation, evenly spread.

    Returns:
      The facts in `data.json`, as a dict.

    Raises:
      ValueError, OSError: for input that cannot be used, before anything is written.
      ModuleNotFoundError: where Model Garden is not installed.
    """
    model_garden.require()
    for name, value, least in (
        ("seq_length", seq_length, 8),
        ("dupe_factor", dupe_factor, 1),
        ("max_predictions_per_seq", max_predictions_per_seq, 1),
        ("vocab_size", vocab_size, vocab_size if vocab_file else 100),
    ):
        if value < least:
            raise ValueError(f"{name} is {value}; use {least} or more.")
    if not 0 < validation_fraction < 1:
        raise ValueError(f"validation_fraction is {validation_fraction}; use one between 0 and 1.")
    vocab = sample_text.read_vocab(vocab_file) if vocab_file else None
    sources = sample_text.read_sources(input)
    settings = {
        "text_sha256": data_folder.sha256(list(sources.values())),
        "vocab_sha256": data_folder.sha256(vocab) if vocab else None,
        "vocab_size_asked": None if vocab else vocab_size,
        "seq_length": seq_length,
        "max_predictions_per_seq": max_predictions_per_seq,
        "dupe_factor": dupe_factor,
        "do_lower_case": do_lower_case,
        "seed": seed,
        "validation_fraction": validation_fraction,
    }
    output_dir = pathlib.Path(output_dir)
    facts = data_folder.find(output_dir, FILES, settings)
    if facts:
        print(f"reusing {output_dir}: same text, same settings")
        return facts

    parts = sample_text.split(sources, validation_fraction)
    vocab = vocab or sample_text.learn_vocab(parts["train"], vocab_size, do_lower_case)
    facts = {
        **settings,
        "fingerprint": data_folder.sha256(settings),
        "sources": list(sources),
        "vocab_file": vocab_file and str(vocab_file),
        "vocab_size": len(vocab),
    }
    with data_folder.filled(output_dir, FILES, settings, facts) as partial:
        (partial / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
        for part, documents in parts.items():
            facts[f"{part}_documents"] = len(documents)
            facts[f"{part}_examples"], masked = _write_part(partial, part, documents, settings)
        # `masked` is now validation's. Always to answer its commonest token is right that often.
        token, count = masked.most_common(1)[0]
        facts["validation_masked_tokens"] = sum(masked.values())
        facts["validation_commonest_masked_token"] = vocab[token]
        facts["validation_commonest_masked_share"] = count / sum(masked.values())
    return facts


def _write_part(folder, part, documents, settings):
    """Writes the TFRecord of one part; returns (examples, {token id: how often it is masked})."""
    import tensorflow as tf
    import tqdm
    from official.nlp.data import create_pretraining_data as garden  # defines absl flags

    (folder / "text").write_text("\n\n".join(map("\n".join, documents)), encoding="utf-8")
    tokenizer = garden.tokenization.FullTokenizer(f"{folder}/vocab.txt", settings["do_lower_case"])
    seq_length, most = settings["seq_length"], settings["max_predictions_per_seq"]
    instances = garden.create_training_instances(
        [f"{folder}/text"],
        tokenizer,
        garden.get_processor_text_fn(False, False),
        seq_length,
        settings["dupe_factor"],
        rng=random.Random(settings["seed"]),
        max_predictions_per_seq=most,
        short_seq_prob=0.1,  # this and the next: BERT's
        masked_lm_prob=0.15,
    )
    if not instances:
        raise ValueError(
            f"The {part} part of the text ({len(documents)} documents) has no token "
            "and gives no examples; use more text."
        )
    garden.write_instance_to_example_files(
        tqdm.tqdm(instances, f"{part} examples", disable=None),
        tokenizer,
        seq_length,
        most,
        [f"{folder}/draft"],
        gzip_compress=False,
        use_v2_feature_names=True,
    )
    masked = collections.Counter()
    # Model Garden serializes the features of an example in an order that differs between processes.
    with tf.io.TFRecordWriter(f"{folder}/{part}.tfrecord") as writer:
        for record in tf.data.TFRecordDataset(f"{folder}/draft").as_numpy_iterator():
            example = tf.train.Example.FromString(record)
            writer.write(example.SerializeToString(deterministic=True))
            feature = example.features.feature
            weights = feature["masked_lm_weights"].float_list.value
            masked.update(itertools.compress(feature["masked_lm_ids"].int64_list.value, weights))
    return len(instances), masked


def trained_by(output_dir, facts):
    """The line that trains the small BERT on it."""
    settings = {}
    for key, usual in (("seq_length", 128), ("max_predictions_per_seq", 20)):
        if facts[key] != usual:
            settings |= {f"{part}_data.{key}": facts[key] for part in ("train", "validation")}
    for key, least, found in (
        ("max_position_embeddings", 128, facts["seq_length"]),
        ("vocab_size", 2000, facts["vocab_size"]),
    ):
        if found > least:
            settings[f"model.encoder.bert.{key}"] = found
    return data_folder.command(
        "lamb/bert_pretraining", "bert_small_cpu.yaml", output_dir, **settings
    )


if __name__ == "__main__":
    data_folder.run(
        "sample_data",
        write,
        "{train_examples} training and {validation_examples} validation examples, vocabulary"
        " of {vocab_size}",
        trained_by,
    )
