"""State is known by what it is: into another optimizer it goes on right, or is refused."""

import warnings

import numpy as np
import pytest
from support.cases import assert_same
from support.frontends import (
    BACKEND,
    FRONTENDS,
    apply,
    array,
    every_frontend,
    new_variable,
    uncompiled,
)
from support.small_model import functional, two_layers

SHAPES = [(3, 4), (4,), (4, 2), (2,)]


def lamb(frontend, model, name="LAMB", **arguments):
    """An optimizer compiled with the model and built for it."""
    host, ours = FRONTENDS[frontend]
    cls = getattr(ours, name)
    optimizer = cls(0.1, **arguments) if "inner" not in arguments else cls(**arguments)
    model.compile(optimizer=optimizer, loss="mse")
    optimizer.build(model.trainable_variables)
    return optimizer


def steps(optimizer, model, count, start=0):
    for t in range(start, start + count):
        gradients = [np.random.default_rng(10 * t + i).normal(size=s) for i, s in enumerate(SHAPES)]
        apply(optimizer, gradients, model.trainable_variables)


def saved(frontend, folder, count=8, **arguments):
    """A file with the weights and the optimizer after some micro-steps, and the two."""
    model = two_layers(frontend)
    optimizer = lamb(frontend, model, **arguments)
    steps(optimizer, model, count)
    path = str(folder / "model.weights.h5")
    model.save_weights(path)
    return path, model, optimizer


