"""Which batch, how long, what it costs: seconds of a step, `plan`, x steps to a target, `steps`."""
