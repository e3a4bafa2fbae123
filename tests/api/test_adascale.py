"""AdaScale and Measured behind both doors, against float64 NumPy written from the papers.

Two ways to train: `feed` hands fixed gradients to an optimizer, so that the reference sees the very
same; `fit` trains a linear regression, whose gradients NumPy knows.
"""

import contextlib
import json
import math
import os
import warnings

import keras
import numpy as np
import pytest

import tf_lamb.keras

BACKEND = keras.backend.backend()
DOORS = {"keras": (keras, tf_lamb.keras)}
if BACKEND == "tensorflow":
    import tensorflow as tf
    import tf_keras
    from support import clusters
    from support.clusters import mirrored, native

    import tf_lamb.tf_keras

    DOORS["tf_keras"] = (tf_keras, tf_lamb.tf_keras)

on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="needs TensorFlow")
every_door = pytest.mark.parametrize("door", DOORS)
START = {"kernel": np.array([[0.5, -0.3], [0.2, 0.8]]), "bias": np.array([0.1, -0.2])}


# --- The references: numbers only, in float64 ---


class AdaScale:
    """Algorithm 2 of Johnson et al.; with `previous`, adaptdl's for a step of one part."""

    def __init__(self, scale, averaging="paper", previous=False, power=1.0):
        self.scale, self.averaging, self.power = scale, averaging, power
        self.previous = [] if previous else None
        self.samples, self.r, self.tau = [], 1.0, 0.0

    def observe(self, parts):
        """Keeps clipped estimates of sigma^2 and mu^2."""
        parts = [flat(p) for p in parts]
        if self.previous is not None:
            (now,), before = parts, self.previous
            self.previous = [now]
            if not before:
                return
            local, total = (before[0] @ before[0] + now @ now) / 2, ((before[0] + now) / 2) ** 2
            variance = (local - total.sum()) * 2 * self.scale
            signal = 2 * total.sum() - local
        else:
            n, mean = len(parts), sum(parts) / len(parts)
            spread = sum(p @ p for p in parts) - n * (mean @ mean)
            variance = spread / (n - 1) * self.scale / n
            signal = mean @ mean - variance / self.scale
        self.samples.append((max(variance, 1e-6), max(signal, 0.0)))

    def averages(self):
        theta, t = max(1 - self.scale / 1000, 0.0), len(self.samples)
        if self.averaging == "debiased":
            ages = np.arange(t)[::-1]
            return np.average(self.samples, axis=0, weights=(1 - theta) * theta**ages)
        full = math.floor(1 / (1 - theta))
        x = np.mean(self.samples[:full], axis=0)
        for sample in self.samples[full:]:
            x = theta * x + (1 - theta) * np.array(sample)
        return x

    def step(self, parts, measured=True):
        """The learning rate over that of the base batch; None for no step at all."""
        if measured:
            self.observe(parts)
        if len(self.samples) > (1 if self.averaging == "paper" else 0):
            variance, signal = self.averages()
            self.r = (variance + signal) / (variance / self.scale + signal)
        self.tau += self.r
        return self.r**self.power


def flat(part):
    return np.concatenate([np.ravel(part[k]).astype(np.float64) for k in sorted(part)])


def noise_scale(steps, batch, theta=0.99, keys=None):
    """McCandlish et al.: B_simple, both estimates averaged with their signs, then divided."""
    both = []
    for parts in steps:
        parts = [flat({k: p[k] for k in keys or p}) for p in parts]
        n, small = len(parts), batch / len(parts)
        local = sum(p @ p for p in parts) / n
        mean = sum(parts) / n
        signal = (batch * (mean @ mean) - small * local) / (batch - small)
        both.append(((local - mean @ mean) / (1 / small - 1 / batch), signal))
    ages = np.arange(len(both))[::-1]
    variance, signal = np.average(both, axis=0, weights=theta**ages)
    return variance / signal


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


# --- Feeding gradients ---


class Feed:
    """An optimizer beside two variables, under a strategy if there are replicas."""

    def __init__(self, door, make, replicas=1, dtype="float32", graph=True, strategy=None):
        self.replicas, self.graph = replicas, graph and BACKEND == "tensorflow"
        self.strategy = strategy or (mirrored(replicas) if replicas > 1 else None)
        with self.strategy.scope() if self.strategy else contextlib.nullcontext():
            if door == "keras":
                self.variables = [keras.Variable(w, dtype=dtype, name=k) for k, w in START.items()]
            else:
                self.variables = [tf.Variable(w, dtype=dtype, name=k) for k, w in START.items()]
            self.optimizer = make()
            self.optimizer.build(self.variables)
        self.call = tf.function(self._call) if self.graph else self._call

    def _call(self, *gradients):
        def apply(gradients):
            # As those of a tape, they are on the replica's device.
            gradients = [g if g is None or not self.strategy else tf.identity(g) for g in gradients]
            self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))

        if self.strategy:
            self.strategy.run(apply, args=(gradients,))
        else:
            apply(gradients)

    def _tensors(self, parts, key, dtype):
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
        for first in range(0, len(parts), self.replicas):
            micro = parts[first : first + self.replicas]
            dtypes = [keras.backend.standardize_dtype(v.dtype) for v in self.variables]
            self.call(*(self._tensors(micro, k, d) for k, d in zip(START, dtypes, strict=True)))
        return self.optimizer

    def weights(self):
        return [array(native(v) if self.strategy else v) for v in self.variables]


def array(variable):
    if isinstance(variable, keras.Variable):
        variable = variable.value
    if hasattr(variable, "numpy"):
        return np.array(variable.numpy()).astype(np.float64)
    return np.asarray(variable).astype(np.float64)


def close(ours, expected, tolerance=1e-6):
    np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance)


