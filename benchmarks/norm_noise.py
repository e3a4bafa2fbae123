"""Do layers of normalization tell the noise scale of a whole network, on one device?

    python benchmarks/norm_noise.py

A batch that is one part has no second gradient to compare with. Two ways out, of which the package
has neither, are held to the noise scale itself: tr(S)/|G|^2 of the gradients of 4,096 examples, one
by one, at five of 100 steps.

    norms       the same of the scales and shifts of the normalization layers alone, whose gradients
                by example are cheap (arXiv 2411.00999)
    previous    the gradient of the step before is the second one; averages over the 100 steps

The tasks are those of steps.py, with their tuned rates, to the steps that these take to the target.
A place of a run is a line of the log; a command that was interrupted begins a run anew.
"""

import re
from types import SimpleNamespace

import jax
import loop
import numpy as np
import steps
from absl import app, flags
from jax import numpy as jnp
from run_log import Log

# task -> optimizer, batch, its tuned rate and steps
RUNS = {"flights": ("adamw", 64, 0.008, 4000), "text": ("muon", 16, 0.004, 800)}
PLACES, SAMPLE, LAST, EVERY, CHUNK = (0.1, 0.25, 0.5, 0.75, 1.0), 4096, 100, 20, 64
NORMS = re.compile("norm|gamma|beta")


class Noise:
    """The noise scales of a network by the gradients of single examples."""

    def __init__(self, program):
        self.program = program
        paths = [variable.path for variable in program.model.trainable_variables]
        self.norms = [i for i, path in enumerate(paths) if NORMS.search(path)]
        self.gradient = jax.jit(jax.grad(self._loss))
        self.sums = jax.jit(self._sums)

    def _loss(self, weights, batch):
        x, y = jax.tree.map(lambda each: each[batch], (self.program.x, self.program.y))
        return self.program.loss(y, self.program._outputs(weights, x))

    def _sums(self, weights, chunk):
        """Of the gradients of these examples: their sum, and by variable their squares' sum."""
        each = jax.vmap(lambda i: jax.grad(self._loss)(weights, i[None]))(chunk)
        return [g.sum(0) for g in each], jnp.stack([jnp.sum(g**2) for g in each])

    def exact(self, weights, sample):
        """tr(S) and |G|^2 of each variable, both without bias."""
        n, total, squares = len(sample), None, 0.0
        for chunk in sample.reshape(-1, CHUNK):
            sums, own = self.sums(weights, chunk)
            total = sums if total is None else jax.tree.map(jnp.add, total, sums)
            squares = squares + np.asarray(own, "float64")
        means = np.array([float(jnp.sum((each / n) ** 2)) for each in total])
        trace = (squares / n - means) * n / (n - 1)
        return trace, means - trace / n

    def told(self, seen):
        """The noise scale of all variables and of the norms' alone, from what `exact` saw."""
        trace, square = np.sum(seen, axis=0)
        return {
            name: float(trace[of].sum() / square[of].sum())
            for name, of in (("all", slice(None)), ("norms", self.norms))
        }


def by_previous(gradients, batch):
    """The reading where g . (the one before) stands for |G|^2."""
    flat = [np.concatenate([np.ravel(each) for each in g]).astype("float64") for g in gradients]
    between = np.mean([a @ b for a, b in zip(flat, flat[1:], strict=False)])
    return float(batch * (np.mean([g @ g for g in flat]) - between) / between)


def train(task, log, seed):
    """A run, with its readings."""
    rival, batch, rate, whole = RUNS[task]
    args = SimpleNamespace(
        task=task, log=None, data=None, batches=[], target=None, limit=None, rivals=[rival],
        seeds=1,
    )  # fmt: skip
    runs = steps.Runs(args, SimpleNamespace(update=lambda: None))
    program = runs.loop(rival)
    noise, warm = Noise(program), runs.task.warmup / batch
    state, examples = program.start(seed), len(runs.data[0][1])
    drawn = loop.batches(examples, batch, seed)
    sample = np.random.default_rng(seed).permutation(examples)[:SAMPLE].astype("int32")
    ends = [round(share * whole) for share in PLACES]
    gradients, seen = [], []
    for step in range(1, whole + 1):
        indices = next(drawn)
        if any(end - LAST < step <= end for end in ends):
            gradients.append(noise.gradient(state[0], indices))
        state, _ = program.advance(state, rate * min(1, step / warm), indices)
        if any(step in range(end, end - LAST, -EVERY) for end in ends):
            seen.append(noise.exact(state[0], sample))
        if step in ends:
            found = {**noise.told(seen), "previous": by_previous(gradients, batch)}
            what = {"task": task, "rival": rival, "batch": batch, "rate": rate, "seed": seed}
            told = {name: float(f"{value:.4g}") for name, value in found.items()}
            log.note({**what, "step": step, **told})
            print(log.lines[-1], flush=True)
            gradients, seen = [], []


def main(_):
    """Makes the runs that are missing."""
    log = Log(flags.FLAGS.log)
    for task in flags.FLAGS.task:
        for seed in range(1, flags.FLAGS.seeds + 1):
            made = [each for each in log.lines
                    if (each.get("task"), each.get("seed")) == (task, seed)]  # fmt: skip
            if len(made) < len(PLACES):
                train(task, log, seed)


if __name__ == "__main__":
    flags.DEFINE_multi_enum("task", list(RUNS), list(RUNS), "What is learned.")
    flags.DEFINE_string("log", "benchmarks/logs/norm_noise.jsonl", "Where every place is a line.")
    flags.DEFINE_integer("seeds", 3, "Of each run.")
    app.run(main)
