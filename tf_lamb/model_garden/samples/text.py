"""Text for pretraining: documents read from files or from Python itself, and their vocabulary."""

import collections
import glob
import math
import pathlib
import re

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def _read_text(path, what):
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"{what} {str(path)!r} is not a file; check the path.")
    try:
        return pathlib.Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} {str(path)!r} is not UTF-8 text ({error}); convert it.") from None


def read_vocab(path):
    """Returns the tokens of a BERT vocabulary file, in the order of their ids."""
    # One token a line, the line number is its id: as Model Garden's load_vocab reads it.
    vocab = [line.strip() for line in _read_text(path, "vocab_file").rstrip().split("\n")]
    missing = ", ".join(token for token in SPECIAL_TOKENS if token not in vocab)
    if missing:
        raise ValueError(
            f"vocab_file {str(path)!r} has no {missing}; give a BERT vocabulary, one "
            "token a line, or leave vocab_file out to have one learned."
        )
    return vocab


def read_sources(patterns):
    """Returns {source: its documents}, a document being a list of sentences."""
    if patterns is None:
        from pydoc_data import topics

        return {
            "pydoc_data.topics": [_sentences(text) for _, text in sorted(topics.topics.items())]
        }
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
            if not text:
                raise ValueError(f"input {path!r} is empty; leave it out or give it text.")
            sources[path] = [document.split("\n") for document in re.split(r"\n\n+", text)]
    return sources


def _sentences(text):
    text = re.sub(r"(?m)^[*=~^-]+$", "", text).strip()  # without the underlines of titles
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text)]
    return [s for paragraph in paragraphs for s in re.split(r"(?<=[.!?]) (?=[A-Z\"(*])", paragraph)]


def split(sources, fraction):
    """Returns the documents of each part: 0, 1/fraction, 2/fraction, ... are for validation."""
    documents = [document for source in sources.values() for document in source]
    if len(documents) < 2:
        raise ValueError(
            f"input {', '.join(sources)!r} is {len(documents)} document, too few for "
            "training and validation; put blank lines between documents."
        )
    held = [math.ceil((i + 1) * fraction) > math.ceil(i * fraction) for i in range(len(documents))]
    held[-1] = held[-1] and not all(held)
    return {
        "train": [document for i, document in enumerate(documents) if not held[i]],
        "validation": [document for i, document in enumerate(documents) if held[i]],
    }


def learn_vocab(documents, vocab_size, do_lower_case):
    """Learns a WordPiece vocabulary, the same one in every process.

    The trainer numbers single characters in the order of a hash table that differs between
    processes, and breaks ties by those numbers. Special tokens are numbered before that.
    """
    import tokenizers

    learner = tokenizers.BertWordPieceTokenizer(lowercase=do_lower_case)
    lines = [line for document in documents for line in document]
    words = [
        word
        for line in map(learner.normalizer.normalize_str, lines)
        for word, _ in learner.pre_tokenizer.pre_tokenize_str(line)
    ]
    counts, inside = collections.Counter("".join(words)), {c for word in words for c in word[1:]}
    alphabet = sorted(counts, key=lambda c: (-counts[c], c))[:1000]  # the learner's own limit
    numbered = [*SPECIAL_TOKENS, *(f"##{c}" for c in alphabet if c in inside)]
    learner.train_from_iterator(
        lines,
        vocab_size=vocab_size,
        special_tokens=numbered,
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    ids = learner.get_vocab()
    return sorted(ids, key=ids.get)