# Replicas, micro-batches.
LAYOUTS = {"1x4": (1, 4)}
if BACKEND == "tensorflow":
    LAYOUTS |= {"2x1": (2, 1), "4x1": (4, 1), "2x2": (2, 2)}


def maker(door, inner="LARS", rate=0.1, host=False, micro=1, **own):
    """A function that makes the named optimizer; ours do not compile, which takes seconds."""
    hosts, ours = DOORS[door]
    kind = getattr(hosts.optimizers if host else ours, inner)
    if micro > 1:
        own["gradient_accumulation_steps"] = micro
    return lambda: kind(rate, **({} if host else {"jit_compile": False}), **own)


def wrapped(door, replicas, micro, scale=4.0, inner="LARS", rate=0.1, host=False, own=(), **more):
    """A function that makes AdaScale around the named optimizer."""
    make = maker(door, inner, rate, host, micro, **dict(own))
    return lambda: DOORS[door][1].AdaScale(make(), scale, **more)


@pytest.mark.parametrize(
    ("layout", "averaging"), [*((layout, "paper") for layout in LAYOUTS), ("1x4", "debiased")]
)
@every_door
def test_gain_and_tau_are_the_papers(door, layout, averaging):
    replicas, micro = LAYOUTS[layout]
    feed = Feed(door, wrapped(door, replicas, micro, averaging=averaging), replicas)
    reference, n = AdaScale(4.0, averaging), replicas * micro
    assert (feed.optimizer.gain, feed.optimizer.scale_invariant_steps) == (1.0, 0.0)
    for parts in gradients(6, n):
        reference.step(parts)
        optimizer = feed.step(parts)
        assert (optimizer.parts, optimizer.biased) == (n, False)
        close(optimizer.gain, reference.r)
        close(optimizer.scale_invariant_steps, reference.tau)
    assert 1 < reference.r < 4
    assert optimizer.updates == 6


@every_door
def test_all_layouts_of_one_batch_are_one(door):
    """The same four parts, as micro-batches, as replicas and as both."""
    seen = {}
    for layout, (replicas, micro) in LAYOUTS.items():
        if replicas * micro == 4:
            feed = Feed(door, wrapped(door, replicas, micro), replicas)
            for parts in gradients(4, 4):
                feed.step(parts)
            optimizer = feed.optimizer
            seen[layout] = [optimizer.gain, optimizer.scale_invariant_steps, *feed.weights()]
    for values in seen.values():
        for value, expected in zip(values, seen["1x4"], strict=True):
            close(value, expected)


def test_a_long_memory_becomes_exponential():
    """Of scale 250, theta = 0.75: the plain mean of 4 steps, then an exponential average."""
    feed = Feed("keras", wrapped("keras", 1, 2, scale=250.0))
    reference = AdaScale(250.0)
    for parts in gradients(8, 2):
        reference.step(parts)
        close(feed.step(parts).gain, reference.r, 2e-6)


def test_corner_cases_of_the_gain():
    same = [gradients(1, 1)[0][0]] * 2
    opposite = [same[0], {k: -g for k, g in same[0].items()}]
    for parts, r in ((same, 1.0), (opposite, 2.0)):
        feed = Feed("keras", wrapped("keras", 1, 2, scale=2.0, averaging="debiased"))
        close(feed.step(parts).gain, r, 1e-5)
    feed = Feed("keras", wrapped("keras", 1, 2, scale=1.0, averaging="debiased"))
    for parts in gradients(3, 2):
        assert feed.step(parts).gain == 1.0


# Inner optimizers: name, whether of the host, arguments, power of the gain, measured from.
INNER = {
    "Keras SGD": ("SGD", True, {"momentum": 0.9}, {}, 1.0),
    "LARS": ("LARS", False, {"trust_coefficient": 0.1}, {}, 1.0),
    "SGDP": ("SGDP", False, {"momentum": 0.9}, {}, 1.0),
    "LAMB, plainly": ("LAMB", False, {"weight_decay": 0.1}, {"preconditioned": False}, 1.0),
    "LAMB": ("LAMB", False, {"weight_decay": 0.1, "epsilon": 1e-3}, {}, 0.5),
    "AdamP": ("AdamP", False, {"epsilon": 1e-3, "beta_2": 0.9}, {}, 0.5),
    "Keras Adam": ("Adam", True, {"epsilon": 1e-3}, {}, 0.5),
    "Keras AdamW": ("AdamW", True, {"epsilon": 1e-3, "weight_decay": 0.1}, {}, 0.5),
}
UNMEASURED = 5


@pytest.mark.parametrize("name", INNER)
@every_door
def test_the_inner_optimizer_steps_at_the_scaled_rate(door, name):
    """Weights equal those of the inner optimizer alone, given the learning rate by hand."""
    inner, host, own, outer, power = INNER[name]
    replicas, micro = (2, 1) if BACKEND == "tensorflow" else (1, 2)
    if not host or (door == "keras" and BACKEND != "tensorflow"):
        replicas, micro = 1, 2
    make = wrapped(door, replicas, micro, inner=inner, host=host, own=own, rate=0.05, **outer)
    feed = Feed(door, make, replicas)
    alone = Feed(door, maker(door, inner, 0.05, host, **own), graph=False)
    reference = AdaScale(4.0, power=power)
    v, beta = dict.fromkeys(START, 0.0), own.get("beta_2", 0.999)
    for t, parts in enumerate(gradients(9, 2)):
        weighed = parts
        if power == 0.5 and t:
            roots = {k: np.sqrt(v[k] / (1 - beta**t)) + own["epsilon"] for k in v}
            weighed = [{k: p[k] / roots[k] for k in p} for p in parts]
        factor = reference.step(weighed, measured=power == 1 or t >= UNMEASURED)
        mean = mean_of(parts)
        v = {k: beta * v[k] + (1 - beta) * mean[k] ** 2 for k in v}
        optimizer = feed.step(parts)
        close(optimizer.gain, reference.r, 2e-6)
        close(optimizer.scaled_learning_rate, 0.05 * factor, 2e-6)
        alone.optimizer.learning_rate = 0.05 * factor
        alone.step([mean])
        for ours_, expected in zip(feed.weights(), alone.weights(), strict=True):
            close(ours_, expected, 2e-6)
    assert optimizer.power == power
    assert reference.r > 1
    assert float(array(optimizer.learning_rate)) == pytest.approx(0.05)


