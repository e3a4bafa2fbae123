"""What `describe` shows of a model, before the first step and after it, in whatever wrapper."""

import doctest
import re
import warnings

import numpy as np
import pytest
from support.frontends import BACKEND, FRONTENDS, every_frontend

import tf_lamb
from tf_lamb.api import describe


def compiled(host, optimizer):
    model = host.Sequential(
        [
            host.layers.Input((4,)),
            host.layers.Dense(3, name="first"),
            host.layers.Dense(2, name="last"),
        ]
    )
    model.compile(optimizer, "mse", run_eagerly=BACKEND == "tensorflow")
    return model


def table_of(ours, model):
    told = []
    ours.describe(model, told.append)
    (table,) = told
    return table


@every_frontend
def test_what_the_model_trains_now_is_told(frontend):
    host, ours = FRONTENDS[frontend]
    model = compiled(host, ours.LAMB(1e-3, jit_compile=False))
    model.optimizer.build(model.trainable_variables)
    other = compiled(host, model.optimizer)
    with pytest.raises(ValueError, match="was built for other variables"):
        ours.describe(other)
    model.layers[0].trainable = False
    told = []
    ours.describe(model, told.append)
    assert re.fullmatch(r"Not trained now: (.+/)?first/kernel, (.+/)?first/bias\.", told[0])


WRAPPERS = {
    "none": lambda host, ours, inner: inner,
    "AdaScale": lambda host, ours, inner: ours.AdaScale(inner, scale=2.0),
    "both": lambda host, ours, inner: host.mixed_precision.LossScaleOptimizer(
        ours.MeasureNoise(inner)
    ),
}


@every_frontend
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_model_shows_its_plan_before_a_step_and_after(frontend, wrapper):
    host, ours = FRONTENDS[frontend]
    inner = ours.LAMB(
        1e-3, weight_decay=0.01, gradient_accumulation_steps=2, jit_compile=False,
        exclude_from_weight_decay=["bias"],
    )  # fmt: skip
    model = compiled(host, WRAPPERS[wrapper](host, ours, inner))
    before = table_of(ours, model)
    lines = before.replace(f"{model.name}/", "").splitlines()  # Keras 3 begins a path with it
    assert [line.split()[:4] for line in lines[:3]] == [
        ["variable", "parameters", "decay", "adapted"],
        ["first/kernel", "12", "0.01", "yes"],
        ["first/bias", "3", "-", "no"],
    ]
    assert inner.plan is None  # nothing was built
    model.fit(np.ones((4, 4)), np.ones((4, 2)), batch_size=2, verbose=0)
    assert table_of(ours, model) == before


@every_frontend
def test_a_pattern_that_matches_nothing_warns_before_the_first_step(frontend):
    host, ours = FRONTENDS[frontend]
    model = compiled(host, ours.LAMB(1e-3, exclude_from_weight_decay=["nowhere"]))
    with pytest.warns(UserWarning, match="'nowhere'") as caught:
        table_of(ours, model)
    assert caught[0].filename == __file__


def bare(host, optimizer=None):
    model = host.Sequential([host.layers.Dense(3)], name="bare")
    if optimizer:
        model.compile(optimizer, "mse")
    return model


NO_PLAN = {
    "a number": (lambda host, ours: 3, TypeError, "takes a compiled model, not 3"),
    "an optimizer of the host": (
        lambda host, ours: compiled(host, host.optimizers.SGD()),
        TypeError, "plan of tf_lamb's optimizers, and .*SGD has none",
    ),
    "not compiled": (
        lambda host, ours: bare(host),
        ValueError, r"bare has no optimizer: call model.compile\(",
    ),
    "not built": (
        lambda host, ours: bare(host, ours.LAMB(1e-3)),
        ValueError, r"bare has no variables yet: call model.build\(",
    ),
}  # fmt: skip


@every_frontend
@pytest.mark.parametrize("case", NO_PLAN)
@pytest.mark.once
def test_what_has_no_plan_is_refused(frontend, case):
    host, ours = FRONTENDS[frontend]
    make, error, words = NO_PLAN[case]
    with pytest.raises(error, match=words):
        ours.describe(make(host, ours))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the example is of TensorFlow")
@every_frontend
def test_the_rates_of_convnext_fall_through_all_its_stages(frontend):
    host, ours = FRONTENDS[frontend]
    model = host.applications.ConvNeXtTiny(weights=None, input_shape=(32, 32, 3), classes=10)
    order = [
        name
        for stage, blocks in enumerate([3, 3, 9, 3])
        for name in [f"downsampling_{stage - 1}", *(f"{stage}_{block}" for block in range(blocks))]
    ][1:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = ours.LAMB(treatments=ours.layer_decay(model, 0.75))
    plan, seen = optimizer.plan_for(model.trainable_variables), set()
    for path, rate in zip(plan.paths, plan.multipliers, strict=True):
        block = re.search(r"_stage_(\d+)_block_(\d+)_", path)
        between = re.search(r"downsampling_[a-z]+_(\d)/", path)
        name = f"downsampling_{between[1]}" if between else block and f"{block[1]}_{block[2]}"
        depth = 0 if "_stem_" in path else order.index(name) + 1 if name else 22
        assert "head" in path or depth < 22
        assert rate == pytest.approx(0.75 ** (22 - depth)), path
        seen.add(depth)
    assert seen == set(range(23))


@every_frontend
def test_most_weights_keep_the_full_rate_with_a_word_alone(frontend):
    host, ours = FRONTENDS[frontend]
    layers = [host.layers.Dense(4, name=name) for name in ("block_0", "block_1", "body", "head")]
    model = host.Sequential([host.Input((4,)), *layers[:2], layers[3]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.layer_decay(model, 0.5)
    layers = [
        host.layers.Dense(n, name=name)
        for n, name in zip((4, 4, 9), ("block_0", "block_1", "body"), strict=True)
    ]
    model = host.Sequential([host.Input((4,)), *layers])
    with pytest.warns(UserWarning, match=r"53% of the weights .* are 'body/kernel', 'body/bias'"):
        assert len(ours.layer_decay(model, 0.5)) == 2


def test_the_example_runs():
    tried = doctest.testmod(describe)
    assert tried.attempted and not tried.failed


@pytest.mark.parametrize(
    ("name", "meant"),
    [("Lamb", "LAMB"), ("Lars", "LARS"), ("Adascale", "AdaScale"), ("fit_stage", "fit_stages")],
)
@pytest.mark.once
def test_a_name_that_is_not_there_gets_the_one_that_is(name, meant):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'. Did you mean '{meant}'?"):
        getattr(tf_lamb, name)


@pytest.mark.once
def test_a_name_that_is_near_none_gets_none():
    with pytest.raises(AttributeError, match=r"no attribute 'elephant'$"):
        tf_lamb.elephant  # noqa: B018
