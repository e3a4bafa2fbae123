"""Learning rates by layer, of every optimizer: against the oracle, and what stays as it was."""

import numpy as np
import pytest
from support.feeding import LAYOUTS, START, Feed, close, gradients, maker, mean_of, scaled
from support.frontends import FRONTENDS, array, every_frontend, uncompiled
from support.references import NAMES, Reference

EVERY = [(name, "one device") for name in NAMES]
EVERY += [(NAMES[i], layout) for i, layout in enumerate(LAYOUTS) if i]


def rates(factors):
    return {pattern: {"rate": factor} for pattern, factor in factors.items()}


@every_frontend
@pytest.mark.parametrize(("name", "layout"), EVERY)
def test_a_multiplier_is_another_rate(frontend, name, layout):
    replicas, micro = LAYOUTS[layout]
    factors = {"kernel": 0.25, ".": 2.0}
    arguments = {"weight_decay": 0.1, "treatments": rates(factors)}
    run = Feed(frontend, maker(frontend, name, 0.1, micro=micro, **arguments), replicas)
    references = {key: Reference(name, w) for key, w in START.items()}
    for parts in gradients(3, replicas * micro):
        run.step(parts)
        mean = mean_of(parts)
        for key, ours in zip(START, run.weights(), strict=True):
            close(ours, references[key].step(mean[key], 0.1 * factors.get(key, 2.0), 0.1), 2e-6)


@every_frontend
@pytest.mark.parametrize("kind", ["schedule", "function"])
@pytest.mark.parametrize("name", NAMES)
def test_a_multiplier_of_a_whole_rate_is_no_whole_number(frontend, name, kind):
    """As of `PiecewiseConstantDecay([100], [2, 1])`, which gives what it was given."""
    kinds = FRONTENDS[frontend][0].optimizers.schedules
    rate = kinds.PiecewiseConstantDecay([1], [2, 1]) if kind == "schedule" else lambda: 2
    treatments = rates({"kernel": 0.1})
    run = Feed(frontend, maker(frontend, name, rate, weight_decay=0.1, treatments=treatments))
    references = {key: Reference(name, w) for key, w in START.items()}
    for t, parts in enumerate(gradients(3, 1)):
        now = 1 if kind == "schedule" and t == 2 else 2
        run.step(parts)
        for key, ours in zip(START, run.weights(), strict=True):
            factor = 0.1 if key == "kernel" else 1.0
            close(ours, references[key].step(mean_of(parts)[key], factor * now, 0.1), 5e-6)


def bits(optimizer, index):
    return {name: array(slot).tobytes() for name, slot in optimizer.state_of(index).items()}


@every_frontend
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("micro", [1, 2])
def test_a_factor_of_0_freezes(frontend, name, micro):
    """As if the variable were not there: its gradient is neither looked at nor clipped by."""
    more = {"weight_decay": 0.1, "use_ema": True, "ema_momentum": 0.9}
    more |= {} if name == "LANS" else {"global_clipnorm": 0.5}
    frozen = maker(frontend, name, micro=micro, treatments={"bias": {"rate": 0}}, **more)
    run, alone = Feed(frontend, frozen), Feed(frontend, maker(frontend, name, micro=micro, **more))
    before = bits(run.optimizer, 1)
    for i, parts in enumerate(gradients(4, micro)):
        bad = [{**part, "bias": part["bias"] * (np.nan if i == 2 else 1e6)} for part in parts]
        run.step(bad)
        alone.step([{**part, "bias": None} for part in parts])
    assert array(run.variables[0]).tobytes() == array(alone.variables[0]).tobytes()
    np.testing.assert_array_equal(array(run.variables[1]), START["bias"].astype("float32"))
    assert int(array(run.optimizer.iterations)) == 4
    after = bits(run.optimizer, 1)
    average = START["bias"].astype("float32")
    assert after.pop("average") == average.tobytes() and before.pop("average")
    assert after == before


