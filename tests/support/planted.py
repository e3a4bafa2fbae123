"""Faults that 5,400 tests did not see, planted again: `support/stateful.py` has to find each.

Name -> the hosts that show it, and changes of the package: a definition, a passage of it and what
it becomes, as in `support/mutants.py`.
"""

PLANTS = {
    "a loss scale drops in silence": (
        ("tensorflow",),
        [("have_wrappers_leave_ours_alone", "[(Layerwise,", "[(type(None),")],
    ),
    "one layer of two towers": (
        ("tensorflow", "jax", "tf_keras"),
        [("joined_layers", "layer if count == '1' else f'{layer}#{number}'", "layer")],
    ),
    "a second fit donates an array twice": (
        ("jax",),
        [
            (
                "keras.put",
                "ops.copy(ops.cast(value, variable.dtype))",
                "ops.cast(value, variable.dtype)",
            )
        ],
    ),
    "state by position": (
        ("tensorflow", "jax", "tf_keras"),
        [
            (
                "Storage.parts",
                "named.Part(name, shape, kept, initial)",
                "named.Part(name, shape, {str(n): v for n, v in enumerate(kept.values())})",
            ),
            (
                "slots_of_rule",
                "return {slot for slot in kept if not slot.startswith(_NO_SLOTS)}",
                "return set()",
            ),
        ],
    ),
    "averages of nothing": (
        ("tensorflow", "jax"),
        [
            (
                "Layerwise.finalize_variable_values",
                "if named.has_averages(self):",
                "if self.use_ema:",
            )
        ],
    ),
    "a scalar is not put back": (
        ("tensorflow", "tf_keras"),
        [
            (
                "Kept.at",
                "return [_read(file, each) for each in like]",
                "return [[_read(file, each), each][1] for each in like]",
            )
        ],
    ),
}
