"""The registered study of docs/updates_left.md: does a batch keep the result, by updates left?

    python -m benchmarks.updates_left                 # makes the runs that the log lacks
    UPDATES_LEFT=rehearsal.json python -m benchmarks.updates_left --log=LOG    # minutes, to try it
    python -m benchmarks.updates_left.report          # tables and figure, from the log

`protocol.json` has the frozen numbers, `tasks` what is learned, `training` one run, `chains` which
runs there are and in which order, `analysis` what they say.
"""
