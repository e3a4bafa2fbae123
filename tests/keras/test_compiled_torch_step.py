"""On torch, what a step reads while it runs is the same inside `torch.compile`.

Here torch's front traces the optimizer and runs what it traced operation by operation, so that both
sides round alike; the whole compiler runs in `api/test_adascale.py`.
"""

import keras
import numpy as np
import pytest
from support.feeding import START, gradients

import tf_lamb.keras as ours

if keras.backend.backend() != "torch":
    pytest.skip("torch.compile is torch's", allow_module_level=True)

import torch


def test_a_member_that_is_not_there_is_asked_for():
    optimizer = ours.LAMB(0.1)

    @torch.compile(backend="eager", fullgraph=True)
    def ask(x):
        return x + hasattr(optimizer, "lr") + 2 * hasattr(optimizer, "colour")

    assert float(ask(torch.zeros(()))) == 0.0


def halving(steps):
    return keras.optimizers.schedules.ExponentialDecay(0.1, steps, 0.5)


# What makes an optimizer, by what of it is read in a step.
OPTIMIZERS = {
    "averages": lambda: ours.LAMB(
        0.1, weight_decay=0.1, gradient_accumulation_steps=2,
        use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2,
    ),
    "schedules": lambda: ours.AdamP(
        halving(2), weight_decay=halving(3), clipnorm=0.5,
        gradient_accumulation_steps={0: 1, 2: 2},
    ),
    "spikes": lambda: ours.LARS(
        0.1, on_spike=(2, 3.0), dtypes={"slots": "bfloat16"},
        treatments={"kernel|bias": {"join": True}},
    ),
    "matrices": lambda: ours.Muon(0.1, gradient_accumulation_steps=2),
    "gains": lambda: ours.AdaScale(
        ours.LAMB(halving(4), gradient_accumulation_steps=2, on_spike=(2, 3.0)), 4.0
    ),
    "a loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        ours.LAMB(0.1, gradient_accumulation_steps=2), initial_scale=4.0, name="scaled"
    ),
}  # fmt: skip


def steps():
    """Gradients of twelve calls: one is not finite, and two later are long."""
    calls = [parts[0] for parts in gradients(12, 1)]
    calls[5]["kernel"][0, 0] = np.nan
    for call in calls[8:10]:
        call["kernel"] *= 1e4
    return calls


def trained(make, compiled):
    """The bytes of each variable after each call, by name."""
    variables = [keras.Variable(w, dtype="float32", name=name) for name, w in START.items()]
    optimizer = make()
    optimizer.build(variables)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if inner.has_trust_ratios():
        inner.observe_trust_ratios()

    def step(*values):
        with torch.no_grad():
            optimizer.apply(list(values), variables)

    if compiled:
        step = torch.compile(step, backend="eager")
    scale, after = getattr(optimizer, "dynamic_scale", 1.0), []
    for call in steps():
        step(*(torch.tensor(call[name]) * float(scale) for name in START))
        shown = inner.trust_ratios() if inner.has_trust_ratios() else []
        every = [*variables, *optimizer.variables, *getattr(inner, "variables", ())]
        after.append((
            [(v.path, keras.ops.convert_to_numpy(v).tolist()) for v in every],
            [(seen.path, seen.trust_ratio) for seen in shown],
        ))  # fmt: skip
    return after


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_compiled_step_is_the_step(name):
    torch.compiler.reset()
    plain, compiled = (trained(OPTIMIZERS[name], compiled) for compiled in (False, True))
    for one, other in zip(plain, compiled, strict=True):
        assert repr(one) == repr(other)  # in which NaN is as NaN
