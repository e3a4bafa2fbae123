"""Writes a small BERT pretraining set from text that is at hand: vocabulary, TFRecords, facts.

    python -m tf_lamb.model_garden.sample_data --output_dir=DIR [--input=a.txt,b.txt] [...]

Without `--input` the text is the English manual that every CPython ships (`pydoc_data.topics`), so
nothing is downloaded. The examples are made by Model Garden's own `create_pretraining_data`.
"""

from tf_lamb.model_garden.samples import folder
from tf_lamb.model_garden.samples.text import write


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
    return folder.command("lamb/bert_pretraining", "bert_small_cpu.yaml", output_dir, **settings)


if __name__ == "__main__":
    folder.run(
        "sample_data", write, "{train_examples} training and {validation_examples} validation "
        "examples, vocabulary of {vocab_size}", trained_by,
    )  # fmt: skip
