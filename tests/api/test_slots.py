"""A slot of another shape and initial value than its variable's, in all that optimizers do."""

import numpy as np
import pytest
from support.frontends import (
    BACKEND,
    FRONTENDS,
    apply,
    array,
    dtype_of,
    every_frontend,
    new_variable,
    on_jax,
    on_tensorflow,
    uncompiled,
)
from support.slots import VARIABLES, expected, make, matrix, start

GRADIENTS = [start(seed) for seed in (1, 2, 3)]


def variables(frontend, dtype="float32"):
    return {path: new_variable(frontend, w, dtype, path) for path, w in start().items()}


def train(optimizer, own, gradients=GRADIENTS):
    for each in gradients:
        apply(optimizer, [each[path] for path in own], own.values())


def assert_is(optimizer, own, state, tolerance=1e-5):
    """The weights and the slots are NumPy's."""
    for i, (path, variable) in enumerate(own.items()):
        w, m, left = state[path]
        kept = {name: array(slot).astype(float) for name, slot in optimizer.state_of(i).items()}
        found = [matrix(path, array(variable).astype(float)), matrix(path, kept["m"])]
        if "left" in kept:
            found.append(kept["left"])
        for one, other in zip(found, (w, m, left), strict=False):
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@every_frontend
def test_steps_are_numpys(frontend):
    optimizer, own = make(frontend), variables(frontend)
    for gradient, state in zip(GRADIENTS, expected(GRADIENTS), strict=True):
        train(optimizer, own, [gradient])
        assert_is(optimizer, own, state)
    assert [list(optimizer.state_of(i)) for i in (3, 4)] == [["m", "left"], ["m"]]


@every_frontend
@uncompiled()
@pytest.mark.parametrize(
    ("dtype", "changes", "slot_dtypes", "tolerance"),
    [
        ("float64", {"dtypes": {"slots": "bfloat16"}}, ("float64", "float64"), 1e-12),
        ("float32", {"dtypes": {"slots": "bfloat16"}}, ("bfloat16", "float32"), 3e-2),
        ("bfloat16", {"dtypes": {"masters": "float32"}}, ("float32", "float32"), 3e-2),
    ],
)
def test_its_dtype_is_its_own(frontend, dtype, changes, slot_dtypes, tolerance):
    if dtype == "float64" and BACKEND == "jax":
        pytest.skip("JAX has no float64 unless it is asked for")
    optimizer, own = make(frontend, **changes), variables(frontend, dtype)
    train(optimizer, own, GRADIENTS[:1])
    (first,) = expected(GRADIENTS[:1])
    assert_is(optimizer, own, first, tolerance)
    kept = optimizer.state_of(0)
    assert tuple(dtype_of(kept[name]) for name in ("m", "left")) == slot_dtypes


@every_frontend
@uncompiled()
def test_averages_and_micro_batches(frontend):
    optimizer = make(frontend, use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=2)
    own = variables(frontend)
    for each in GRADIENTS:
        parts = [{path: g * part for path, g in each.items()} for part in (0.5, 1.5)]
        train(optimizer, own, parts)
    states = list(expected(GRADIENTS))
    assert_is(optimizer, own, states[-1])
    for i, path in enumerate(own):
        average = states[0][path][0]  # it begins with the first weights
        for state in states[1:]:
            average = 0.5 * average + 0.5 * state[path][0]
        found = matrix(path, array(optimizer.state_of(i)["average"]))
        np.testing.assert_allclose(found, average, rtol=1e-5, atol=1e-5)


@every_frontend
@uncompiled()
def test_a_skipped_step_leaves_it(frontend):
    optimizer, own = make(frontend), variables(frontend)
    train(optimizer, own, GRADIENTS[:2])
    bad = {path: np.full_like(g, np.nan) for path, g in GRADIENTS[0].items()}
    train(optimizer, own, [bad, GRADIENTS[2]])
    *_, last = expected(GRADIENTS)
    assert_is(optimizer, own, last)


