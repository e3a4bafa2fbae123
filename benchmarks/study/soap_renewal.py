"""SOAP's bases renewed by Cholesky beside Householder's, on the gradients of real trainings.

    python -m benchmarks.study.soap_renewal --workload=flights --steps=600 --seeds=5
    python -m benchmarks.study.soap_renewal --workload=bert --steps=100 --batch=64
    python -m benchmarks.study.soap_renewal --compile

Each seed is trained twice, from the same weights on the same batches. A line of
`benchmarks/logs/renewal.jsonl` is a run: how many renewals there were and how many left a basis as
it was, how far bases are from orthogonal at the end, how far the factors are from diagonal in them
(the norm of what lies beside the diagonal over the norm of all, in the mean), and the loss on what
was held out. With `--compile` a line is the seconds that the TPU's compiler takes for the
decompositions alone, of one side or of a stack of eight; no TPU is needed. "bert" reads letters,
too, in four layers of 256.
"""

import dataclasses
import functools
import itertools
import pathlib
import time

import numpy as np
from absl import app, flags

from benchmarks.equivalence.workloads import workload
from benchmarks.shared import text
from benchmarks.shared.run_log import Log, commit

LOG = pathlib.Path(__file__).parents[1] / "logs" / "renewal.jsonl"
WAYS = ("qr", "cholesky")

_WORKLOAD = flags.DEFINE_string("workload", "flights", "One of the registered experiment's.")
_STEPS = flags.DEFINE_integer("steps", 600, "Updates of a run.")
_BATCH = flags.DEFINE_integer("batch", 256, "Examples of an update.")
_RATE = flags.DEFINE_float("rate", 3e-3, "The highest learning rate.")
_SEEDS = flags.DEFINE_integer("seeds", 1, "How many.")
_COMPILE = flags.DEFINE_bool("compile", False, "Whether the TPU's compiler is timed instead.")


def batches(part, batch, seed):
    """Endless batches of the examples, in orders by the seed."""
    x, y = part
    rng = np.random.default_rng(seed)

    def at(rows):
        if isinstance(x, dict):
            return {name: each[rows] for name, each in x.items()}
        return [each[rows] for each in x] if isinstance(x, (list, tuple)) else x[rows]

    while True:
        order = rng.permutation(len(y))
        for first in range(0, len(y) - batch + 1, batch):
            rows = order[first : first + batch]
            yield at(rows), y[rows]


def trained(work, renewal, seed):
    """The line of one run."""
    import keras

    import tf_lamb.keras

    keras.utils.set_random_seed(seed)
    model, steps = work.network(), _STEPS.value
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=_RATE.value,
                                                  warmup_steps=steps // 10)  # fmt: skip
    optimizer = tf_lamb.keras.SOAP(rate, form={"renewal": renewal})
    model.compile(optimizer, work.loss)
    start = time.monotonic()
    for x, y in itertools.islice(batches(work.parts[0], _BATCH.value, seed), steps):
        model.train_on_batch(x, y)
    took = time.monotonic() - start
    orthogonal, beside, renewals = [], [], 0
    for i in range(len(model.trainable_variables)):
        slots = {name: np.float64(slot) for name, slot in optimizer.state_of(i).items()}
        for side in "LR":
            if f"{side}_basis" in slots:
                factor, basis = slots[side], slots[f"{side}_basis"]
                within = basis.T @ factor @ basis
                off, whole = map(np.linalg.norm, (within - np.diag(np.diag(within)), within))
                beside += [off / whole] if whole else []  # a kernel without a gradient has none
                orthogonal.append(np.abs(basis.T @ basis - np.eye(len(basis))).max())
        renewals += int(slots.get("steps", 0) // 10)
    x, y = work.parts[2]
    return {
        "renewals": renewals, "kept_bases": optimizer.kept_bases,
        "from_orthogonal": float(max(orthogonal)), "from_diagonal": float(np.mean(beside)),
        "loss": float(work.loss(y, model.predict(x, batch_size=1024, verbose=0))),
        "seconds": round(took, 1), "commit": commit(),
    }  # fmt: skip


def compiled(shape, renewal):
    """The line of one program for a v5e."""
    import importlib

    import jax
    from jax.experimental import topologies

    from tf_lamb.keras import arrays

    rule = importlib.import_module("tf_lamb.core.rules.soap")  # the file: a rule has its name
    chip = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]
    sharding = jax.sharding.SingleDeviceSharding(chip)
    side = jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)
    traced = jax.jit(lambda a: rule._orthonormal(arrays, a, renewal)).trace(side)
    start = time.monotonic()
    traced.lower(lowering_platforms=("tpu",)).compile()
    return {"seconds": round(time.monotonic() - start, 1), "commit": commit()}


def main(_):
    if _COMPILE.value:
        for n, stack, renewal in itertools.product((256, 512, 1024), ((), (8,)), WAYS):
            what = {"program": "orthonormal", "shape": [*stack, n, n], "renewal": renewal}
            print(Log(LOG).run(what, functools.partial(compiled, (*stack, n, n), renewal)))
        return
    if _WORKLOAD.value == "bert":
        network = functools.partial(text.bert, 4, 256)
        work = dataclasses.replace(workload("letters"), name="bert", network=network)
    else:
        work = workload(_WORKLOAD.value)
    log = Log(LOG)
    for seed, renewal in itertools.product(range(_SEEDS.value), WAYS):
        what = {
            "workload": work.name, "renewal": renewal, "seed": seed, "steps": _STEPS.value,
            "batch": _BATCH.value, "rate": _RATE.value,
        }  # fmt: skip
        print(log.run(what, functools.partial(trained, work, renewal, seed)), flush=True)


if __name__ == "__main__":
    app.run(main)
