"""A model's step, asked of the TPU's own compiler before there is a TPU."""
