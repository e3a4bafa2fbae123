"""Muon in every frontend: the oracle's numbers, its slots, and what cannot be meant."""

import importlib
import json

import keras
import numpy as np
import oracle
import pytest
from support.cases import random_steps
from support.frontends import FRONTENDS, array, every_frontend, new_variable, train, uncompiled

from tf_lamb.core.rules.muon import MuonForm

STACKED = {"a/kernel": (4, 6), "slow/kernel": (4, 6), "b/kernel": (4, 6), "free/kernel": (4, 6),
           "query/kernel": (4, 2, 3), "tall/kernel": (6, 4), "dense/bias": (6,)}  # fmt: skip


@every_frontend
@pytest.mark.parametrize(
    ("name", "asks", "options"),
    [("Muon", "orthogonalized", {}),
     ("Muon", "orthogonalized", {"use_ema": True, "dtypes": {"slots": "bfloat16"}}),
     ("Muon", "orthogonalized",
      {"bounds": {"trust_ratio": (0.35, None)}, "treatments": {"[ab]/kernel": {"slices": 1}}}),
     ("SOAP", "renew_bases", {"form": {"one_sided": True}, "precondition_frequency": 2})],
)  # fmt: skip
@uncompiled()
def test_stacks_are_stepped_as_one_by_one(frontend, name, asks, options, monkeypatch):
    """Among neighbours of another decay, rate or layout, and one that once has no gradient."""
    rule = importlib.import_module(f"tf_lamb.core.rules.{name.lower()}")
    asked, axes = getattr(rule, asks), []

    def seen(xp, x, *others, **settings):
        axes[-1].add(len(x.shape))
        return asked(xp, x, *others, **settings)

    monkeypatch.setattr(rule, asks, seen)
    problems = [random_steps(shape, seed=i) for i, shape in enumerate(STACKED.values())]
    ends = []
    for stacks in (False, True):
        pairs = zip(STACKED, problems, strict=True)
        variables = [new_variable(frontend, w, path=path) for path, (w, _) in pairs]
        optimizer = getattr(FRONTENDS[frontend][1], name)(
            0.125, weight_decay=0.1, exclude_from_weight_decay=["free"],
            **{**options, "treatments": {"slow": {"rate": 0.5}, **options.get("treatments", {})}},
        )  # fmt: skip
        optimizer.build(variables)
        optimizer._update.stacks_matrices = stacks
        axes.append(set())
        for t in range(4):
            gradients = [keras.ops.convert_to_tensor(g[t].astype("float32")) for _, g in problems]
            if t == 2:
                gradients[0] = None
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        ends.append([array(v) for v in (*variables, *map(value, state(optimizer)))])
    assert axes == [{2}, {2, 3}]
    for one_by_one, stacked in zip(*ends, strict=True):
        np.testing.assert_allclose(stacked, one_by_one, rtol=1e-5, atol=1e-6)


def state(optimizer):
    return [slot for i in range(len(STACKED)) for slot in optimizer.state_of(i).values()]


def value(slot):
    return keras.ops.cast(slot, "float32")


@every_frontend
@pytest.mark.parametrize(
    ("coefficients", "steps", "kept"),
    [("polar_express", 5, "polar_express"), ((2, -1.5, 0.5), 5, [2.0, -1.5, 0.5]),
     ([(3, -4, 2), [1.5, -0.5, 0]], 2, [[3.0, -4.0, 2.0], [1.5, -0.5, 0.0]])],
    ids=["a preset", "a triple", "a triple a step"],
)  # fmt: skip
@uncompiled()
def test_coefficients_are_saved_and_step_as_the_rule_has_them(frontend, coefficients, steps, kept):
    optimizer = FRONTENDS[frontend][1].Muon(0.1, form={"coefficients": coefficients})
    config = json.loads(json.dumps(optimizer.get_config()))
    assert config["form"] == {
        "newton_schulz_steps": steps, "update_scale": "rms", "fallback_lr_scale": 1.0,
        "coefficients": kept, "norm": None, "heads": None,
    }  # fmt: skip
    w, gradients = random_steps((4, 6), steps=2)
    again = type(optimizer).from_config(config)
    *_, last = train(frontend, again, {"a/kernel": w}, [{"a/kernel": g} for g in gradients])
    reference = oracle.Muon(
        w, lr=0.1, polynomials=MuonForm(coefficients=again.form.coefficients).triples
    )
    for g in gradients:
        expected = reference.step(g)
    np.testing.assert_allclose(last["a/kernel"], expected, rtol=1e-4, atol=1e-5)


@every_frontend
@uncompiled()
def test_products_in_bfloat16_come_near_those_in_float32(frontend):
    w, gradients = random_steps((6, 4), steps=1)
    moved = []
    for dtype in ("float32", "bfloat16"):
        optimizer = FRONTENDS[frontend][1].Muon(1.0, dtypes={"products": dtype})
        (after,) = train(frontend, optimizer, {"dense/kernel": w}, [{"dense/kernel": gradients[0]}])
        moved.append((w - after["dense/kernel"]) / (0.2 * 6**0.5))
    assert np.abs(moved[1] - moved[0]).max() < 0.05
    assert np.any(moved[1] != moved[0])
    singular = np.linalg.svd(moved[1], compute_uv=False)
    assert np.all((singular > 0.6) & (singular < 1.3))


