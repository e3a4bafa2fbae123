"""A language model at 256 to 2,048 examples: docs/protocol_language_model.md."""