def loaded(frontend, path, **arguments):
    model = two_layers(frontend)
    optimizer = lamb(frontend, model, **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.load_weights(path)
    return model, optimizer


def slots(optimizer):
    return [array(slot) for own in optimizer._storage.slots for slot in own]


OPTIONS = {
    "averages": {"use_ema": True, "ema_momentum": 0.9},
    "accumulation": {"gradient_accumulation_steps": 2},
    "nothing skipped": {"on_nonfinite": "propagate"},
    "clipping": {"global_clipnorm": 1.0},
    "none": {},
}


@every_frontend
@uncompiled()
@pytest.mark.parametrize("before", OPTIONS)
@pytest.mark.parametrize("after", OPTIONS)
def test_other_options_take_what_they_have_a_place_for(tmp_path, frontend, before, after):
    path, model, old = saved(frontend, tmp_path, **OPTIONS[before])
    _, new = loaded(frontend, path, **OPTIONS[after])
    assert int(new.iterations) == int(old.iterations) == (4 if before == "accumulation" else 8)
    assert_same(slots(new), slots(old))
    if after == "accumulation":
        assert not any(array(a).any() for a in new._storage.accumulators)


@every_frontend
@uncompiled()
def test_the_step_is_the_same_under_another_accumulation(tmp_path, frontend):
    """An update is one step, of however many micro-batches: schedules do not jump."""
    path, _, old = saved(frontend, tmp_path, count=32, gradient_accumulation_steps=4)
    assert int(old.iterations) == 8
    for count in (8, 4, 2, None):
        _, new = loaded(frontend, path, gradient_accumulation_steps=count)
        assert int(new.iterations) == 8
        assert_same(slots(new), slots(old))


@every_frontend
@uncompiled()
def test_what_is_added_up_goes_on_in_an_update_of_as_many(tmp_path, frontend):
    path, model, old = saved(frontend, tmp_path, count=6, gradient_accumulation_steps=4)
    again, new = loaded(frontend, path, gradient_accumulation_steps=4)
    for optimizer, its in ((old, model), (new, again)):
        steps(optimizer, its, 2, start=6)
    assert int(new.iterations) == int(old.iterations) == 2
    assert_same(map(array, again.trainable_variables), map(array, model.trainable_variables))


@every_frontend
@uncompiled()
def test_averages_that_a_file_does_not_hold_begin_with_the_weights(tmp_path, frontend):
    path, _, _ = saved(frontend, tmp_path)
    model, optimizer = loaded(frontend, path, use_ema=True, ema_momentum=0.9)
    before = [array(v) for v in model.trainable_variables]
    optimizer.finalize_variable_values(model.trainable_variables)
    assert_same(before, map(array, model.trainable_variables))
    steps(optimizer, model, 1)
    weights = [array(v) for v in model.trainable_variables]
    assert_same(weights, [array(optimizer.state_of(i)["average"]) for i in range(4)])


@every_frontend
@uncompiled()
@pytest.mark.parametrize("other", [2, None, {0: 2, 9: 4}])
def test_what_is_added_up_is_dropped_where_it_is_not(tmp_path, frontend, other):
    path, _, _ = saved(frontend, tmp_path, count=7, gradient_accumulation_steps=4)
    model = two_layers(frontend)
    optimizer = lamb(frontend, model, gradient_accumulation_steps=other)
    with pytest.warns(UserWarning, match="3 that were added up are dropped"):
        model.load_weights(path)
    gradients = [np.full(shape, 2.0) for shape in SHAPES]
    for _ in range(2 if other else 1):
        apply(optimizer, gradients, model.trainable_variables)
    assert int(optimizer.iterations) == 2
    _, twin, old = saved(frontend, tmp_path, count=4, gradient_accumulation_steps=4)
    for _ in range(4):
        apply(old, gradients, twin.trainable_variables)
    for one, two in zip(slots(optimizer), slots(old), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6)


@every_frontend
@uncompiled()
def test_a_dtype_of_slots_may_change(tmp_path, frontend):
    path, _, old = saved(frontend, tmp_path)
    _, new = loaded(frontend, path, dtypes={"slots": "bfloat16"})
    for wide, half in zip(slots(old), slots(new), strict=True):
        np.testing.assert_allclose(half.astype("float32"), wide, rtol=2**-8, atol=1e-30)
    path, _, old = saved(frontend, tmp_path, dtypes={"slots": "bfloat16"})
    _, new = loaded(frontend, path)
    assert_same(slots(new), [slot.astype("float32") for slot in slots(old)])


@every_frontend
@uncompiled()
@pytest.mark.parametrize(
    ("name", "words"),
    [("LANS", "lans did not write this state, lamb wrote it"), ("LARS", "lamb wrote it")],
)
def test_the_state_of_another_rule_is_refused(tmp_path, frontend, name, words):
    path, model, _ = saved(frontend, tmp_path)
    other = two_layers(frontend)
    optimizer = lamb(frontend, other, name)
    with pytest.raises(ValueError, match=words):
        other.load_weights(path)
    assert int(optimizer.iterations) == 0
    assert not any(slot.any() for slot in slots(optimizer))


@every_frontend
@uncompiled()
def test_the_state_of_other_variables_is_refused(tmp_path, frontend):
    def named(frozen=()):
        model = functional(frontend)
        for name in frozen:
            model.get_layer(name).trainable = False
        return model, lamb(frontend, model)

    model, old = named()
    for i, own in enumerate(old._storage.slots):
        own[0].assign(np.full(own[0].shape, float(i)))
    path = str(tmp_path / "model.weights.h5")
    model.save_weights(path)
    head, new = named(["encoder", "final_layer_norm"])
    head.load_weights(path)  # the state of what it trains, at another position, is in the file
    assert [float(array(own[0]).max()) for own in new._storage.slots] == [7.0, 8.0]
    head.save_weights(path)
    with pytest.raises(ValueError, match="of 2 variables, and of the 9 here it lacks"):
        named()[0].load_weights(path)


@every_frontend
@uncompiled()
def test_weights_that_are_set_by_position_are_as_many(tmp_path, frontend):
    variables = [new_variable(frontend, np.ones(2))]
    one, two = (FRONTENDS[frontend][1].LAMB(0.1, use_ema=ema) for ema in (True, False))
    one.build(variables)
    two.build(variables)
    with pytest.raises(ValueError, match="are of other options"):
        two.set_weights([array(v) for v in one.variables])


@every_frontend
@uncompiled()
@pytest.mark.parametrize("wrapper", ["MeasureNoise", "AdaScale"])
def test_wrappers_know_theirs(tmp_path, frontend, wrapper):
    def wrapped(k):
        inner = FRONTENDS[frontend][1].LAMB(0.1, gradient_accumulation_steps=k)
        more = {"scale": 2.0} if wrapper == "AdaScale" else {}
        return {"name": wrapper, "inner": inner, **more}

    model = two_layers(frontend)
    old = lamb(frontend, model, **wrapped(2))
    steps(old, model, 14)
    path = str(tmp_path / "model.weights.h5")
    model.save_weights(path)
    for k in (2, 4):
        _, new = loaded(frontend, path, **wrapped(k))
        assert int(new.iterations) == int(old.iterations) == 7
        assert_same(slots(new.inner_optimizer), slots(old.inner_optimizer))
        for name in ("variance", "signal", "count"):
            new_value, old_value = (array(each._meter.state[name]) for each in (new, old))
            assert_same([new_value], [old_value])
    kind = {"MeasureNoise": "measured", "AdaScale": "adascale"}[wrapper]
    with pytest.raises(ValueError, match=f"lamb did not write this state, {kind} wrote"):
        loaded(frontend, path)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a checkpoint is TensorFlow's")
@every_frontend
@uncompiled()
@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("after", [{"gradient_accumulation_steps": 8}, {"use_ema": True}, {}])
@pytest.mark.parametrize(
    "before", [{"gradient_accumulation_steps": 4}, {"use_ema": True}, {"on_nonfinite": "propagate"}]
)
def test_a_checkpoint_of_objects_crosses_by_name(tmp_path, frontend, before, after, built):
    import tensorflow as tf

    _, model, old = saved(frontend, tmp_path, count=14, **before)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=old)
    path = checkpoint.write(str(tmp_path / "checkpoint"))
    again, new = two_layers(frontend), FRONTENDS[frontend][1].LAMB(0.1, **after)
    if built:
        new.build(again.trainable_variables)
    tf.train.Checkpoint(model=again, optimizer=new).read(path).expect_partial()
    if not built:
        new.build(again.trainable_variables)
    assert int(new.iterations) == int(old.iterations)
    assert_same(slots(new), slots(old))
    if "gradient_accumulation_steps" in after:
        assert not any(array(a).any() for a in new._storage.accumulators)


@every_frontend
@uncompiled()
def test_a_file_of_no_steps_begins_anew(frontend):
    model = two_layers(frontend)
    optimizer = lamb(frontend, model)
    steps(optimizer, model, 2)
    FRONTENDS[frontend][1].LAMB(0.1).save_own_variables(store := {})
    optimizer.load_own_variables(store)
    assert not any(slot.any() for slot in slots(optimizer))