@every_frontend
@pytest.mark.parametrize("micro", [1, 2])
@uncompiled(fits=True)
def test_a_frozen_layer_stays_as_it_is_given(frontend, micro):
    """Its constraint is left out, and the average of weights that are new is theirs."""
    host, ours = FRONTENDS[frontend]
    constraint = host.constraints.MaxNorm(1.0)
    frozen = host.layers.Dense(2, name="encoder", kernel_constraint=constraint)
    model = host.Sequential([host.Input((2,)), frozen, host.layers.Dense(1)])
    options = {"gradient_accumulation_steps": micro, "use_ema": True}
    model.compile(ours.LAMB(0.1, treatments={"encoder": {"rate": 0}}, **options), "mse")
    for given in (3.0, 7.0):
        frozen.set_weights([np.full((2, 2), given), np.full(2, given)])
        model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)
        for weights in frozen.get_weights():
            np.testing.assert_array_equal(weights, given)


@every_frontend
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_step_of_frozen_variables_alone_is_refused(frontend):
    run = Feed(frontend, maker(frontend, treatments={"bias": {"rate": 0}}))
    ((parts,),) = gradients(1, 1)
    with pytest.raises(ValueError, match="frozen variables alone.* bias.* the rate 0"):
        run.step([{**parts, "kernel": None}])


@every_frontend
@pytest.mark.parametrize("name", ["LAMB", "LANS", "LARS"])
def test_a_trust_ratio_is_as_it_was(frontend, name):
    seen = []
    for factors in ({}, {"kernel": 0.25}):
        run = Feed(frontend, maker(frontend, name, treatments=rates(factors)))
        run.optimizer.observe_trust_ratios()
        (parts,) = gradients(1, 1)
        run.step(parts)
        moved = [w - START[key] for key, w in zip(START, run.weights(), strict=True)]
        seen.append((moved, run.optimizer.trust_ratios()))
    (whole, ratios), (part, same) = seen
    assert ratios == same
    close(part[0], 0.25 * whole[0])
    close(part[1], whole[1], 0)


@every_frontend
@pytest.mark.parametrize("inner", ["LARS", "LAMB"])
def test_the_gain_of_adascale_is_as_it_was(frontend, inner):
    """A multiplier is of the rate that AdaScale gives; what is frozen is not measured."""
    runs = {
        factor: Feed(
            frontend, scaled(frontend, inner=inner, own={"treatments": rates({"bias": factor})})
        )
        for factor in (1, 0.5, 0)
    }
    alone = Feed(frontend, scaled(frontend, inner=inner))
    (parts, *_) = gradients(3, 4)
    for each in runs.values():
        each.step(parts)
    alone.step([{**part, "bias": np.zeros(2, "float32")} for part in parts])
    close(runs[0.5].optimizer.gain, runs[1].optimizer.gain, 0)
    bias = [run.weights()[1] - START["bias"] for run in runs.values()]
    close(bias[1], 0.5 * bias[0])
    close(bias[2], 0, 1e-8)
    for parts in gradients(7, 4, seed=1):
        runs[0].step(parts)
        alone.step([{**part, "bias": np.zeros(2, "float32")} for part in parts])
    close(runs[0].optimizer.gain, alone.optimizer.gain)
    assert runs[0].optimizer.gain != 1


@every_frontend
def test_layer_decay_of_a_model(frontend):
    host, ours = FRONTENDS[frontend]
    layers = [host.layers.Dense(3, name=f"encoder_layer_{i}") for i in range(2)]
    model = host.Sequential(
        [host.layers.Dense(3, name="token_embedding"), *layers, host.layers.Dense(2, name="head")]
    )
    with pytest.raises(ValueError, match="has no variables yet"):
        ours.layer_decay(model, 0.5)
    model.build((None, 3))
    optimizer = ours.LAMB(treatments=ours.layer_decay(model, 0.5))
    optimizer.build(model.trainable_variables)
    assert optimizer.plan.multipliers[::2] == (0.125, 0.25, 0.5, 1)
