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
    """Ten steps of one optimizer, as one entry of `load.cases`.

    `read` gives the weight of a path; `step` takes a rate and path -> gradient, and updates all.
    """
    record = load.Record()
    for i in range(problem.STEPS):
        step(
            problem.SCHEDULE["lars" if rule == "lars" else "lamb"][i],
            {path: problem.GRADIENTS[path][i].copy() for path in paths},
        )
        for path in paths:
            record.keep(path, np.array(read(path), np.float32))
    return {"rule": rule, "arguments": arguments, **record.arrays()}