@pytest.mark.filterwarnings("ignore:AdaScale with previous_gradient")
@pytest.mark.parametrize("averaging", ["paper", "debiased"])
@every_door
def test_the_step_before_as_the_second_part(door, averaging):
    make = wrapped(door, 1, 1, previous_gradient=True, averaging=averaging)
    feed, reference = Feed(door, make), AdaScale(4.0, averaging, previous=True)
    for i, parts in enumerate(gradients(6, 1)):
        reference.step(parts)
        optimizer = feed.step(parts)
        assert optimizer.biased
        assert i or optimizer.gain == 1.0
        close(optimizer.gain, reference.r)
        close(optimizer.scale_invariant_steps, reference.tau)
    assert reference.r > 1


# --- Schedules and callbacks ---


@every_door
def test_a_schedule_reads_whole_steps_of_the_base_batch(door):
    schedules = DOORS[door][0].optimizers.schedules
    boundaries, values = [3, 9], [0.1, 0.05, 0.025]
    # Keras holds a value up to and including its boundary.
    schedule = schedules.PiecewiseConstantDecay([b - 1 for b in boundaries], values)
    feed = Feed(door, wrapped(door, 1, 4, rate=schedule, own={"weight_decay": 0.0}))
    alone = Feed(door, maker(door), graph=False)
    reference, rates = AdaScale(4.0), []
    for parts in gradients(6, 4):
        at = math.floor(reference.tau)
        rates.append(values[sum(at >= b for b in boundaries)])
        alone.optimizer.learning_rate = rates[-1] * reference.step(parts)
        feed.step(parts)
        alone.step([mean_of(parts)])
        for ours, expected in zip(feed.weights(), alone.weights(), strict=True):
            close(ours, expected, 2e-6)
    assert sorted(set(rates)) == sorted(values)
    with pytest.raises(TypeError, match="is a schedule; a number cannot be put in its place"):
        feed.optimizer.learning_rate = 0.1


@every_door
def test_the_learning_rate_can_be_set_between_steps(door):
    feed, reference = Feed(door, wrapped(door, 1, 4)), AdaScale(4.0)
    alone = Feed(door, maker(door), graph=False)
    assert float(array(feed.optimizer.scaled_learning_rate)) == pytest.approx(0.1)
    for i, parts in enumerate(gradients(4, 4)):
        rate = 0.1 / 2**i
        feed.optimizer.learning_rate = rate
        alone.optimizer.learning_rate = rate * reference.step(parts)
        feed.step(parts)
        alone.step([mean_of(parts)])
        assert float(array(feed.optimizer.learning_rate)) == pytest.approx(rate)
        close(array(feed.optimizer.scaled_learning_rate), rate * reference.r, 2e-6)
    for ours, expected in zip(feed.weights(), alone.weights(), strict=True):
        close(ours, expected, 2e-6)


@every_door
def test_scaled_learning_rate_before_the_first_step(door):
    optimizer = wrapped(door, 1, 4)()
    assert float(array(optimizer.scaled_learning_rate)) == pytest.approx(0.1)
    assert float(array(optimizer.learning_rate)) == pytest.approx(0.1)
    assert (optimizer.gain, optimizer.scale_invariant_steps) == (1.0, 0.0)


# --- Fitting a regression ---

EXAMPLES = 64
X = np.random.default_rng(1).normal(size=(EXAMPLES, 2)).astype("float32")
Y = (X @ [[1.0, -1.0], [0.5, 2.0]] + np.random.default_rng(2).normal(size=(EXAMPLES, 2))).astype(
    "float32"
)


def regression(door, optimizer, replicas=1, layers=(), **compile_arguments):
    """A linear regression that begins at START, compiled with what `optimizer` makes."""
    host = DOORS[door][0]
    with mirrored(replicas).scope() if replicas > 1 else contextlib.nullcontext():
        model = host.Sequential(
            [host.layers.InputLayer((2,)), *layers, host.layers.Dense(2, name="head")]
        )
        model.get_layer("head").set_weights(list(START.values()))
        model.compile(optimizer=optimizer(), loss="mse", **compile_arguments)
    return model


def fit(model, batch=8, epochs=2, **arguments):
    return model.fit(X, Y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, **arguments)


def weights_of(model):
    return [np.array(w) for w in model.get_weights()]


def parts_at(weights, step, size, parts):
    """The gradients of one update: `parts` batches of `size` examples."""
    w, b = (x.astype(np.float64) for x in weights)
    result = []
    for i in range(parts):
        first = (step * parts + i) * size % EXAMPLES
        x, y = (each[first : first + size].astype(np.float64) for each in (X, Y))
        error = 2 * (x @ w + b - y) / y.size
        result.append({"kernel": x.T @ error, "bias": error.sum(0)})
    return result


