"""Writes a small BERT pretraining set from local text: vocabulary, TFRecords, statistics.

    python -m tf_lamb.model_garden.sample_data --output_dir=DIR [--input=a.txt,b.txt] [...]

Without `--input` the text is the English manual that comes with every CPython
(`pydoc_data.topics`). Nothing is downloaded. Model Garden's own `create_pretraining_data` makes the
examples.
"""

import collections
import glob
import hashlib
import itertools
import json
import math
import pathlib
import random
import re
from fractions import Fraction

from tf_lamb.core import checks
from tf_lamb.model_garden.common.errors import require
from tf_lamb.model_garden.folders import samples

FILES = ("vocab.txt", "train.tfrecord", "validation.tfrecord", "data.json")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write(
    output_dir, *, input=None, vocab_file=None, vocab_size=2000, do_lower_case=True,
    seq_length=128, max_predictions_per_seq=20, dupe_factor=5, seed=12345,
    validation_fraction=0.1,
):  # fmt: skip
    """Writes `vocab.txt`, `train.tfrecord`, `validation.tfrecord` and, last, `data.json`.

    The same text and settings give the same bytes. If the folder already has the files of the same
    text and settings, nothing is written. The command shows the descriptions below as the help of
    its flags.

    Args:
        output_dir: local folder to write to, made if missing.
        input: text files or globs, comma-separated (in Python also a list), with one sentence per
            line and a blank line between documents. Default: Python's own manual.
        vocab_file: a BERT vocabulary with one token per line, for example that of the checkpoint
            that training begins with. Default: one is learned from the training documents.
        vocab_size: the largest number of tokens in a learned vocabulary; a short text gives fewer.
        do_lower_case: whether text becomes lower case without accents, as for uncased models.
        seq_length: tokens per example, padding included.
        max_predictions_per_seq: the largest number of masked tokens per example.
        dupe_factor: passes over the text, each with other masks.
        seed: seed of the masks, the sentence pairs and the order.
        validation_fraction: share of the documents kept for validation, evenly spread.

    Returns:
        The content of `data.json`: the settings, and facts such as the number of examples.

    Raises:
        TypeError: if a number is not an integer.
        ValueError: if an argument or the input cannot be used, before anything is written.
        OSError: if a file is missing, or the folder has other data.
        ModuleNotFoundError: if Model Garden is not installed.
    """
    require()
    checks.integer("seq_length", seq_length, 8)
    checks.integer("max_predictions_per_seq", max_predictions_per_seq, 1)
    checks.integer("dupe_factor", dupe_factor, 1)
    checks.integer("vocab_size", vocab_size, 100)
    if not 0 < validation_fraction < 1:
        raise ValueError(f"validation_fraction is {validation_fraction}; use one between 0 and 1.")
    vocab = read_vocab(vocab_file) if vocab_file else None
    sources = read_sources(input)
    settings = {
        "text_sha256": _sha256(list(sources.values())),
        "vocab_sha256": vocab and _sha256(vocab), "vocab_size_asked": None if vocab else vocab_size,
        "do_lower_case": do_lower_case, "seq_length": seq_length,
        "max_predictions_per_seq": max_predictions_per_seq, "dupe_factor": dupe_factor,
        "seed": seed, "validation_fraction": validation_fraction,
    }  # fmt: skip
    if facts := samples.find_same_data(output_dir, FILES, settings):
        return facts

    parts = train_validation_split(sources, validation_fraction)
    vocab = vocab or learn_vocab(parts["train"], vocab_size, do_lower_case)
    facts = {**settings, "sources": list(sources), "vocab_size": len(vocab)}
    with samples.fill_folder(output_dir, FILES, facts) as folder:
        (folder / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
        for part, documents in parts.items():
            facts[f"{part}_examples"], mask_counts = _write_part(folder, part, documents, settings)
        # `mask_counts` now belongs to the validation part, the last one. The share of the commonest
        # masked token is the accuracy of a model that always predicts this token.
        token, count = mask_counts.most_common(1)[0]
        facts["validation_commonest_masked_token"] = vocab[token]
        facts["validation_commonest_masked_share"] = count / sum(mask_counts.values())
    return facts


def _sha256(value):
    """Returns the SHA-256 hash of a value that JSON can hold, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _write_part(partial, part, documents, settings):
    """Writes the TFRecord file of one part of the text, "train" or "validation".

    Returns the number of examples, and a counter: token id -> how often the token is masked.
    """
    import tensorflow as tf
    import tqdm

    # This module is imported only here, because its import defines absl flags.
    from official.nlp.data import create_pretraining_data as garden

    (partial / "text").write_text("\n\n".join(map("\n".join, documents)), encoding="utf-8")
    tokenizer = garden.tokenization.FullTokenizer(f"{partial}/vocab.txt", settings["do_lower_case"])
    seq_length, most = settings["seq_length"], settings["max_predictions_per_seq"]
    instances = garden.create_training_instances(
        [f"{partial}/text"], tokenizer, garden.get_processor_text_fn(False, False), seq_length,
        settings["dupe_factor"], rng=random.Random(settings["seed"]), max_predictions_per_seq=most,
        short_seq_prob=0.1, masked_lm_prob=0.15,  # as in BERT's training
    )  # fmt: skip
    if not instances:
        raise ValueError(
            f"The {part} part of the text ({len(documents)} documents) has no token "
            "and gives no examples; use more text."
        )
    garden.write_instance_to_example_files(
        tqdm.tqdm(instances, f"{part} examples", disable=None), tokenizer, seq_length, most,
        [f"{partial}/draft"], gzip_compress=False, use_v2_feature_names=True,
    )  # fmt: skip
    mask_counts: collections.Counter[int] = collections.Counter()
    # Each example is serialized again, deterministically, because Model Garden serializes its
    # features in an order that differs between processes.
    with tf.io.TFRecordWriter(f"{partial}/{part}.tfrecord") as writer:
        for record in tf.data.TFRecordDataset(f"{partial}/draft").as_numpy_iterator():
            example = tf.train.Example.FromString(record)
            writer.write(example.SerializeToString(deterministic=True))
            feature = example.features.feature
            weights = feature["masked_lm_weights"].float_list.value
            mask_counts.update(
                itertools.compress(feature["masked_lm_ids"].int64_list.value, weights)
            )
    return len(instances), mask_counts


def _read_text(path, what):
    """Returns the UTF-8 text of a file; raises FileNotFoundError, or ValueError for other text.

    Each of these errors begins with `what`, such as "vocab_file".
    """
    try:
        return pathlib.Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"{what} {str(path)!r} is not a file; check the path.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} {str(path)!r} is not UTF-8 text ({error}).") from None


def read_vocab(path):
    """Returns the tokens of a BERT vocabulary file, in the order of their ids.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not UTF-8 text, or lacks a special token.
    """
    # Like Model Garden's `load_vocab`: one token per line, whose id is the number of its line.
    vocab = [line.strip() for line in _read_text(path, "vocab_file").rstrip().split("\n")]
    missing = ", ".join(token for token in SPECIAL_TOKENS if token not in vocab)
    if missing:
        raise ValueError(
            f"vocab_file {str(path)!r} has no {missing}; give a BERT vocabulary, one "
            "token a line, or leave vocab_file out to have one learned."
        )
    return vocab


def read_sources(patterns):
    """Reads the documents of the text.

    Args:
        patterns: Text files or globs, as one string with commas or as a list; None for Python's own
            manual.

    Returns:
        A dict, source -> documents. A source is the path of a file, or `pydoc_data.topics`. A
        document is a list of sentences.

    Raises:
        FileNotFoundError: if a pattern matches no file.
        ValueError: if a file is not UTF-8 text.
    """
    if patterns is None:
        from pydoc_data import topics

        texts = [text for _, text in sorted(topics.topics.items())]
        return {"pydoc_data.topics": [_sentences(text) for text in texts]}
    sources = {}
    for pattern in patterns.split(",") if isinstance(patterns, str) else map(str, patterns):
        paths = [pattern] if pathlib.Path(pattern).is_file() else sorted(glob.glob(pattern))
        if not paths:
            raise FileNotFoundError(
                f"input {pattern!r} matches no file; check the path, or leave "
                "input out for Python's own manual."
            )
        for path in paths:
            text = "\n".join(map(str.strip, _read_text(path, "input").splitlines())).strip()
            sources[path] = [document.split("\n") for document in re.split(r"\n\n+", text)]
    return sources


def _sentences(text):
    """Splits a page of Python's manual into sentences."""
    text = re.sub(r"(?m)^[*=~^-]+$", "", text).strip()  # removes the underlines of titles
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text)]
    return [
        sentence
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=[.!?]) (?=[A-Z\"(*])", paragraph)
    ]


