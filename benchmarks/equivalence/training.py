"""One run on JAX: batches and rates by a recipe, all steps between two looks in one call."""

import importlib
import inspect
import math

import jax
import keras
import numpy as np

from benchmarks.equivalence.protocol import FROZEN, Settings
from benchmarks.equivalence.workloads import Workload
from tf_lamb.core import schedules

TOLD = 2048  # examples of a call without gradients
# The log names these modules by where they lay when the runs were made.
MOVED = {
    "benchmarks.precision": "benchmarks.study.muon_precision",
    "benchmarks.soap": "benchmarks.equivalence.prototypes",
}


def optimizer(spec: str, settings: Settings, rate=1.0):
    """An optimizer of Keras, of those settings that its constructor takes.

    Args:
        spec: A name of the protocol, or MODULE:CLASS.
        settings: What else is tuned.
        rate: A number or a schedule.
    """
    module, _, name = FROZEN["optimizers"].get(spec, spec).partition(":")
    if module == "optax":
        from benchmarks.shared.of_optax import OfOptax

        return OfOptax(name)
    make = getattr(importlib.import_module(MOVED.get(module, module)), name)
    takes = inspect.signature(make).parameters
    given = {
        "momentum": settings.beta_1,
        "beta_1": settings.beta_1,
        "beta_2": settings.beta_2,
        "weight_decay": settings.weight_decay,
        "global_clipnorm": settings.global_clipnorm,
        "nesterov": True,
        "exclude_from_weight_decay": ("norm_and_bias",),
    }
    if not settings.weight_decay and takes["weight_decay"].default is None:
        del given["weight_decay"]
    made = make(rate, **{key: value for key, value in given.items() if key in takes})
    if settings.weight_decay and "exclude_from_weight_decay" not in takes:
        made.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return made


class Program:
    """A network and an optimizer, compiled once a batch size; a run gives rates and seed."""

    def __init__(self, workload: Workload, spec: str, settings: Settings):
        self.workload, self.optimizer = workload, optimizer(spec, settings)
        self.x, self.y = jax.tree.map(jax.numpy.asarray, workload.parts[0])
        self.model = workload.network()
        self.optimizer.build(self.model.trainable_variables)
        self.slots = [v.value for v in self.optimizer.variables]
        rate = self.optimizer._learning_rate
        self.rate = next(i for i, v in enumerate(self.optimizer.variables) if v is rate)
        self._tell = jax.jit(self._outputs)
        self.advance = jax.jit(self._steps, donate_argnums=0)

    def run(self, recipe, seed: int) -> dict:
        """Held-out losses at `looks` places of a run, updates at each, and the test's score.

        Of a workload that is scored by errors, the held-out share of errors at the end, too.
        """
        valid, test = self.workload.parts[1:]
        state, losses, updates = self.start(seed), [], []
        for done, batches, rates in pieces(recipe, len(self.y), seed):
            for batch, own in zip(batches, rates, strict=True):
                state = self.advance(state, np.int32(len(own)), *_padded(batch, own))
            told = self.tell(state, valid[0])
            losses.append(float(self.workload.loss(valid[1], told)))
            updates.append(done)
            if not math.isfinite(losses[-1]):
                return {
                    "updates": updates,
                    "valid": [*map(_short, losses[:-1]), None],
                    "test": None,
                }
        score = self.workload.scored(test[1], self.tell(state, test[0]))
        found = {"updates": updates, "valid": list(map(_short, losses)), "test": _short(score)}
        if self.workload.score == "error":
            found["valid_error"] = _short(self.workload.scored(valid[1], told))
        return found

    def tell(self, state, x):
        """The outputs for all these examples."""
        cuts = range(0, len(jax.tree.leaves(x)[0]), TOLD)
        parts = (jax.tree.map(lambda each, i=i: each[i : i + TOLD], x) for i in cuts)
        return np.concatenate([self._tell(state, part) for part in parts])

    def start(self, seed):
        """Weights and state of a run before its first step."""
        keras.utils.set_random_seed(seed)
        model = self.workload.network()
        trained = [v.value for v in model.trainable_variables]
        others = [v.value for v in model.non_trainable_variables]
        return jax.tree.map(jax.numpy.array, (trained, others, self.slots))

    def _outputs(self, state, x):
        return self.model.stateless_call(*state[:2], x, training=False)[0]

    def _steps(self, state, count, batches, rates):
        def loss(trained, others, x, y):
            outputs, others = self.model.stateless_call(trained, others, x, training=True)
            return self.workload.loss(y, outputs), others

        def step(i, state):
            trained, others, slots = state
            x, y = jax.tree.map(lambda each: each[batches[i]], (self.x, self.y))
            gradients, others = jax.grad(loss, has_aux=True)(trained, others, x, y)
            slots = [rates[i] if j == self.rate else slot for j, slot in enumerate(slots)]
            trained, slots = self.optimizer.stateless_apply(slots, gradients, trained)
            return trained, others, slots

        return jax.lax.fori_loop(0, count, step, state)


def pieces(recipe, examples: int, seed: int):
    """A run in `looks` parts of as many examples: updates so far, batches, their rates.

    Batches and rates are lists of arrays, one for each batch size in the part.
    """
    whole = recipe.schedule(schedules).value(np, np.arange(recipe.train_steps)).astype("float32")
    sizes = np.repeat([s.batch_size for s in recipe.stages], [s.train_steps for s in recipe.stages])
    seen = np.cumsum(sizes)
    rng, passes = np.random.default_rng(seed), -(-int(seen[-1]) // examples)
    order = np.concatenate([rng.permutation(examples).astype("int32") for _ in range(passes)])
    looks = FROZEN["looks"]
    ends = np.searchsorted(seen, seen[-1] * np.arange(1, looks + 1) // looks, "left") + 1
    begin = 0
    for end in dict.fromkeys(map(int, np.minimum(ends, len(sizes)))):
        batches, rates = [], []
        cuts = [begin, *(i for i in range(begin + 1, end) if sizes[i] != sizes[i - 1]), end]
        for first, last in zip(cuts, cuts[1:], strict=False):
            at = seen[first] - sizes[first]
            drawn = order[at : seen[last - 1]]
            batches.append(drawn.reshape(last - first, int(sizes[first])))
            rates.append(whole[first:last])
        yield end, batches, rates
        begin = end


def _padded(batches, rates):
    """To the next power of two of steps: so few programs are compiled."""
    more = (1 << (len(rates) - 1).bit_length()) - len(rates)
    return np.pad(batches, ((0, more), (0, 0))), np.pad(rates, (0, more))


def _short(number):
    return float(f"{number:.5g}") if math.isfinite(number) else None