@pytest.mark.parametrize(
    "layout",
    [pytest.param(x, marks=pytest.mark.slow) if x in ("2x1", "4x1") else x for x in LAYOUTS],
)
@every_door
def test_fit_is_the_papers_loop(door, layout):
    """Data in, weights out: what replicas and losses are divided by is Keras's business."""
    replicas, micro = LAYOUTS[layout]
    n, size = replicas * micro, 4
    make = wrapped(door, replicas, micro, inner="SGDP", own={"momentum": 0.0, "delta": 0.0})
    model = regression(door, make, replicas)
    fit(model, batch=size * replicas, epochs=2)
    reference, w = AdaScale(4.0), [START["kernel"], START["bias"]]
    updates = 2 * EXAMPLES // (n * size)
    for step in range(updates):
        parts = parts_at(w, step, size, n)
        rate = 0.1 * reference.step(parts)
        mean = mean_of(parts)
        w = [w[0] - rate * mean["kernel"], w[1] - rate * mean["bias"]]
    optimizer = model.optimizer
    assert optimizer.updates == updates
    close(optimizer.gain, reference.r, 5e-6)
    close(optimizer.scale_invariant_steps, reference.tau, 5e-6)
    for ours, expected in zip(weights_of(model), w, strict=True):
        close(ours, expected, 5e-6)


@every_door
def test_nothing_is_traced_after_the_first_epoch(door, monkeypatch):
    model = regression(door, wrapped(door, 1, 2))
    calls, measure = [], type(model.optimizer)._measure
    monkeypatch.setattr(
        type(model.optimizer), "_measure", lambda *a, **k: calls.append(1) or measure(*a, **k)
    )
    fit(model, epochs=1)
    once = len(calls)
    fit(model, epochs=3)
    assert 0 < once == len(calls)


@every_door
def test_the_whole_step_compiled_is_the_step(door):
    seen = []
    for jit in (False, True):
        model = regression(door, wrapped(door, 1, 2), jit_compile=jit)
        fit(model)
        seen.append((model.optimizer.gain, model.optimizer.scale_invariant_steps,
                     *weights_of(model)))  # fmt: skip
    for plain, compiled in zip(*seen, strict=True):
        close(compiled, plain, 2e-6)


@every_door
def test_a_callback_lowers_the_rate_of_the_base_batch(door):
    host, _ = DOORS[door]
    model = regression(door, wrapped(door, 1, 2))
    lower = host.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1e3)
    fit(model, epochs=4, callbacks=[lower])
    assert float(array(model.optimizer.learning_rate)) == pytest.approx(0.1 / 2**3)
    gain = model.optimizer.gain
    assert gain > 1
    assert float(array(model.optimizer.scaled_learning_rate)) == pytest.approx(gain * 0.1 / 2**3)


@pytest.mark.filterwarnings("ignore:AdaScale with previous_gradient")
@pytest.mark.parametrize(
    ("biased", "scheduled"), [(False, True), (True, False)], ids=["parts", "previous gradient"]
)
@every_door
def test_saved_and_resumed_is_uninterrupted(door, biased, scheduled, tmp_path):
    host, _ = DOORS[door]
    rate = 0.1
    if scheduled:
        rate = host.optimizers.schedules.PolynomialDecay(0.1, 200)
    arguments = {"groups": ["bias"], "smoothing": 0.5, "averaging": "debiased"}
    make = wrapped(door, 1, 1 if biased else 2, inner="LAMB", previous_gradient=biased,
                   rate=rate, **arguments)  # fmt: skip
    whole = regression(door, make)
    fit(whole, epochs=2)
    part = regression(door, make)
    fit(part, epochs=1)
    part.save(tmp_path / "model.keras")
    resumed = host.models.load_model(tmp_path / "model.keras")
    assert resumed.optimizer.get_config() == part.optimizer.get_config()
    fit(resumed, epochs=1)
    assert_same(resumed, whole)


def assert_same(one, other):
    assert one.optimizer.gain == other.optimizer.gain > 1
    assert one.optimizer.scale_invariant_steps == other.optimizer.scale_invariant_steps
    assert one.optimizer.noise_of(8) == pytest.approx(other.optimizer.noise_of(8), nan_ok=True)
    assert one.optimizer.updates == other.optimizer.updates
    for w, expected in zip(weights_of(one), weights_of(other), strict=True):
        np.testing.assert_array_equal(w, expected)


@on_tensorflow
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
@every_door
def test_a_checkpoint_resumes(door, replicas, tmp_path):
    make = wrapped(door, replicas, 2, inner="LAMB")

    def fresh():
        model = regression(door, make, replicas)
        return model, tf.train.Checkpoint(model=model, optimizer=model.optimizer)

    whole, _ = fresh()
    fit(whole, epochs=4)
    part, checkpoint = fresh()
    fit(part, epochs=2)
    path = checkpoint.save(str(tmp_path / "ckpt"))
    resumed, checkpoint = fresh()
    with resumed.distribute_strategy.scope():
        resumed.optimizer.build(resumed.trainable_variables)
    checkpoint.restore(path).assert_existing_objects_matched()
    assert resumed.optimizer.scale_invariant_steps == part.optimizer.scale_invariant_steps > 0
    fit(resumed, epochs=2)
    assert_same(resumed, whole)


@every_door
def test_the_config_makes_the_optimizer_again(door):
    host, ours = DOORS[door]
    schedule = host.optimizers.schedules.PolynomialDecay(0.1, 10, power=2.0)
    optimizer = ours.AdaScale(
        ours.LARS(schedule, gradient_accumulation_steps=2), 8, averaging="debiased",
        groups=["bias"], smoothing=0.9, preconditioned=False, name="mine",
    )  # fmt: skip
    for again in (
        ours.AdaScale.from_config(optimizer.get_config()),
        host.optimizers.deserialize(host.optimizers.serialize(optimizer)),
        host.optimizers.deserialize(json.loads(json.dumps(host.optimizers.serialize(optimizer)))),
    ):
        assert again.get_config() == optimizer.get_config()
        assert type(again.inner_optimizer) is ours.LARS
        assert again.scale == 8.0
    measured = ours.Measured(host.optimizers.SGD(0.1), previous_gradient=True, groups=["bias"])
    again = ours.Measured.from_config(measured.get_config())
    assert again.get_config() == measured.get_config()