def train_validation_split(sources, fraction):
    """Splits the documents into a part for training and an evenly spread part for validation.

    With the documents numbered from 0, those with the numbers 0, 1/fraction, 2/fraction, ...,
    rounded down, are for validation. If none is left for training, the last one is for training.

    Args:
        sources: A dict, source -> documents, as `read_sources` returns it.
        fraction: The share of the documents that is for validation.

    Returns:
        A dict with the documents of "train" and of "validation".

    Raises:
        ValueError: if there are fewer than two documents.
    """
    documents = [document for source in sources.values() for document in source]
    if len(documents) < 2:
        raise ValueError(
            f"input {', '.join(sources)!r} is {len(documents)} document, too few for "
            "training and validation; put blank lines between documents."
        )
    share = Fraction(str(fraction))
    is_validation = [
        math.ceil((i + 1) * share) > math.ceil(i * share) for i in range(len(documents))
    ]
    is_validation[-1] = is_validation[-1] and not all(is_validation)
    return {
        "train": [document for i, document in enumerate(documents) if not is_validation[i]],
        "validation": [document for i, document in enumerate(documents) if is_validation[i]],
    }


def learn_vocab(documents, vocab_size, do_lower_case):
    """Learns a WordPiece vocabulary, which is the same in every process.

    The package `tokenizers` numbers the characters in an order that differs between processes, and
    breaks ties by these numbers. But it numbers special tokens first, in the order in which they
    are passed. Therefore the characters inside words are passed as special tokens.

    Args:
        documents: The documents, as lists of sentences.
        vocab_size: The largest number of tokens.
        do_lower_case: Whether text becomes lower case without accents.

    Returns:
        The tokens in the order of their ids.
    """
    import tokenizers

    learner = tokenizers.BertWordPieceTokenizer(lowercase=do_lower_case)
    lines = [line for document in documents for line in document]
    pre_tokenize = learner.pre_tokenizer.pre_tokenize_str
    words = [
        token
        for sentence in map(learner.normalizer.normalize_str, lines)
        for token, _ in pre_tokenize(sentence)
    ]
    counts, inner = (
        collections.Counter("".join(words)),
        {char for word in words for char in word[1:]},
    )
    # 1,000 characters are also the default limit of `tokenizers`.
    alphabet = sorted(counts, key=lambda char: (-counts[char], char))[:1000]
    numbered_tokens = [*SPECIAL_TOKENS, *(f"##{char}" for char in alphabet if char in inner)]
    learner.train_from_iterator(
        lines, vocab_size=vocab_size, special_tokens=numbered_tokens, limit_alphabet=len(alphabet),
        initial_alphabet=alphabet, show_progress=False,
    )  # fmt: skip
    ids = learner.get_vocab()
    return sorted(ids, key=ids.get)


if __name__ == "__main__":
    samples.run(
        "sample_data",
        write,
        "{train_examples} training and {validation_examples} validation examples, vocabulary of "
        "{vocab_size}",
        "lamb/bert_pretraining",
        "bert_small_cpu.yaml",
        {
            "vocab_size": ("task.model.encoder.bert.vocab_size",),
            **{
                key: (f"task.train_data.{key}", f"task.validation_data.{key}")
                for key in ("seq_length", "max_predictions_per_seq")
            },
        },
    )
