"""Layers that start near zero, where a step as long as the weights is none: told, and left out."""

import warnings

import numpy as np
import pytest
from support.frontends import FRONTENDS, every_frontend, new_variable

MARK = "At or near zero: "
EXCLUDED = ["bias$", "norm/"]  # all but the LayerScale's: as "norm_and_bias" was once


def scale_of(host, start):
    """A layer of the host: a LayerScale, whose weight has no name, as in ConvNeXt."""

    class Scale(host.layers.Layer):
        def build(self, shape):
            initializer = host.initializers.Constant(start)
            self.gamma = self.add_weight(shape=(shape[-1],), initializer=initializer)

        def call(self, inputs):
            return inputs * self.gamma

    return Scale(name="scale")


def residual(host, kind="scale"):
    """One block beside a linear path; what opens it starts at 0, or at 1e-6."""
    layers, start = host.layers, "zeros" if kind == "down/kernel" else "glorot_uniform"
    host.utils.set_random_seed(1)
    inputs = host.Input((2,))
    stem = layers.Dense(16, name="stem")(inputs)
    x = layers.LayerNormalization(name="norm")(stem)
    x = layers.Dense(32, "relu", name="up")(x)
    x = layers.Dense(16, kernel_initializer=start, name="down")(x)
    if kind == "scale":
        x = scale_of(host, 1e-6)(x)
    outputs = layers.Dense(1, name="head")(layers.Add()([stem, x]))
    return host.Model(inputs, outputs)


def compiled(host, optimizer, kind="scale"):
    model = residual(host, kind)
    model.compile(optimizer, host.losses.BinaryCrossentropy(from_logits=True))
    return model


def told(build):
    """What it tells of layers near zero."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build()
    return [str(each.message) for each in caught if MARK in str(each.message)]


def adapted(optimizer):
    pairs = zip(optimizer.plan.paths, optimizer.plan.treatments, strict=True)
    return {path for path, treatment in pairs if treatment.adapt}


def listed(message):
    """The way out of a message."""
    return eval(message.partition("exclude_from_layer_adaptation=")[2].rstrip("."))


@every_frontend
@pytest.mark.parametrize("kind", ["scale", "down/kernel"])
@pytest.mark.parametrize("name", ["LAMB", "LANS", "LARS"])
def test_it_is_told_by_name_and_the_way_out_is_one(frontend, name, kind):
    host, ours = FRONTENDS[frontend]
    variables = residual(host, kind).trainable_variables
    optimizer = getattr(ours, name)(0.01, exclude_from_weight_decay=EXCLUDED)
    (message,) = told(lambda: optimizer.build(variables))
    assert f"{MARK}'{kind}" in message and "bias'" not in message.partition(". A trust ratio")[0]
    assert listed(message)[:2] == EXCLUDED and len(listed(message)) == 3
    optimizer.describe((lines := []).append)
    assert lines[1] == message and lines[0].count("near 0\n") == 1
    after = getattr(ours, name)(0.01, exclude_from_layer_adaptation=listed(message))
    assert not told(lambda: after.build(variables))
    (left,) = adapted(optimizer) - adapted(after)
    assert left.startswith(kind)


@every_frontend
@pytest.mark.once
@pytest.mark.parametrize("name", ["Muon", "SOAP"])
@pytest.mark.parametrize(
    ("options", "effect"),
    [({"bounds": {"trust_ratio": (None, 10.0)}}, "A trust ratio makes a step as short"),
     ({"form": {"norm": "constant"}}, "A constant norm keeps these as short"),
     ({"form": {"norm": "constant"}, "bounds": {"trust_ratio": (0.1, None)}}, "A constant norm")],
    ids=["a ratio", "a norm", "both"],
)  # fmt: skip
def test_the_way_out_of_matrices_leaves_embeddings_to_adamw(frontend, name, options, effect):
    ours = getattr(FRONTENDS[frontend][1], name)
    values = {"embedding/embeddings": np.ones((6, 4)), "up/kernel": np.ones((4, 5)),
              "down/kernel": np.zeros((5, 4)), "down/bias": np.zeros(4)}  # fmt: skip
    variables = [new_variable(frontend, value, path=path) for path, value in values.items()]
    optimizer = ours(0.01, exclude_from_weight_decay=["bias"], **options)
    (message,) = told(lambda: optimizer.build(variables))
    assert f"{MARK}'down/kernel'. {effect}" in message
    assert listed(message)[0] == "embedding" and len(listed(message)) == 2
    after = ours(0.01, exclude_from_layer_adaptation=listed(message), **options)
    assert not told(lambda: after.build(variables))
    assert adapted(after) == {"up/kernel"}
    without = ours(0.01, **options)
    (message,) = told(lambda: without.build(variables[1:]))
    assert len(listed(message)) == 1  # nothing of embeddings, where there are none


@every_frontend
@pytest.mark.once
def test_what_a_file_holds_is_not_told_of_before_its_weights_come(frontend, tmp_path):
    host, ours = FRONTENDS[frontend]
    model = compiled(host, ours.LAMB(0.01), "down/kernel")
    model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))
    model.save(tmp_path / "model.keras")
    assert not told(lambda: host.models.load_model(tmp_path / "model.keras"))


# Optimizers of a frontend that a kernel at zero holds up nowhere.
IN_NO_NEED = {
    "Muon": lambda ours: ours.Muon(),
    "AdamP": lambda ours: ours.AdamP(),
    "a bounded ratio": lambda ours: ours.LAMB(bounds={"trust_ratio": [0.01, 10.0]}),
    "a bounded norm": lambda ours: ours.LAMB(bounds={"weight_norm": [0.1, 10.0]}),
    "frozen": lambda ours: ours.LAMB(treatments={"down/": {"rate": 0.0}}),
    "excluded as one layer": lambda ours: ours.LAMB(
        treatments={"down/": {"join": True}}, exclude_from_layer_adaptation=["down"]
    ),
}


@every_frontend
@pytest.mark.parametrize("case", IN_NO_NEED)
@pytest.mark.once
def test_who_needs_no_way_out_is_told_nothing(frontend, case):
    host, ours = FRONTENDS[frontend]
    variables = residual(host, "down/kernel").trainable_variables
    optimizer = IN_NO_NEED[case](ours)
    assert not told(lambda: optimizer.build(variables))


@every_frontend
@pytest.mark.once
def test_of_biases_at_zero_nothing_is_told(frontend):
    host, ours = FRONTENDS[frontend]
    variables = residual(host, "").trainable_variables  # and nothing is excluded
    assert not told(lambda: ours.LAMB().build(variables))