@every_frontend
@uncompiled()
def test_soaps_products_in_bfloat16_come_near_those_in_float32(frontend):
    w, gradients = random_steps((6, 6), steps=3)
    moved = []
    for dtype in ("float32", "bfloat16"):
        optimizer = FRONTENDS[frontend][1].SOAP(1.0, dtypes={"products": dtype})
        *_, last = train(frontend, optimizer, {"k": w}, [{"k": g} for g in gradients])
        moved.append(w - last["k"])
        assert {array(slot).dtype.name for slot in optimizer.state_of(0).values()} == {"float32"}
    assert 0 < np.abs(moved[1] - moved[0]).max() < 0.1 * np.abs(moved[0]).max()


@every_frontend
def test_what_is_left_open_follows_the_device(frontend):
    ours = FRONTENDS[frontend][1]

    def on(accelerated, optimizer):
        rule = optimizer._settings.rule_arguments(accelerated)
        return rule["product_dtype"], getattr(rule["form"], "renewal", None)

    assert on(True, ours.Muon()) == ("bfloat16", None)
    assert on(False, ours.Muon()) == (None, None)
    assert on(True, ours.Muon(dtypes={"products": "float32"})) == (None, None)
    assert on(True, ours.SOAP()) == (None, "cholesky")
    assert on(False, ours.SOAP()) == (None, None)
    assert on(True, ours.SOAP(form={"renewal": "qr"})) == (None, "qr")


@every_frontend
def test_a_plan_without_a_matrix_is_refused(frontend):
    bias = new_variable(frontend, np.ones(3), path="dense/bias")
    with pytest.raises(ValueError, match="Muon would change no step .* none of its 1 variables"):
        FRONTENDS[frontend][1].Muon().build([bias])


@every_frontend
@pytest.mark.parametrize("name", ["LANS", "Muon", "SOAP"])
def test_adascale_does_not_stand_around_what_forgets_a_length(frontend, name):
    ours = FRONTENDS[frontend][1]
    with pytest.raises(ValueError, match=f"but LANS, Muon and SOAP, not {name}"):
        ours.AdaScale(getattr(ours, name)(gradient_accumulation_steps=2), scale=2)


@every_frontend
@uncompiled()
def test_what_is_no_matrix_has_the_slots_of_the_others(frontend):
    """Two axes of a bias, channels that never meet, and what `treatments` say."""
    shapes = {"attention/query/kernel": (6, 2, 3), "attention/query/bias": (2, 3),
              "depthwise_conv2d/kernel": (3, 3, 4, 2), "grouped/kernel": (3, 3, 2, 4),
              "mixer/kernel": (4, 3, 5)}  # fmt: skip
    optimizer = FRONTENDS[frontend][1].Muon(treatments=rows({"grouped": None, "mixer": [1]}))
    optimizer.build([new_variable(frontend, np.ones(s), path=p) for p, s in shapes.items()])
    assert [len(optimizer.state_of(i)) for i in range(5)] == [1, 2, 2, 2, 1]
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.get_config()["treatments"] == rows({"grouped": None, "mixer": [1]})


def rows(axes):
    return {pattern: {"rows": each} for pattern, each in axes.items()}


def attention_of_dense(host):
    """Three heads of four, written with a `Dense` for each matrix."""
    heads, size, width = 3, 4, 12
    ops = host.ops if host is keras else importlib.import_module("tensorflow")

    class Attention(host.layers.Layer):
        def __init__(self):
            super().__init__(name="attention")
            names = ("query", "key", "value", "attention_output")
            layers = [host.layers.Dense(width, use_bias=False, name=name) for name in names]
            *self.into, self.out = layers

        def build(self, shape):
            for layer in (*self.into, self.out):
                layer.build(shape)
            self.built = True

        def call(self, x):
            q, k, v = (ops.reshape(layer(x), (2, 6, heads, size)) for layer in self.into)
            scores = ops.einsum("bthd,bshd->bhts", q, k) / size**0.5
            softmax = ops.nn.softmax(scores)
            return self.out(ops.reshape(ops.einsum("bhts,bshd->bthd", softmax, v), (2, 6, width)))

    return Attention()


@every_frontend
@pytest.mark.parametrize("scale", ["rms", "shape"])
@uncompiled(fits=True)
def test_attention_takes_the_steps_of_its_matrices(frontend, scale):
    """Keras keeps (model, heads, head size) where a `Dense` has (model, heads x head size).

    Without biases: that of the keys has a gradient of zero but for rounding.
    """
    host, ours = FRONTENDS[frontend]
    x, y = np.random.default_rng(0).normal(size=(2, 2, 6, 12)).astype("float32")
    trained, tables, start = [], [], None
    for dense in (False, True):
        inputs = host.Input((6, 12), batch_size=2)
        layer = (
            attention_of_dense(host)
            if dense
            else host.layers.MultiHeadAttention(3, 4, use_bias=False)
        )
        model = host.Model(inputs, layer(inputs) if dense else layer(inputs, inputs))
        values = [array(v) for v in model.trainable_variables]
        start = start or values
        model.set_weights([w.reshape(v.shape) for w, v in zip(start, values, strict=True)])
        optimizer = ours.Muon(
            0.05, weight_decay=0.1, form={"update_scale": scale}, jit_compile=False
        )
        model.compile(optimizer, "mse", jit_compile=False)
        for _ in range(3):
            model.train_on_batch(x, y)
        trained.append([array(v) for v in model.trainable_variables])
        optimizer.describe(tables.append)
    for of_heads, of_dense, w in zip(*trained, start, strict=True):
        assert np.abs(of_heads - w).max() > 1e-3
        np.testing.assert_allclose(of_heads.reshape(of_dense.shape), of_dense, rtol=1e-4, atol=1e-5)
    assert [table.count("matrix of 12 x 12") for table in tables] == [4, 4]
