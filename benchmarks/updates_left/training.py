"""One run on JAX: data, gradients and updates in one compiled loop."""

import functools
import math
import time

import jax
import jax.numpy as jnp
import keras
import numpy as np

from benchmarks.updates_left import tasks
from benchmarks.updates_left.protocol import FROZEN, Run, Settings
from tf_lamb import keras as tf_lamb
from tf_lamb.core import recipes, schedules
from tf_lamb.core.recipes.recipe import Recipe

MOST = 2**16  # updates of a call


def optimizer(name: str, settings: Settings, **arguments):
    """Makes an optimizer, whose rate the compiled program sets.

    Args:
        name: The class, of Keras for AdamW, else of this package.
        settings: What is shared or tuned; its rate and warmup are not read.
        arguments: More of the class, which win over those of `settings`.
    """
    shared = {
        "weight_decay": settings.weight_decay, "global_clipnorm": FROZEN["global_clipnorm"],
    }  # fmt: skip
    if name == "AdamW":
        adamw = keras.optimizers.AdamW(1.0, **{"beta_2": settings.beta_2, **shared, **arguments})
        adamw.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        return adamw
    if name in ("LAMB", "SOAP"):
        shared["beta_2"] = settings.beta_2
    shared |= {"exclude_from_weight_decay": "norm_and_bias"} | arguments
    return getattr(tf_lamb, name)(1.0, **shared)


def recipe_of(run: Run) -> tuple[Settings, Recipe]:
    """Returns the settings at the batch of a run, and its recipe."""
    base = FROZEN["base_batch"]
    if run.rule in ("tuned", "searched"):
        return run.settings, as_tuned(run, run.batch)
    if run.rule == "growing":
        return run.settings, recipes.growing(as_tuned(run, base), run.batch)
    if run.rule == "transfer from 256":
        return moved(run, FROZEN["own_numbers"]["base_batch"])
    if run.rule != "transfer":
        raise ValueError(f"there is no rule {run.rule!r}")
    return moved(run, base)


