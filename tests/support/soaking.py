"""Many cheap steps of one optimizer in one program: rows that are rare, columns that die, spikes.

Gradients come from tables, not from a loss: what they hold is the same for every optimizer, dtype
and framework, and a step costs next to nothing.
"""

import contextlib
import functools

import keras
import numpy as np
from support.frontends import BACKEND, FRONTENDS, array, dtype_of, new_variable

ROWS, WIDTH, COLUMNS, TOKENS = 48, 4, 6, 6
SHAPES = {
    "embedding/embeddings": (ROWS, WIDTH), "dense/kernel": (WIDTH, COLUMNS),
    "dense/bias": (COLUMNS,), "unused/kernel": (WIDTH, COLUMNS),
}  # fmt: skip
# The size of gradients in each part of a run.
SIZES = (1, 1e-3, 1e-30, 1e-15, 1e-6, 1, 1e3, 1e15, 1, 1e-30)
BROKEN = (np.nan, np.inf, -np.inf, 1e25)  # whose squares are not finite in float32
MODES = {
    "plain": {},
    "accumulating": {"gradient_accumulation_steps": 4},
    "averaging": {"use_ema": True, "ema_momentum": 0.99, "ema_overwrite_frequency": 500},
    "masters": {"masters": "float32", "gradient_accumulation_steps": 2},
    "replicas": {},  # two of TensorFlow's
    "sharing": {"shard_update": True},  # two devices of JAX
}


