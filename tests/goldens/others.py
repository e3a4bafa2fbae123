"""What the makers of packages outside TensorFlow and JAX share: the steps, and what is kept.

Each maker writes one file for each package: weights alone, ten steps at the rates of
`problem.SCHEDULE`. `load.OTHERS` names the files.
"""

import load
import numpy as np
import problem

EXCLUDED = [path for path in problem.START if any(each in path for each in problem.EXCLUDED)]
DECAY = problem.WEIGHT_DECAY
TRUST = problem.TRUST_COEFFICIENT


def case(rule, arguments, read, step, paths=tuple(problem.START)):
    """Ten steps of one optimizer.

    Args:
        rule: "lamb", "lars" or "muon".
        arguments: As the package spells them, for the record.
        read: Path -> its weight now.
        step: Called with a rate and with path -> gradient; updates every weight.
        paths: The variables that take part.

    Returns:
        One entry of `load.cases`.
    """
    kept = {path: [] for path in paths}
    for i in range(problem.STEPS):
        step(
            problem.SCHEDULE["lars" if rule == "lars" else "lamb"][i],
            {path: problem.GRADIENTS[path][i].copy() for path in paths},
        )
        for path in paths:
            kept[path].append(np.array(read(path), np.float32))
    weights = {path: np.stack(values) for path, values in kept.items()}
    return {"rule": rule, "arguments": arguments, "weights": weights, "slots": {}}


def write(package, cases, distributions, archived=None):
    """Writes one package's file."""
    load.write(
        package, load.output_folder(), cases=cases, models={}, distributions=distributions,
        archived=archived,
    )  # fmt: skip
