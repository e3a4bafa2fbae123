"""Faults that 5,400 tests did not see, planted again: `support/stateful.py` has to find each.

Name -> the hosts that show it, and changes of the package: a file of `tf_lamb`, a passage that
stands once in it, and what it becomes.
"""

PLANTS = {
    "one layer of two towers": (
        ("tensorflow", "jax", "tf_keras"),
        [("core/patterns.py", 'layer if count == "1" else f"{layer}#{number}"', "layer")],
    ),
    "a second fit donates an array twice": (
        ("jax",),
        [
            (
                "keras/optimizer.py",
                "host.take(variable, average)",
                "variable.assign(ops.cast(average, variable.dtype))",
            )
        ],
    ),
    "state by position": (
        ("tensorflow", "jax", "tf_keras"),
        [
            (
                "api/optimizers/named.py",
                "parts.append(Part(name, shape, kept))",
                "parts.append(Part(name, shape, {str(n): v for n, v in enumerate(kept.values())}))",
            ),
            (
                "api/optimizers/named.py",
                "return {slot for slot in kept if not slot.startswith(_BESIDE)}",
                "return set()",
            ),
        ],
    ),
    "averages of nothing": (
        ("tensorflow", "jax"),
        [
            (
                "keras/optimizer.py",
                "self._averages() if named.has_averages(self) else []",
                "self._averages()",
            )
        ],
    ),
    "a scalar is not put back": (
        ("tensorflow", "tf_keras"),
        [
            (
                "core/autowarmup.py",
                "return [_read(file, each) for each in like]",
                "return [[_read(file, each), each][1] for each in like]",
            )
        ],
    ),
}