@every_frontend
@uncompiled()
@pytest.mark.parametrize("named_alike", [True, False])
def test_what_is_saved_goes_on(frontend, named_alike):
    before, own = make(frontend), variables(frontend)
    train(before, own, GRADIENTS[:2])
    store = {}
    before.save_own_variables(store)

    # Layers that nobody named have other names in the next model.
    names = {path: path if named_alike else path.replace("/", "_1/") for path in own}
    after = {path: new_variable(frontend, array(v), path=names[path]) for path, v in own.items()}
    optimizer = make(frontend)
    optimizer.build(list(after.values()))
    optimizer.load_own_variables(dict(sorted(store.items())))
    train(optimizer, after, GRADIENTS[2:])
    *_, last = expected(GRADIENTS)
    assert_is(optimizer, after, last)


@every_frontend
@uncompiled()
def test_a_file_of_no_steps_begins_at_the_initial_value(frontend):
    optimizer, own = make(frontend), variables(frontend)
    store = {}
    make(frontend).save_own_variables(store)
    train(optimizer, own, GRADIENTS[:2])
    optimizer.load_own_variables(store)
    np.testing.assert_array_equal(array(optimizer.state_of(0)["left"]), np.eye(4))
    np.testing.assert_array_equal(array(optimizer.state_of(0)["m"]), np.zeros((4, 3)))


@every_frontend
@uncompiled()
def test_it_migrates_or_begins_anew(frontend):
    host, ours = FRONTENDS[frontend]
    model = host.Sequential([host.Input((4,)), host.layers.Dense(3), host.layers.Dense(2)])
    own = model.trainable_variables
    old, new = make(frontend, rows=None), make(frontend, rows=None)
    apply(old, [np.ones(v.shape) for v in own], own)
    ours.migrate(old, new, model, fresh=[old.plan.names[2]])
    first, second = (array(new.state_of(i)["left"]) for i in (0, 2))
    np.testing.assert_allclose(first, 0.5 * np.eye(4) + 1.5)
    np.testing.assert_array_equal(second, np.eye(3))


@on_tensorflow
@every_frontend
def test_replicas_are_numpys(frontend):
    import tensorflow as tf
    from support.clusters import mirrored

    strategy = mirrored(2)
    with strategy.scope():
        optimizer, own = make(frontend), variables(frontend)
        optimizer.build(list(own.values()))

    @tf.function
    def run(gradients):
        def replica():
            part = 0.25 + 0.5 * tf.cast(
                tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32
            )
            optimizer.apply_gradients(
                [(part * gradients[path], variable) for path, variable in own.items()]
            )

        strategy.run(replica)

    for each in GRADIENTS:
        run({path: tf.constant(g, tf.float32) for path, g in each.items()})
    *_, last = expected(GRADIENTS)
    assert_is(optimizer, own, last)
    left = optimizer.state_of(0)["left"]
    left = getattr(left, "value", left) if frontend == "keras" else left
    first, second = strategy.experimental_local_results(left)
    np.testing.assert_array_equal(first.numpy(), second.numpy())


@on_jax
def test_each_device_has_its_share_where_the_update_is_shared():
    import keras
    from keras import distribution

    devices = distribution.list_devices()[:2]
    distribution.set_distribution(distribution.DataParallel(devices=devices))
    try:
        optimizer, own = make("keras", shard_update=True), variables("keras")
        with pytest.warns(UserWarning, match=r"square/kernel \(9 parameters\)"):
            train(optimizer, own)
        *_, last = expected(GRADIENTS)
        assert_is(optimizer, own, last)
        kept = optimizer.state_of(0)
        assert [kept[name]._layout.axes for name in ("m", "left")] == [("batch", None)] * 2

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6)])
        model.compile(make("keras", rows=None, shard_update=True), "mse")
        model.fit(np.ones((8, 4)), np.ones((8, 6)), batch_size=8, verbose=0)
        kept = model.optimizer.state_of(0)
        of = [kept[name].value.sharding.is_fully_replicated for name in ("m", "left")]
        assert of == [False, False]
    finally:
        distribution.set_distribution(None)


@every_frontend
def test_the_first_slot_of_every_optimizer_has_its_variables_shape(frontend):
    """It stands for its variable: where it lies, and how it is laid out."""
    _, ours = FRONTENDS[frontend]
    for name in ("AdamP", "LAMB", "LANS", "LARS", "Muon", "SGDP", "SOAP"):
        optimizer = getattr(ours, name)(0.1)
        own = variables(frontend)
        optimizer.build(list(own.values()))
        for i, (shape, _) in enumerate(VARIABLES.values()):
            first = next(iter(optimizer.state_of(i).values()))
            assert tuple(first.shape) == shape
