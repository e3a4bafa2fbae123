"""The registered study of docs/protocol_ladder.md: updates to a loss, by optimizer and batch size.

    python -m benchmarks.ladder --hours=4             # makes the runs that the log lacks
    LADDER=rehearsal.json python -m benchmarks.ladder --log=LOG    # minutes, to try it
    python -m benchmarks.ladder.hours                 # how long the runs take
    python -m benchmarks.ladder.report                # tables and figure, from the log

`protocol.json` has the frozen numbers, `tasks` what is learned, `training` one run, `climb` which
runs there are and in which order, `analysis` what they say. The loop, the data of three tasks and
the log are those of `benchmarks/updates_left/`.
"""