@every_door
def test_no_variable_is_kept_twice(door):
    feed = Feed(door, wrapped(door, 1, 4, inner="LAMB"))
    feed.step(gradients(1, 4)[0])
    keys = [id(v) for v in feed.optimizer.variables]
    assert len(keys) == len(set(keys))
    assert len(feed.optimizer.get_config()) == 8


@every_door
def test_a_scale_set_in_mid_run_keeps_the_averages(door):
    """They are those of a base batch; the gain is the formula's of the new scale."""
    feed, reference = Feed(door, wrapped(door, 1, 4), graph=False), AdaScale(4.0)
    for i, parts in enumerate(gradients(6, 4)):
        if i == 3:
            feed.optimizer.scale = 8.0
            reference.scale = 8.0
        reference.step(parts)
        close(feed.step(parts).gain, reference.r)
    close(feed.optimizer.scale_invariant_steps, reference.tau)
    with pytest.raises(ValueError, match="scale must be a number in"):
        feed.optimizer.scale = 0.5
    assert feed.optimizer.scale == 8.0


# --- Gradients that are not as they should be ---


@pytest.mark.parametrize(
    ("layout", "bad"),
    [(layout, np.inf) for layout in LAYOUTS if layout != "4x1"]
    + [("previous gradient", np.inf), ("previous gradient", np.nan)],
)
@every_door
def test_a_step_that_is_not_finite_changes_nothing(door, layout, bad):
    biased = layout == "previous gradient"
    replicas, micro = (1, 1) if biased else LAYOUTS[layout]
    make = wrapped(door, replicas, micro, previous_gradient=biased, averaging="debiased")
    feed = Feed(door, make, replicas)
    reference = AdaScale(4.0, "debiased", previous=biased)
    for i, parts in enumerate(gradients(6, replicas * micro)):
        if i == 3:
            parts[-1]["kernel"][0, 0] = bad
            before = [array(feed.optimizer._state[k]) for k in feed.optimizer._state]
        else:
            reference.step(parts)
        optimizer = feed.step(parts)
        close(optimizer.gain, reference.r)
        close(optimizer.scale_invariant_steps, reference.tau)
        if i == 3:
            after = [array(optimizer._state[k]) for k in optimizer._state]
            for one, other in zip(before, after, strict=True):
                np.testing.assert_array_equal(one, other)
    assert reference.r > 1