@functools.cache
def tables(steps, seed=0):
    """Of each step: tokens by Zipf's law, what their rows and the kernel get, and its size."""
    random = np.random.default_rng(seed)
    size = np.repeat(SIZES, -(-steps // len(SIZES)))[:steps]
    size = size * np.exp(random.normal(size=steps))
    broken = random.uniform(size=steps) < 0.005
    size[broken] = random.choice(BROKEN, size=broken.sum())
    last = steps * np.array([1, 0, 0.01, 0.1, 0.3, 0.7])  # steps at which a column dies
    lives = np.arange(steps)[:, None] < last
    return {
        "tokens": (random.zipf(1.2, size=(steps, TOKENS)) - 1) % ROWS,
        "rows": random.normal(size=(steps, TOKENS, WIDTH)),
        "kernel": random.normal(size=(steps, WIDTH, COLUMNS)) * lives[:, None],
        "size": size,
    }


def gradients(tables, t):
    """Of each variable, at step t."""
    now = {name: keras.ops.take(table, t, axis=0) for name, table in tables.items()}
    chosen = keras.ops.transpose(keras.ops.one_hot(now["tokens"], ROWS, dtype=now["rows"].dtype))
    kernel = now["kernel"] * now["size"]
    return [
        keras.ops.matmul(chosen, now["rows"]) * now["size"], kernel,
        keras.ops.sum(kernel, axis=0), keras.ops.zeros_like(kernel),
    ]  # fmt: skip


class Soak:
    """An optimizer, its variables, and a program that takes many steps and looks at each.

    Attributes:
        steps: how many have been taken.
        seen: how many left something that is not finite; how many took no update, but changed a
            weight or what belongs to one.
    """

    def __init__(
        self, frontend, name, steps, seed=0, dtype="float32", compiled=False, strategy=None,
        slots="float32", masters=None, **arguments,
    ):  # fmt: skip
        self.length, self.steps, self.compiled, self.strategy = steps, 0, compiled, strategy
        random = np.random.default_rng(seed)
        start = {path: random.normal(size=shape) for path, shape in SHAPES.items()}
        with strategy.scope() if strategy else contextlib.nullcontext():
            self.variables = [new_variable(frontend, w, dtype, path) for path, w in start.items()]
            self.optimizer = getattr(FRONTENDS[frontend][1], name)(
                1e-3, weight_decay=0.01, dtypes={"slots": slots, "masters": masters}, **arguments
            )
            self.optimizer.build(self.variables)
        self.micro = arguments.get("gradient_accumulation_steps", 1)
        self.seen = np.zeros(2, int)
        self.tables = tables(steps, seed)
        wide = {"bfloat16": "float32"}.get(dtype, dtype)
        self._held = {
            key: keras.ops.convert_to_tensor(table, "int32" if key == "tokens" else wide)
            for key, table in self.tables.items()
        }
        self._program = self._on_jax() if BACKEND == "jax" else self._on_tensorflow()

    def run(self, steps=None):
        """Takes so many further steps, or all that are left."""
        end = self.length if steps is None else self.steps + steps
        self.seen += self._program(self.steps, end)
        self.steps = end
        return self

    @property
    def all_variables(self):
        own = self.optimizer.variables
        return [*self.variables, *(own() if callable(own) else own)]

    def is_kept(self, variable):
        """Whether a step that is not taken leaves it alone: all that is not counted or added up."""
        path = getattr(variable, "path", variable.name)
        return "float" in dtype_of(variable) and "accumulator" not in path

    def expected_skips(self):
        """How many updates the tables have so far that cannot be taken."""
        wide = "float64" if dtype_of(self.variables[0]) == "float64" else "float32"
        with np.errstate(over="ignore"):
            fine = np.isfinite(np.square(self.tables["size"][: self.steps].astype(wide)))
        whole = len(fine) // self.micro * self.micro
        return int(np.sum(~fine[:whole].reshape(-1, self.micro).all(axis=1)))

    def numbers(self):
        """All weights and slots, one after the other."""
        return np.concatenate(
            [array(v).astype("float64").ravel() for v in self.all_variables if self.is_kept(v)]
        )

    def _look(self, before, after, taken):
        """Counts for one step, from what is kept before and after it."""
        ops = keras.ops
        finite = ops.all(ops.stack([ops.all(ops.isfinite(v)) for v in after]))
        pairs = zip(before, after, strict=True)
        same = ops.all(ops.stack([ops.all(ops.equal(old, new)) for old, new in pairs]))
        return ops.cast(ops.stack([~finite, ~(taken | same)]), "int32")

    def _on_jax(self):
        import jax

        kept = [self.is_kept(v) for v in self.all_variables]
        count = len(self.variables)

        def of(values):
            return [value for value, is_kept in zip(values, kept, strict=True) if is_kept]

        def step(t, carry):
            values, seen = carry
            new = self.optimizer.stateless_apply(
                values[count:], gradients(self._held, t), values[:count]
            )
            new = [*new[0], *new[1]]
            before, after = values[count], new[count]  # iterations
            return new, seen + self._look(of(values), of(new), after > before)

        @jax.jit
        def program(begin, end, values):
            return jax.lax.fori_loop(begin, end, step, (values, jax.numpy.zeros(2, "int32")))

        def run(begin, end):
            values, seen = program(begin, end, [v.value for v in self.all_variables])
            for variable, value in zip(self.all_variables, values, strict=True):
                variable.assign(value)
            return np.asarray(seen)

        return run

    def _on_tensorflow(self):
        import tensorflow as tf

        kept = [v for v in self.all_variables if self.is_kept(v)]
        strategy = self.strategy or tf.distribute.get_strategy()

        @tf.autograph.experimental.do_not_convert
        def apply(gradients):
            # Computed here, where the replica's device is known.
            parts = [g / strategy.num_replicas_in_sync for g in gradients]
            pairs = zip(parts, self.variables, strict=True)
            self.optimizer.apply_gradients([(tf.cast(g, dtype_of(v)), v) for g, v in pairs])

        def step(t, seen):
            before = [tf.identity(tf.convert_to_tensor(v)) for v in kept]
            count = tf.identity(tf.convert_to_tensor(self.optimizer.iterations))
            with tf.control_dependencies([count, *before]):
                strategy.run(apply, args=(gradients(self._held, t),))
            after = [tf.convert_to_tensor(v) for v in kept]
            taken = tf.convert_to_tensor(self.optimizer.iterations) > count
            return t + 1, seen + self._look(before, after, taken)

        @tf.function(autograph=False, jit_compile=self.compiled or None)
        def program(begin, end):
            start = (begin, tf.zeros(2, tf.int32))
            return tf.while_loop(lambda t, seen: t < end, step, start)[1]

        return lambda begin, end: program(tf.constant(begin), tf.constant(end)).numpy()
