"""Which batch, how long, what it costs: seconds of a step x steps to the target.

`time` has the seconds of a step, `steps` the steps at a batch, `plan` the table of both and the
batches to take.
"""
