"""A step can be differentiated where a weight or a gradient is zero: no derivative is NaN."""

import functools
import inspect

import keras
import numpy as np
import pytest
from support.frontends import BACKEND

from tf_lamb.core import rules, stacks
from tf_lamb.core.rules.lars import LARSForm

EYES = [np.zeros((3, 3)), np.eye(3), np.zeros((4, 4)), np.eye(4)]
# Rule -> its slots besides the first, and hyper-parameters.
RULES = {
    "lamb": (1, {}), "lans": (1, {}), "adamp": (1, {}), "lars": (0, {}), "sgdp": (0, {}),
    "lars norm_of_sum": (0, {"form": LARSForm(denominator="norm_of_sum")}),
    "lars norm_of_update": (0, {"form": LARSForm("outside", "norm_of_update")}),
    "lamb of slices": (1, {"axes": (0,)}), "muon": (0, {}), "soap": (1, {}),
}  # fmt: skip
SOME = np.random.default_rng(0).normal(size=(3, 4))
ZEROS = np.zeros((3, 4))
AT = {"weight": (SOME, ZEROS), "gradient": (ZEROS, SOME), "both": (ZEROS, ZEROS),
      "an element": (np.where(SOME > 0, SOME, 0), SOME)}  # fmt: skip


def derivatives(case, g, w, adapt=True):
    """Of the weighted sum of the new weights, by the gradient and by the weight."""
    more, hypers = RULES[case]
    name = case.split()[0]
    rest = [np.zeros((3, 4))] * more
    if name == "soap":
        rest += [*EYES, np.zeros(()), np.array(3.0)] if adapt else []
    if name == "muon" and not adapt:
        rest = [np.zeros((3, 4))]
    rule = functools.partial(
        getattr(rules, name), lr=0.1, t=np.float32(3.0), decay=0.0, adapt=adapt, **hypers
    )

    def made(xp, g, w):
        state = [keras.ops.convert_to_tensor(x, "float32") for x in (ZEROS, *rest)]
        new = rule(xp, g, w, *state)
        new = stacks.run_single(xp, new) if inspect.isgenerator(new) else new
        return xp.sum(new[0] * keras.ops.convert_to_tensor(SOME, "float32"))

    arrays = [keras.ops.convert_to_tensor(x, "float32") for x in (g, w)]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        from tf_lamb.tensorflow import namespace

        with tf.GradientTape() as tape:
            tape.watch(arrays)
            total = made(namespace, *arrays)
        found = tape.gradient(total, arrays)
        return [np.array(each) for each in found]

    from tf_lamb.keras import arrays as namespace

    if BACKEND == "torch":
        arrays = [each.clone().requires_grad_() for each in arrays]
        made(namespace, *arrays).backward()
        found = [each.grad for each in arrays]
    else:
        import jax

        found = jax.grad(functools.partial(made, namespace), argnums=(0, 1))(*arrays)
    return [np.array(each) for each in found]


@pytest.mark.parametrize("case", RULES)
@pytest.mark.parametrize("at", AT)
def test_a_step_has_derivatives(case, at):
    by_gradient, by_weight = derivatives(case, *AT[at])
    assert np.isfinite(by_gradient).all() and np.isfinite(by_weight).all()
    assert np.any(by_gradient)