@every_door
def test_a_variable_without_a_gradient_counts_for_nothing(door):
    feed, reference = Feed(door, wrapped(door, 1, 4)), AdaScale(4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's own: it has no gradient
        for parts in gradients(3, 4):
            reference.step([{"kernel": p["kernel"]} for p in parts])
            optimizer = feed.step([{**p, "bias": None} for p in parts])
            close(optimizer.gain, reference.r)
    np.testing.assert_array_equal(feed.weights()[1], START["bias"].astype("float32"))


@every_door
def test_no_gradient_at_all_is_said(door):
    feed = Feed(door, wrapped(door, 1, 4), graph=False)
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        feed.step([dict.fromkeys(START)])


@every_door
def test_an_unknown_variable_is_said(door):
    feed = Feed(door, wrapped(door, 1, 4), graph=False)
    known = feed.variables
    stranger = Feed(door, wrapped(door, 1, 4), graph=False).variables
    feed.variables = stranger
    with pytest.raises(ValueError, match="Unknown variable|built for other variables"):
        feed.step(gradients(1, 4)[0])
    feed.variables = known
    for w, start in zip(feed.weights(), START.values(), strict=True):
        np.testing.assert_array_equal(w, start.astype("float32"))


@pytest.mark.parametrize("biased", [False, True], ids=["parts", "previous gradient"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@every_door
def test_other_precisions_are_summed_in_float32(door, dtype, biased):
    if dtype == "float64" and BACKEND == "jax" and not os.environ.get("JAX_ENABLE_X64"):
        pytest.skip("JAX_ENABLE_X64 is not set")
    n = 1 if biased else 4
    make = wrapped(door, 1, n, previous_gradient=biased, averaging="debiased")
    feed, reference = Feed(door, make, dtype=dtype), AdaScale(4.0, "debiased", previous=biased)
    for parts in gradients(4, n):
        for p in parts:
            for k in p:
                p[k] = array(keras.ops.cast(keras.ops.cast(p[k], dtype), "float32"))
        reference.step(parts)
        optimizer = feed.step(parts)
        assert {keras.backend.standardize_dtype(v.dtype) for v in optimizer._state.values()} == {
            "float32", "int32",
        }  # fmt: skip
        close(optimizer.gain, reference.r, 2e-6)


@on_tensorflow
@pytest.mark.parametrize("layout", ["1x4", "2x2"])
@every_door
def test_slices_are_their_dense_gradient(door, layout):
    """Of an embedding: a row that is looked up twice has the sum of both."""
    replicas, micro = LAYOUTS[layout]
    make = wrapped(door, replicas, micro)
    dense, sparse = Feed(door, make, replicas), Feed(door, make, replicas)

    def apply(context_values):
        rows, bias = context_values
        slices = tf.IndexedSlices(rows, tf.constant([1, 0, 1]), tf.constant([2, 2]))
        sparse.optimizer.apply_gradients(zip([slices, bias], sparse.variables, strict=True))

    rng = np.random.default_rng(0)
    for _ in range(3):
        parts, rows = [], []
        for _ in range(replicas * micro):
            r = rng.normal(size=(3, 2)).astype("float32") + 0.4
            rows.append({"kernel": r, "bias": rng.normal(size=2).astype("float32")})
            parts.append({"kernel": np.stack([r[1], r[0] + r[2]]), "bias": rows[-1]["bias"]})
        dense.step(parts)
        for first in range(0, len(rows), replicas):
            given = [sparse._tensors(rows[first : first + replicas], k, "float32") for k in START]
            if sparse.strategy:
                sparse.strategy.run(apply, args=(given,))
            else:
                apply(given)
        close(sparse.optimizer.gain, dense.optimizer.gain)
    assert dense.optimizer.gain > 1
    for one, other in zip(sparse.weights(), dense.weights(), strict=True):
        close(one, other)


# --- Measured ---


def settings_of_measured():
    yield "LAMB", False, {"gradient_accumulation_steps": 2, "weight_decay": 0.1}, 1
    yield "LAMB", False, {"gradient_accumulation_steps": 2, "clipnorm": 0.5}, 1
    yield "LARS", False, {"gradient_accumulation_steps": 2, "use_ema": True}, 1
    yield "SGD", True, {"momentum": 0.9}, 1
    if BACKEND == "tensorflow":
        yield "LAMB", False, {"weight_decay": 0.1, "global_clipnorm": 0.1}, 2
        yield "LAMB", False, {"gradient_accumulation_steps": 2}, 2
        yield "SGD", True, {"momentum": 0.9}, 2


@pytest.mark.parametrize(
    ("inner", "host", "own", "replicas"), list(settings_of_measured()),
    ids=lambda value: "+".join(value) if isinstance(value, dict) else str(value),
)  # fmt: skip
@every_door
def test_measuring_changes_no_training(door, inner, host, own, replicas):
    ours, plain = DOORS[door][1], maker(door, inner, 0.05, host, **own)
    single = replicas == 1 and "gradient_accumulation_steps" not in own
    alone = regression(door, plain, replicas)
    measured = regression(door, lambda: ours.Measured(plain(), previous_gradient=single), replicas)
    for model in (alone, measured):
        fit(model, epochs=2)
    for one, other in zip(weights_of(measured), weights_of(alone), strict=True):
        np.testing.assert_array_equal(one, other)
    assert math.isfinite(measured.optimizer.noise_of(8)["model"])


@pytest.mark.parametrize("layout", LAYOUTS)
@every_door
def test_the_noise_scale_is_numpys(door, layout):
    replicas, micro = LAYOUTS[layout]
    n = replicas * micro
    ours = DOORS[door][1]

    def make():
        return ours.Measured(maker(door, micro=micro)(), groups=["bias"], smoothing=0.9)

    feed, steps = Feed(door, make, replicas), gradients(6, n)
    assert all(math.isnan(value) for value in feed.optimizer.noise_of(32).values())
    for parts in steps:
        feed.step(parts)
    seen = feed.optimizer.noise_of(32)
    assert list(seen) == ["model", "bias", "others"]
    for name, keys in (("model", None), ("bias", ["bias"]), ("others", ["kernel"])):
        expected = noise_scale(steps, 32, 0.9, keys)
        if expected > 0:
            assert seen[name] == pytest.approx(expected, rel=1e-5)
        else:
            assert math.isnan(seen[name])
    assert seen["model"] > 0


@every_door
def test_readings_join_the_logs(door, capsys):
    ours = DOORS[door][1]
    make = wrapped(door, 1, 2, groups=["bias"])
    model = regression(door, make)
    watch = ours.NoiseScale(batch_size=16, every=4)
    history = fit(model, epochs=3, callbacks=[watch]).history
    assert watch.history["step"] == [2, 4, 6, 8, 10, 12]
    assert set(watch.history) == {
        "step", "noise_scale", "noise_scale/bias", "noise_scale/others",
    }  # fmt: skip
    assert history["noise_scale"] == watch.history["noise_scale"][1::2]
    expected = model.optimizer.noise_of(16)
    assert history["noise_scale"][-1] == pytest.approx(expected["model"], nan_ok=True)
    assert history["noise_scale/bias"][-1] == pytest.approx(expected["bias"], nan_ok=True)
    assert capsys.readouterr().out.strip() == watch.advice()
    fit(model, epochs=1, callbacks=[ours.NoiseScale(16, verbose=False)])
    assert capsys.readouterr().out == ""


@every_door
def test_advice_says_that_it_is_biased(door):
    ours = DOORS[door][1]
    model = regression(door, lambda: ours.Measured(maker(door)(), previous_gradient=True))
    watch = ours.NoiseScale(8, verbose=False)
    fit(model, epochs=1, callbacks=[watch])
    assert "Biased: from successive steps." in watch.advice()


@every_door
def test_training_stops_when_the_steps_are_spent(door, tmp_path):
    host, ours = DOORS[door]
    model = regression(door, wrapped(door, 1, 2, scale=2.0))
    logs = fit(model, epochs=20, callbacks=[ours.StopAtScaleInvariantStep(9)]).history
    spent, gain = model.optimizer.scale_invariant_steps, model.optimizer.gain
    assert 9 <= spent < 9 + gain
    assert logs["scale_invariant_step"][-1] == spent
    assert logs["gain"][-1] == gain
    model.save(tmp_path / "model.keras")
    resumed = host.models.load_model(tmp_path / "model.keras")
    before = weights_of(resumed)
    fit(resumed, epochs=20, callbacks=[ours.StopAtScaleInvariantStep(9, every=50)])
    # Keras looks after a batch: half an update.
    assert resumed.optimizer.scale_invariant_steps == spent
    for one, other in zip(before, weights_of(resumed), strict=True):
        np.testing.assert_array_equal(one, other)


@every_door
def test_a_look_now_and_then_stops_late(door):
    model = regression(door, wrapped(door, 1, 2, scale=1.0))
    stop = DOORS[door][1].StopAtScaleInvariantStep(3, every=8)
    fit(model, epochs=5, callbacks=[stop])
    assert model.optimizer.scale_invariant_steps == 4  # 8 batches are 4 updates


# --- Mixed precision ---


@every_door
def test_mixed_precision_scales_the_loss_around_it(door):
    host, ours = DOORS[door]
    set_policy = host.mixed_precision.set_global_policy
    set_policy("mixed_float16")
    try:
        model = regression(door, wrapped(door, 1, 2))
    finally:
        set_policy("float32")
    assert type(model.optimizer).__name__.startswith("LossScaleOptimizer")
    before = weights_of(model)
    watch = ours.NoiseScale(16, verbose=False)
    fit(model, epochs=4, callbacks=[watch, ours.StopAtScaleInvariantStep(1000)])
    adascale = model.optimizer.inner_optimizer
    assert adascale.updates > 4
    assert 1 < adascale.gain <= 4
    assert adascale.scale_invariant_steps > adascale.updates
    assert np.isfinite(watch.history["noise_scale"][-1])
    for one, other in zip(before, weights_of(model), strict=True):
        assert np.all(np.isfinite(other)) and np.any(one != other)


# --- Refusals ---


@every_door
def test_one_part_is_refused_before_any_step(door):
    for make in (
        wrapped(door, 1, 1),
        lambda: DOORS[door][1].Measured(DOORS[door][0].optimizers.SGD(0.1)),
    ):
        model = regression(door, make)
        with pytest.raises(ValueError, match="a step has one part: one replica, and no"):
            fit(model)
        for w, start in zip(weights_of(model), START.values(), strict=True):
            np.testing.assert_array_equal(w, start.astype("float32"))


BAD = {
    "scale < 1": (lambda h, o: o.AdaScale(o.LARS(), 0.5), ValueError, "scale must be a number in"),
    "scale nan": (lambda h, o: o.AdaScale(o.LARS(), math.nan), ValueError, "scale must be"),
    "scale inf": (lambda h, o: o.AdaScale(o.LARS(), math.inf), ValueError, "scale must be"),
    "scale str": (lambda h, o: o.AdaScale(o.LARS(), "8"), TypeError, "scale must be a number in"),
    "RMSprop": (
        lambda h, o: o.AdaScale(h.optimizers.RMSprop(), 2), ValueError, "not RMSprop: how its gain",
    ),
    "no optimizer": (lambda h, o: o.AdaScale("sgd", 2), TypeError, "stands around an optimizer"),
    "no optimizer to measure": (lambda h, o: o.Measured(3), TypeError, "stands around an optim"),
    "wrapped": (
        lambda h, o: o.AdaScale(o.AdaScale(o.LARS(), 2), 2), ValueError, "measures already",
    ),
    "measured": (
        lambda h, o: o.AdaScale(o.Measured(o.LARS()), 2), ValueError, "measures already",
    ),
    "loss scale": (
        lambda h, o: o.AdaScale(h.mixed_precision.LossScaleOptimizer(h.optimizers.SGD()), 2),
        ValueError, "put AdaScale around that optimizer, and LossScaleOptimizer.* outside",
    ),
    "loss_scale_factor": (
        lambda h, o: o.Measured(keras.optimizers.SGD(loss_scale_factor=8.0)),
        (TypeError, ValueError), "with loss_scale_factor: leave that out|of tf_keras",
    ),
    "built": (lambda h, o: o.AdaScale(built(h, o.LARS()), 2), ValueError, "has not stepped yet"),
    "preconditioned": (
        lambda h, o: o.AdaScale(h.optimizers.SGD(), 2, preconditioned=True),
        ValueError, "needs second moments",
    ),
    "preconditioned LARS": (
        lambda h, o: o.AdaScale(o.LARS(), 2, preconditioned=True), ValueError, "second moments",
    ),
    "averaging": (
        lambda h, o: o.AdaScale(o.LARS(), 2, averaging="mean"), ValueError, "averaging must be one",
    ),
    "smoothing": (lambda h, o: o.Measured(o.LARS(), smoothing=1.0), ValueError, "smoothing must"),
    "groups": (lambda h, o: o.Measured(o.LARS(), groups="bias"), TypeError, "Did you mean"),
    "a group": (lambda h, o: o.Measured(o.LARS(), groups=["("]), ValueError, "not a regular"),
    "flag": (lambda h, o: o.Measured(o.LARS(), previous_gradient=1), TypeError, "True or False"),
    "name": (lambda h, o: o.Measured(o.LARS(), name=3), TypeError, "name must be a string"),
    "steps": (lambda h, o: o.StopAtScaleInvariantStep(0.5), TypeError, "steps must be"),
    "no steps": (lambda h, o: o.StopAtScaleInvariantStep(None), TypeError, "steps must be"),
    "every": (lambda h, o: o.NoiseScale(32, every=0), ValueError, "every must be"),
    "batch": (lambda h, o: o.NoiseScale("32"), TypeError, "batch_size must be"),
    "no batch": (lambda h, o: o.NoiseScale(None), TypeError, "batch_size must be"),
}  # fmt: skip


def built(host, optimizer):
    variable = keras.Variable if host is keras else tf.Variable
    optimizer.build([variable(np.zeros(2, "float32"), name="w")])
    return optimizer


@pytest.mark.parametrize("name", BAD)
@every_door
def test_bad_input_is_refused_in_a_sentence(door, name):
    make, error, words = BAD[name]
    with pytest.raises(error, match=words) as caught:
        make(*DOORS[door])
    assert len(str(caught.value)) < 400


@every_door
def test_what_can_mislead_is_warned_of(door):
    host, ours = DOORS[door]
    with pytest.warns(UserWarning, match="can run away"):
        built(host, ours.AdaScale(host.optimizers.SGD(), 2, previous_gradient=True))
    inner = ours.LARS(gradient_accumulation_steps=2)
    with pytest.warns(UserWarning, match="No variable is left for the group 'nothing'"):
        built(host, ours.Measured(inner, groups=["nothing", "w"]))


@on_tensorflow
@every_door
def test_an_optimizer_of_the_other_keras_is_refused(door):
    (other,) = (host for name, (host, _) in DOORS.items() if name != door)
    for make in (DOORS[door][1].Measured, lambda inner: DOORS[door][1].AdaScale(inner, 2)):
        with pytest.raises(TypeError, match="stands around an optimizer of"):
            make(other.optimizers.SGD())


@every_door
def test_callbacks_want_an_optimizer_that_measures(door):
    ours = DOORS[door][1]
    cases = [
        (ours.LARS, ours.NoiseScale(8), "measures: compile with optimizer=tf_lamb.Measured"),
        (ours.LARS, ours.StopAtScaleInvariantStep(8), "needs optimizer=tf_lamb.AdaScale"),
        (lambda: ours.Measured(ours.LARS(gradient_accumulation_steps=2)),
         ours.StopAtScaleInvariantStep(8), "needs optimizer=tf_lamb.AdaScale"),
    ]  # fmt: skip
    for make, callback, words in cases:
        model = regression(door, make)
        with pytest.raises(ValueError, match=words):
            fit(model, callbacks=[callback])
        for w, start in zip(weights_of(model), START.values(), strict=True):
            np.testing.assert_array_equal(w, start.astype("float32"))


@on_tensorflow
@every_door
def test_shared_batch_statistics_are_warned_of(door):
    host, ours = DOORS[door]
    layer = host.layers.BatchNormalization(synchronized=True, name="shared")
    model = regression(door, wrapped(door, 1, 2), layers=[layer])
    with pytest.warns(UserWarning, match="'shared' normalizes with statistics of all replicas"):
        ours.NoiseScale(8, verbose=False).set_model(model)
    own = regression(door, wrapped(door, 1, 2), layers=[host.layers.BatchNormalization()])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.NoiseScale(8, verbose=False).set_model(own)


# --- Replicas ---


@on_tensorflow
@pytest.mark.parametrize("make_name", ["Measured", "AdaScale"])
@every_door
def test_one_sum_of_scalars_more(door, make_name, monkeypatch):
    """A step asks for the gradients' all-reduce, as ever, and for one of a number a group."""
    ours = DOORS[door][1]
    calls, all_reduce = [], tf.distribute.ReplicaContext.all_reduce

    def counted(self, op, value, options=None):
        calls.append([tuple(v.shape) for v in tf.nest.flatten(value)])
        return all_reduce(self, op, value, options)

    monkeypatch.setattr(tf.distribute.ReplicaContext, "all_reduce", counted)

    def count(make):
        calls.clear()
        feed = Feed(door, make, 2)
        for parts in gradients(2, 2):
            feed.step(parts)
        return list(calls)

    plain = count(maker(door, "LAMB"))
    more = {"Measured": {}, "AdaScale": {"scale": 2.0}}[make_name]
    watched = count(
        lambda: getattr(ours, make_name)(maker(door, "LAMB")(), groups=["bias"], **more)
    )
    for call in plain:
        watched.remove(call)
    assert watched == [[(2,)]] * 2  # on each replica, once: a second step traces nothing


@on_tensorflow
def test_sums_that_were_made_already_are_refused():
    feed = Feed("tf_keras", wrapped("tf_keras", 2, 1), 2, graph=False)

    def apply():
        pairs = [(tf.ones_like(v), v) for v in feed.variables]
        feed.optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)

    with pytest.raises(ValueError, match="before they are summed"):
        feed.strategy.run(apply)


@on_tensorflow
def test_an_optimizer_from_outside_of_the_strategy_is_refused():
    """tf_keras lets it pass; its replicas would drift apart."""
    feed = Feed("tf_keras", maker("tf_keras"), 2, graph=False)
    feed.optimizer = wrapped("tf_keras", 1, 2)()
    with pytest.raises(ValueError, match="inside strategy.scope()"):
        feed.step(gradients(1, 2)[0])


@every_door
def test_weights_of_the_optimizer_can_be_set(door):
    one, other = (Feed(door, wrapped(door, 1, 4, inner="LAMB")) for _ in range(2))
    for parts in gradients(2, 4):
        one.step(parts)
    if door == "keras":
        other.optimizer.set_weights([array(v) for v in one.optimizer.variables])
    else:
        for v, w in zip(other.optimizer.variables, one.optimizer.variables, strict=True):
            v.assign(w)
    for v, w in zip(other.optimizer.variables, one.optimizer.variables, strict=True):
        np.testing.assert_array_equal(array(v), array(w))


def worker(strategy):
    """What a worker of two saw of AdaScale, behind both doors: the gains, then the weights."""
    seen = {}
    for door in DOORS:
        feed = Feed(door, wrapped(door, 2, 1, 2.0, "LAMB", own={"weight_decay": 0.1},
                                  preconditioned=False), 2, strategy=strategy)  # fmt: skip
        steps = []
        for parts in gradients(4, 2):
            optimizer = feed.step(parts)
            steps.append((optimizer.gain, optimizer.scale_invariant_steps))
        seen[door] = {"steps": steps, "weights": [w.tolist() for w in feed.weights()]}
    return seen


@on_tensorflow
@pytest.mark.slow
def test_two_processes_are_two_replicas():
    """MultiWorkerMirroredStrategy: each worker sees NumPy's gain, and the same weights."""
    outputs = clusters.results_of_workers("test_adascale", "worker", 2)
    assert outputs[0] == outputs[1]
    for door in DOORS:
        reference = AdaScale(2.0)
        for (gain, tau), parts in zip(outputs[0][door]["steps"], gradients(4, 2), strict=True):
            reference.step(parts)
            close(gain, reference.r)
            close(tau, reference.tau)
