"""One run on JAX: gradients of micro-batches and the optimizer's update, each compiled once.

Rates, betas and decay are given to the compiled update: the points of a search share a program.
"""

import contextlib
import functools
import inspect
import itertools
import math
import time
from unittest import mock

import jax
import jax.numpy as jnp
import keras
import numpy as np

from benchmarks.equivalence.protocol import Settings
from benchmarks.equivalence.training import optimizer
from benchmarks.language_model.data import examples
from benchmarks.language_model.model import decoder
from benchmarks.language_model.protocol import FROZEN
from tf_lamb.core import schedules
from tf_lamb.core.rules import shared

CHUNK = 1024  # examples that are evaluated at a time
SPECS = {"soap": "tf_lamb:SOAP"}


class Lost(Exception):
    """A loss that is not finite."""


@jax.custom_vjp
def crossentropy(logits, y):
    """The mean in float32 of logits in bfloat16, of which no float32 copy is kept."""
    return _forward(logits, y)[0]


def _forward(logits, y):
    wide = logits.astype("float32")
    total = jax.nn.logsumexp(wide, -1)
    own = jnp.sum(jnp.where(_is(logits, y), wide, 0), -1)
    return jnp.mean(total - own), (logits, y, total)


def _backward(kept, cotangent):
    logits, y, total = kept
    shares = jnp.exp(logits.astype("float32") - total[..., None])
    shares = (shares - _is(logits, y)) * (cotangent / y.size)
    return shares.astype(logits.dtype), None


def _is(logits, y):
    return jnp.arange(logits.shape[-1]) == y[..., None]


crossentropy.defvjp(_forward, _backward)


