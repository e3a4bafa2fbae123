"""Faults that 5,400 tests did not see, planted again: `support/stateful.py` has to find each.

Name -> the hosts that show it, and changes of the package: a definition, a passage of it and what
it becomes, as in `support/mutants.py`.
"""

ALL = ("tensorflow", "jax", "tf_keras")
PLANTS = {
    "a loss scale drops in silence": (("tensorflow",), [
        ("install", "[(Layerwise,", "[(type(None),"),
    ]),
    "one layer of two towers": (ALL, [
        ("joined_layers", "layer if count == '1' else f'{layer}#{number}'", "layer"),
    ]),
    "a second fit donates an array twice": (("jax",), [
        ("keras.put", "ops.copy(ops.cast(value, variable.dtype))",
         "ops.cast(value, variable.dtype)"),
    ]),
    "state by position": (ALL, [
        ("Storage.parts", "named.Part(name, shape, arrays, initial)",
         "named.Part(name, shape, {str(n): v for n, v in enumerate(arrays.values())})"),
        ("slots_of_rule",
         "return {slot for slot in names if not slot.startswith(_NON_SLOT_PREFIXES)}",
         "return set()"),
    ]),
    "averages of nothing": (("tensorflow", "jax"), [
        ("Layerwise.finalize_variable_values", "if named.has_averages(self):", "if self.use_ema:"),
    ]),
    "averages of no update": (ALL, [
        ("named.continue_from", "{'has_averages': 1, **scalars, 'iterations': step}",
         "{**scalars, 'has_averages': 1, 'iterations': step}"),
    ]),
    "micro-batches are left behind": (ALL, [
        ("named.continue_from", "**states[path]",
         "**{n: v for n, v in states[path].items() if n[:11] != 'accumulator'}"),
        ("named.continue_from", "saved_scalars[name] if name in saved_scalars",
         "saved_scalars[name] if name in saved_scalars and name[:5] != 'micro'"),
    ]),
    "a fit without an update is silent": (ALL, [
        ("warn_if_waiting", "if waiting:", "if waiting < 0:"),
    ]),
    "a whole rate cuts what it multiplies": (ALL, [
        ("to_float_scalar", "xp.cast(value, 'float32')", "value"),
    ]),
    "fewer micro-batches end no update": (ALL, [
        ("accumulation.is_due", "return accumulated >= steps",
         "return xp.equal(accumulated, steps)"),
    ]),
    "what is joined never rests": (ALL, [
        ("which_have_gradients", "xp.any(gradient != 0) if is_missing else None", "None"),
    ]),
}  # fmt: skip
