"""The TPU's own compiler, which runs where there is no TPU: what it makes of a step, or refuses."""