def as_tuned(run: Run, batch: int) -> Recipe:
    """Returns the recipe of the settings as they are, at a batch."""
    steps = -(-run.examples // batch)
    return Recipe(
        title="As tuned", batch_size=batch, learning_rate=run.settings.rate, train_steps=steps,
        warmup_steps=round(run.settings.warmup * steps), examples=run.examples, source="the search",
    )  # fmt: skip


def moved(run: Run, base: int) -> tuple[Settings, Recipe]:
    """Returns what `recipes.transfer` makes of settings that were tuned at the base batch."""
    settings = run.settings
    has_beta_2 = run.optimizer != "Muon"
    recipe = recipes.transfer(
        run.batch, base, settings.rate, examples=run.examples, epochs=1, optimizer=run.optimizer,
        warmup_epochs=settings.warmup, weight_decay=settings.weight_decay,
        beta_2=settings.beta_2 if has_beta_2 else None,
    )  # fmt: skip
    of_here = Settings(
        recipe.learning_rate, settings.warmup, recipe.weight_decay,
        recipe.beta_2 if has_beta_2 else settings.beta_2,
    )  # fmt: skip
    return of_here, recipe


@functools.cache
def _task(name):
    return tasks.task(name)


class Program:
    """A network and an optimizer; each batch size is compiled once, and a run gives its rates."""

    def __init__(self, task: tasks.Task, optimizer):
        self.task, self.optimizer = task, optimizer
        self.model = self.task.network()
        self.optimizer.build(self.model.trainable_variables)
        self.slots = [v.value for v in self.optimizer.variables]
        rate = self.optimizer._learning_rate
        self.rate = next(i for i, v in enumerate(self.optimizer.variables) if v is rate)
        self.advance = jax.jit(self._advance, static_argnums=0, donate_argnums=1)
        self.told = jax.jit(self._told)
        self.programs = {}

    def run(self, run: Run, recipe) -> dict:
        """Trains, and returns the updates, the validation's and the test's numbers, and seconds.

        Seconds are those of the steps alone, without compilation: of the processor, so that what
        else the machine does is not counted.
        """
        rates = recipe.schedule(schedules).value(np, np.arange(recipe.train_steps))
        stages = getattr(recipe, "stages", None)
        sizes = (
            [(s.batch_size, s.train_steps) for s in stages]
            if stages
            else [(run.batch, recipe.train_steps)]
        )
        state, key, done, seconds = self._start(run.seed), jax.random.key(run.seed), 0, 0.0
        for batch, steps in sizes:
            end = done + steps
            while done < end:
                part = rates[done : min(done + MOST, end)]
                state, taken = self.steps(state, key, batch, done, part)
                seconds += taken
                done += len(part)
        found = {"updates": done}
        for part in ("validation", "test"):
            loss, error = map(float, self.told(state, *getattr(self.task, part)))
            found[part] = {"loss": _short(loss), "error": _short(error)}
        return found | {"seconds": round(seconds, 2)}

    def steps(self, state, key, batch, done, rates):
        """Takes a step at each of these rates; returns the state and the processor's seconds.

        Args:
            state: That of the steps before, which is given up.
            key: Of the run, from which each step draws its batch by its number.
            batch: Examples of a step.
            done: The number of steps before.
            rates: At most `MOST`.
        """
        padded = np.zeros(1 << max(len(rates) - 1, 1).bit_length(), "float32")
        padded[: len(rates)] = rates
        arguments = (state, self.task.arrays, key, np.int32(done), np.int32(len(rates)), padded)
        compiled = self._compiled(batch, arguments)
        begun = time.process_time()
        state = jax.block_until_ready(compiled(*arguments))
        return state, time.process_time() - begun

    def _compiled(self, batch, arguments):
        size = batch, len(arguments[-1])
        if size not in self.programs:
            self.programs[size] = self.advance.lower(batch, *arguments).compile()
        return self.programs[size]

    def _start(self, seed):
        keras.utils.set_random_seed(seed)
        model = self.task.network()
        weights = [v.value for v in model.trainable_variables]
        others = [v.value for v in model.non_trainable_variables]
        return jax.tree.map(jnp.array, (weights, others, self.slots))

    def _told(self, state, x, y):
        outputs = self.model.stateless_call(*state[:2], x, training=False)[0]
        wrong = jnp.argmax(outputs, -1) != y if outputs.shape[-1] > 1 else (outputs > 0) != y
        return self.task.loss(y, outputs), jnp.mean(wrong)

    def _advance(self, batch, state, arrays, key, done, count, rates):
        def loss(weights, others, x, y):
            outputs, others = self.model.stateless_call(weights, others, x, training=True)
            return self.task.loss(y, outputs), others

        def step(i, state):
            weights, others, slots = state
            x, y = self.task.draw(jax.random.fold_in(key, done + i), batch, arrays)
            gradients, others = jax.grad(loss, has_aux=True)(weights, others, x, y)
            slots = [rates[i] if j == self.rate else slot for j, slot in enumerate(slots)]
            weights, slots = self.optimizer.stateless_apply(slots, gradients, weights)
            return weights, others, slots

        return jax.lax.fori_loop(0, count, step, state)


def _short(number):
    return float(f"{number:.6g}") if math.isfinite(number) else None


@functools.lru_cache(maxsize=3)
def _program(task, name, settings):
    return Program(_task(task), optimizer(name, settings))


def result_of(run: Run) -> dict:
    """Makes a run; where the rule refuses the batch, says why."""
    try:
        settings, recipe = recipe_of(run)
    except ValueError as error:
        return {"refused": str(error)}
    # Rate and warmup are arguments of a compiled program, the rest is part of it.
    compiled_in = Settings(1.0, 0.0, settings.weight_decay, settings.beta_2)
    return _program(run.task, run.optimizer, compiled_in).run(run, recipe)
