"""Which batch, how long, what it costs: seconds of a step x steps to the target.

`steps` has the steps at a batch, `plan` the seconds of a step, the table and the batches to take.
"""