class Task:
    """The model, the data on the device, and the compiled gradient and evaluation."""

    def __init__(self, parts: dict[str, np.ndarray], model: dict, micro: int):
        self.sizes, self.micro = model, micro
        self.x, self.y = map(jnp.asarray, examples(parts["train"], model["tokens"]))
        self.held_out = {part: self._chunks(parts[part]) for part in ("validation", "test")}
        self.model = decoder(**model)
        self.compiled: set = set()
        self.weights = functools.lru_cache(self.weights)
        self.add = jax.jit(self._add, static_argnums=0, donate_argnums=2)
        self._tell = jax.jit(self._loss)

    @property
    def operations(self) -> float:
        """Of a token that is trained on, by the usual count."""
        own = self.sizes
        attention = 12 * own["layers"] * own["width"] * own["tokens"]
        return 6 * self.model.count_params() + attention

    def weights(self, seed: int) -> list[np.ndarray]:
        """What a run begins with."""
        keras.utils.set_random_seed(seed)
        model = decoder(**self.sizes)
        return [np.asarray(v.value) for v in model.trainable_variables]

    def tell(self, weights, part: str, count: int | None = None) -> float:
        """The mean loss of the first examples of a part, or of all; of whole chunks."""
        chunks = self.held_out[part][: count and max(1, count // CHUNK)]
        losses = [self._tell(weights, *chunk) for chunk in chunks]
        return float(np.average(jax.device_get(losses), weights=[len(x) for x, _ in chunks]))

    def micro_of(self, size: int) -> int:
        """The micro-batch of a batch: all of it, or the frozen one."""
        return size if size <= self.micro else math.gcd(size, self.micro)

    def gradient(self, weights, total, order, begin, size):
        """The mean gradient of a batch, which takes over the buffers of `total`."""
        micro = self.micro_of(size)
        for i in range(0, size, micro):
            share = np.float32(micro / size)
            where = self.x, self.y, order, np.int32(begin + i)
            total = self.add(micro, weights, total, where, share, np.bool_(i == 0))
        return total

    def _chunks(self, tokens):
        x, y = examples(tokens, self.sizes["tokens"])
        cuts = range(0, len(x), CHUNK)
        return [tuple(jnp.asarray(each[i : i + CHUNK]) for each in (x, y)) for i in cuts]

    def _loss(self, weights, x, y):
        x, y = x.astype("int32"), y.astype("int32")
        return crossentropy(self.model.stateless_call(weights, [], x, training=True)[0], y)

    def _add(self, micro, weights, total, where, share, is_first):
        x, y, order, begin = where
        rows = jax.lax.dynamic_slice(order, (begin,), (micro,))
        made = jax.grad(self._loss)(weights, x[rows], y[rows])
        return [
            share * g + jnp.where(is_first, 0, t) for g, t in zip(made, total, strict=True)
        ]  # fmt: skip


class Update:
    """The compiled update of an optimizer, as Keras makes it; hyper-parameters are arguments."""

    def __init__(self, name: str, variables):
        schedule = Held()
        self.schedule = schedule if name != "adamw" else None
        self.is_traced = name != "soap"  # whose rule asks more of its betas
        some = Settings(1.0, 0.9, 0.0, self.schedule or 1.0, FROZEN["search"]["global_clipnorm"])
        self.optimizer = optimizer(SPECS.get(name, name), some)
        self.optimizer.build(variables)
        self.slots = [np.asarray(v.value) for v in self.optimizer.variables]
        rate = self.optimizer._learning_rate
        self.rate = next(i for i, v in enumerate(self.optimizer.variables) if v is rate)
        self.step = jax.jit(self._step, donate_argnums=(0, 1))

    def _step(self, weights, slots, gradients, rate, beta_1, beta_2, decay):
        slots = [rate if i == self.rate else slot for i, slot in enumerate(slots)]
        with self._traced(beta_1, beta_2, decay):
            return self.optimizer.stateless_apply(slots, gradients, weights)

    @contextlib.contextmanager
    def _traced(self, beta_1, beta_2, decay):
        """The optimizer with these numbers, which a program that is traced takes as arguments."""
        own = self.optimizer
        if self.schedule is None:  # Keras's: attributes
            before = own.beta_1, own.beta_2, own.weight_decay
            own.beta_1, own.beta_2, own.weight_decay = beta_1, beta_2, decay
            yield
            own.beta_1, own.beta_2, own.weight_decay = before
            return
        before, self.schedule.value = own._update.rule, decay
        takes = inspect.signature(own.rule.step).parameters
        given = {"momentum": beta_1, "beta_1": beta_1, "beta_2": beta_2}
        given = {key: value for key, value in given.items() if key in takes and self.is_traced}
        own._update.rule = functools.partial(before, **given)
        with mock.patch.object(shared, "bias_divisor", _bias_divisor):
            yield
        own._update.rule, self.schedule.value = before, 1.0


def _bias_divisor(xp, beta, t):
    """1 - beta^t of a beta in float32; `bias_divisor` asks more of it while it is traced."""
    return -xp.expm1(t * xp.log(beta))


class Held(keras.optimizers.schedules.LearningRateSchedule):
    """A weight decay that a program is told."""

    value = 1.0

    def __call__(self, step):
        """The decay of any step."""
        return self.value

    def get_config(self):
        """Nothing: it is not saved."""
        return {}


def run(task: Task, update: Update, settings: Settings, recipe, seed: int, looks: int) -> dict:
    """Losses, and the seconds of training without those of evaluation and compilation."""
    sizes = np.repeat([s.batch_size for s in recipe.stages], [s.train_steps for s in recipe.stages])
    rates = recipe.schedule(schedules).value(np, np.arange(len(sizes))).astype("float32")
    compiled = prepare(task, update, sorted(set(map(int, sizes))))
    order = ordered(task, seed)
    begins = np.cumsum(sizes) - sizes
    ends = [len(sizes) * i // looks for i in range(1, looks + 1)]
    own = [jnp.float32(each) for each in (settings.beta_1, settings.beta_2, settings.weight_decay)]
    weights, slots, total = jax.block_until_ready(begin(task, update, seed))
    losses, seconds = [], [0.0]
    for first, last in itertools.pairwise([0, *ends]):
        since = time.perf_counter()
        for i in range(first, last):
            total = task.gradient(weights, total, order, begins[i], int(sizes[i]))
            weights, slots = update.step(weights, slots, total, rates[i], *own)
        jax.block_until_ready(weights)
        seconds.append(seconds[-1] + time.perf_counter() - since)
        losses.append(task.tell(weights, "validation", FROZEN["look_examples"]))
        if not math.isfinite(losses[-1]):
            break
    found = {
        "updates": ends[: len(losses)],
        "looks": [*map(_short, losses)],
        "at": [round(each, 3) for each in seconds[1:]],
        "seconds": round(seconds[-1], 3),
        "compilation": round(compiled, 2),
        "tokens_a_second": round(int(sizes[: ends[len(losses) - 1]].sum())
                                 * task.sizes["tokens"] / seconds[-1]),
        "validation": None,
        "test": None,
    }  # fmt: skip
    if math.isfinite(losses[-1]):
        found |= {part: _short(task.tell(weights, part)) for part in ("validation", "test")}
    return found


def begin(task: Task, update: Update, seed: int):
    """Weights, slots and an array of sums for the gradients, on the device, to be taken over."""
    weights = [jnp.array(each) for each in task.weights(seed)]
    slots = [jnp.array(each) for each in update.slots]
    return weights, slots, [jnp.zeros_like(each) for each in weights]


def ordered(task: Task, seed: int):
    """The order in which the examples of a seed come."""
    return jnp.asarray(np.random.default_rng(seed).permutation(len(task.x)).astype("int32"))


def prepare(task: Task, update: Update, sizes: list[int]) -> float:
    """The seconds in which programs are compiled that are not yet."""
    wanted = {*map(task.micro_of, sizes), update}
    if wanted <= task.compiled:
        return 0.0
    since = time.perf_counter()
    weights, slots, total = begin(task, update, FROZEN["search"]["seed"])
    for size in wanted - task.compiled - {update}:
        total = task.gradient(weights, total, ordered(task, 0), 0, size)
    none = [np.float32(0)] * 4
    weights, slots = update.step(weights, slots, total, *none)
    jax.block_until_ready(weights)
    task.compiled |= wanted
    return time.perf_counter() - since


def seconds_of_a_step(task: Task, update: Update, size: int) -> dict:
    """The median of three times some steps each, after the compilation."""
    compiled = prepare(task, update, [size])
    count = max(1, min(32, 8192 // size))
    weights, slots, total = begin(task, update, FROZEN["search"]["seed"])
    order = jax.block_until_ready(ordered(task, FROZEN["search"]["seed"]))
    own = [jnp.float32(each) for each in (1e-4, 0.9, 0.99, 0.0)]
    times = []
    for _ in range(3):
        since = time.perf_counter()
        for i in range(count):
            at = i * size % (len(order) - size + 1)
            total = task.gradient(weights, total, order, at, size)
            weights, slots = update.step(weights, slots, total, *own)
        jax.block_until_ready(weights)
        times.append((time.perf_counter() - since) / count)
    step = float(np.median(times))
    rate = size * task.sizes["tokens"] / step
    return {
        "seconds_a_step": float(f"{step:.4g}"),
        "tokens_a_second": round(rate),
        "tflops": round(rate * task.operations / 1e12, 1),
        "compilation": round(compiled, 2),
    }


def _short(number):
    return float(f"{number:.6g}") if math.isfinite(number) else None
