"""Fixed gradients for an optimizer of either frontend, so that a reference sees the very same.

Steps are taken operation by operation unless a test asks for a traced one: for so few numbers that
is by far the quickest.
"""

import contextlib

import keras
import numpy as np
from support.frontends import BACKEND, FRONTENDS, array, uncompiled

if BACKEND == "tensorflow":
    import tensorflow as tf
    from support.clusters import mirrored, native

# Replicas, micro-batches.
LAYOUTS = {"one device": (1, 1), "micro-batches": (1, 3)}
if BACKEND == "tensorflow":
    LAYOUTS |= {"replicas": (2, 1), "replicas and micro-batches": (2, 2)}
START = {"kernel": np.array([[0.5, -0.3], [0.2, 0.8]]), "bias": np.array([0.1, -0.2])}


def gradients(steps, parts, seed=0, spread=1.0):
    """Of each step, of each part, a gradient for each variable: noise around a signal."""
    rng = np.random.default_rng(seed)
    return [
        [
            {k: (0.4 + spread * rng.normal(size=w.shape)).astype("float32")
             for k, w in START.items()}
            for _ in range(parts)
        ]
        for _ in range(steps)
    ]  # fmt: skip


def mean_of(parts):
    return {k: sum(p[k].astype(np.float64) for p in parts) / len(parts) for k in parts[0]}


def maker(frontend, name="LARS", rate=0.1, host=False, micro=1, **own):
    """A function that makes the named optimizer, of the host or ours."""
    hosts, ours = FRONTENDS[frontend]
    kind = getattr(hosts.optimizers if host else ours, name)
    if micro > 1:
        own["gradient_accumulation_steps"] = micro
    if not host:
        own = {"jit_compile": False, **own}
    if name == "SOAP":
        own = {"form": {"renewal": "qr"}, **own}  # its authors', as the oracle's is
    return lambda: kind(rate, **own)


def scaled(frontend, micro=4, scale=4.0, inner="LARS", rate=0.1, host=False, own=(), **more):
    """A function that makes AdaScale around the named optimizer."""
    make = maker(frontend, inner, rate, host, micro, **dict(own))
    return lambda: FRONTENDS[frontend][1].AdaScale(make(), scale, **more)


class Feed:
    """An optimizer beside two variables, under a strategy if there are replicas.

    With `traced`, a step is a graph of TensorFlow's; on JAX, what a plain call compiles.
    """

    leaves_out = False  # what has a gradient of None

    def __init__(self, frontend, make, replicas=1, dtype="float32", traced=False, strategy=None):
        self.replicas, self.traced = replicas, traced
        self.strategy = strategy or (mirrored(replicas) if replicas > 1 else None)
        with self.strategy.scope() if self.strategy else contextlib.nullcontext():
            kind = keras.Variable if frontend == "keras" else tf.Variable
            self.variables = [kind(w, dtype=dtype, name=k) for k, w in START.items()]
            self.optimizer = make()
            self.optimizer.build(self.variables)
        in_graph = traced and BACKEND == "tensorflow"
        self.call = tf.function(self._call) if in_graph else self._call

    def _call(self, *gradients):
        if self.strategy:
            self.strategy.run(self.apply, args=(gradients,))
        else:
            self.apply(gradients)

    def apply(self, gradients):
        """What a replica does."""
        # As those of a tape, they are on the replica's device.
        gradients = [g if g is None or not self.strategy else tf.identity(g) for g in gradients]
        pairs = zip(gradients, self.variables, strict=True)
        self.optimizer.apply_gradients([
            (g, v) for g, v in pairs if g is not None or not self.leaves_out
        ])  # fmt: skip

    def tensors(self, parts, key, dtype="float32"):
        """What each replica has for a variable: the sum over replicas is the mean."""
        values = [p[key] if p[key] is None else p[key] / self.replicas for p in parts]
        if values[0] is None:
            return None
        if not self.strategy:
            return keras.ops.convert_to_tensor(values[0], dtype)
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(values[context.replica_id_in_sync_group], dtype)
        )

    def step(self, parts):
        """Part i is replica i of its micro-batch."""
        with contextlib.nullcontext() if self.traced else uncompiled():
            for first in range(0, len(parts), self.replicas):
                micro = parts[first : first + self.replicas]
                dtypes = [keras.backend.standardize_dtype(v.dtype) for v in self.variables]
                self.call(*(self.tensors(micro, k, d) for k, d in zip(START, dtypes, strict=True)))
        return self.optimizer

    def bits(self, but=()):
        """Every copy of every variable, as bytes, but of those whose name holds one of these."""
        own = [v for v in self.optimizer.variables if not any(name in v.name for name in but)]
        copies = self.strategy.experimental_local_results if self.strategy else lambda v: (v,)
        every = (v.value if isinstance(v, keras.Variable) else v for v in [*self.variables, *own])
        return [keras.ops.convert_to_numpy(copy).tobytes() for v in every for copy in copies(v)]

    def weights(self):
        return [array(native(v) if self.strategy else v).astype(np.float64) for v in self.variables]


def assert_never_been(met, spared, steps, spoil, but=()):
    """Two runs end alike, of which one has met each of these steps spoiled before."""
    for parts in steps:
        met.step(spoil(parts))
        met.step(parts)
        spared.step(parts)
    assert met.bits(but) == spared.bits(but)


def close(ours, expected, tolerance=1e-6):
    np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance)


def worker():
    """What a worker of two saw of AdaScale, in two micro-batches: the gains, then the weights."""
    strategy, seen = tf.distribute.MultiWorkerMirroredStrategy(), {}
    for frontend in FRONTENDS:
        make = scaled(frontend, 2, 4.0, "LAMB", own={"weight_decay": 0.1}, preconditioned=False)
        feed = Feed(frontend, make, 2, traced=True, strategy=strategy)
        steps = []
        for parts in gradients(4, 4):
            optimizer = feed.step(parts)
            steps.append((optimizer.gain, optimizer.base_steps))
        seen[frontend] = {"steps": steps, "weights": [w.tolist() for w in feed.weights()]}
    return seen
