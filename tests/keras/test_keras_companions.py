"""Ours in what Keras puts around it: its MultiOptimizer, and its OrbaxCheckpoint on JAX.

The rows of the table in docs/resume.md.
"""

import importlib.util

import keras
import numpy as np
import pytest
from support.cases import assert_same
from support.frontends import BACKEND, apply, array, new_variable, on_tensorflow, uncompiled

import tf_lamb.keras as ours

layers = keras.layers
OPTIONS = {
    "gradient_accumulation_steps": 2, "use_ema": True, "ema_momentum": 0.5,
    "on_spike": [4, 9.0], "treatments": {"body": {"rate": 0.5}},
}  # fmt: skip
has_multi = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="came with Keras 3.15"
)
has_orbax = pytest.mark.skipif(
    BACKEND != "jax"
    or not hasattr(keras.callbacks, "OrbaxCheckpoint")
    or not importlib.util.find_spec("orbax"),
    reason="needs JAX, Keras 3.14 and orbax-checkpoint",
)
CUT, STEPS, ROWS = 3, 5, 8  # where a run is cut, in the middle of an update of two


def lamb():
    """With every option that has a state."""
    falling = keras.optimizers.schedules.CosineDecay(0.1, STEPS)
    return ours.LAMB(0.01, weight_decay=falling, exclude_from_weight_decay=["bias"], **OPTIONS)


def multi():
    """LAMB for all but the head, which has Keras's AdamW."""
    others = {".*head/.*": keras.optimizers.AdamW(0.01)}
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(lamb(), others))


def network(optimizer):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    body, head = (layers.Dense(2, name=name) for name in ("body", "head"))
    model = keras.Model(inputs, head(body(inputs)), name="net")
    model.compile(optimizer, keras.losses.MeanSquaredError(), run_eagerly=True)
    return model


def batch(step):
    x = np.random.default_rng(step).normal(size=(ROWS, 3)).astype("float32")
    return x, x[:, :2] * 2 + 1


def data():
    """Of all steps."""
    return (np.concatenate(each) for each in zip(*map(batch, range(STEPS)), strict=True))


def state(model):
    return [array(v) for v in [*model.weights, *model.optimizer.variables]]


def load(path):
    """Keras does not save that a model runs eagerly."""
    model = keras.models.load_model(path)
    model.run_eagerly = True
    return model


def steps(model, first=0, last=STEPS):
    for step in range(first, last):
        model.train_on_batch(*batch(step))
    return model


@has_multi
@uncompiled()
def test_each_optimizer_steps_its_own_variables_as_it_would_alone():
    """One whose variables have a bad gradient skips, and the other steps."""
    rng = np.random.default_rng(0)
    start = {name: rng.normal(size=(4, 3)) for name in ("body/kernel", "head/kernel")}
    together, apart = (
        [new_variable("keras", value, path=path) for path, value in start.items()] for _ in "ab"
    )
    inside, alone = ((ours.LAMB(0.01, global_clipnorm=0.1), ours.Muon(0.01)) for _ in "ab")
    both = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(inside[0], {"head/.*": inside[1]})
    )
    for bad in (False, True, False):
        gradients = [rng.normal(size=(4, 3)) for _ in start]
        gradients[0][0, 0] = np.nan if bad else 1.0
        apply(both, gradients, together)
        for optimizer, g, variable in zip(alone, gradients, apart, strict=True):
            apply(optimizer, [g], [variable])
    for a, b in zip(together, apart, strict=True):
        np.testing.assert_array_equal(array(a), array(b))
    assert [each.skipped_steps for each in inside] == [1, 0]
    assert [int(each.iterations) for each in (both, *inside)] == [3, 2, 3]


@has_multi
@uncompiled()
def test_a_saved_multi_optimizer_goes_on_with_the_same_bits(tmp_path):
    unbroken, broken = (steps(network(multi()), 0, CUT) for _ in range(2))
    broken.save(tmp_path / "model.keras")
    restored = load(tmp_path / "model.keras")
    assert_same(state(broken), state(restored))
    assert_same(state(steps(unbroken, CUT)), state(steps(restored, CUT)))


def two_lambs():
    """LAMB for the body, and another for the head."""
    of_head = ours.LAMB(0.02, **{**OPTIONS, "treatments": None})
    heads = keras.optimizers.OptimizerMap(lamb(), {".*head/.*": of_head})
    return keras.optimizers.MultiOptimizer(heads, name="multi")  # Keras numbers its own otherwise


@has_multi
@uncompiled()
def test_two_of_one_class_are_told_apart_as_keras_numbers_its_own():
    model = network(two_lambs())
    names = ["LAMB", "LAMB_1"]  # of the head's, which comes first, and of the default
    assert [each.name for each in model.optimizer.optimizers] == names
    assert model.get_state_tree()["optimizer_variables"].keys() > {*names}
    steps(model)
    tree = model.get_state_tree(value_format="numpy_array")
    own = tree["optimizer_variables"]
    for each in model.optimizer.optimizers:
        assert int(own[each.name]["iteration"]) == int(each.iterations) > 0
    other = steps(network(two_lambs()), 0, 1)
    other.set_state_tree(tree)
    assert_same(state(model), state(other))


@has_multi
@uncompiled()
def test_each_part_of_a_multi_optimizer_is_migrated():
    """In the middle of an update; a part has no variables before the whole is built."""
    old, new = steps(network(two_lambs()), 0, CUT), network(two_lambs())
    new.set_weights(old.get_weights())
    pairs = list(zip(old.optimizer.optimizers, new.optimizer.optimizers, strict=True))
    with pytest.raises(ValueError, match=r"LAMB is a part of multi.*model\.optimizer\.build"):
        ours.migrate(*pairs[0], new)
    new.optimizer.build(new.trainable_variables)
    for there, here in pairs:
        report = ours.migrate(there, here, new)
        assert len(report.matched) == 2 and not (report.changes or report.left_behind)
    assert_same(*([array(v) for v in steps(each, CUT).weights] for each in (old, new)))


@has_multi
@uncompiled()
def test_optimizers_of_a_function_are_told_apart_and_those_of_keras_keep_their_names():
    parts = {"body": ours.LAMB(), "head": ours.LAMB(), "other": keras.optimizers.Adam(name="LAMB")}
    multi = keras.optimizers.MultiOptimizer(lambda v: parts[v.path.split("/")[0]])
    variables = [new_variable("keras", np.ones((2, 2)), path=f"{name}/kernel") for name in parts]
    multi.build(variables)
    assert [each.name for each in parts.values()] == ["LAMB", "LAMB_1", "LAMB"]
    paths = [v.path for name in ("body", "head") for v in parts[name].variables]
    assert len({*paths}) == len(paths)


def watched(model, callback):
    model.fit(*data(), verbose=0, callbacks=[callback])


LOOKING = {
    "describe": (
        TypeError, r"has none; after .* model\.optimizer\.optimizers", lambda m: ours.describe(m),
    ),
    "StopOnDivergence": (
        TypeError, "not .*MultiOptimizer: compile with one of",
        lambda m: watched(m, ours.StopOnDivergence()),
    ),
    "TrustRatios": (
        TypeError, "not .*MultiOptimizer: compile with one of",
        lambda m: watched(m, ours.TrustRatios("unused")),
    ),
    "AdaScale": (
        ValueError, "not MultiOptimizer", lambda m: ours.AdaScale(multi(), scale=2),
    ),
    "find_batch": (
        ValueError, "MultiOptimizer sets rates itself",
        lambda m: ours.find_batch(m, data(), baseline_batch_size=8, baseline_epochs=1),
    ),
}  # fmt: skip


@has_multi
@uncompiled()
@pytest.mark.parametrize("name", LOOKING)
def test_what_looks_into_an_optimizer_refuses_a_multi_optimizer(name):
    error, words, look = LOOKING[name]
    model = steps(network(multi()))
    with pytest.raises(error, match=words):
        look(model)


@has_multi
@uncompiled()
def test_a_part_of_a_multi_optimizer_shows_its_plan(capsys):
    model = steps(network(multi()))
    next(each for each in model.optimizer.optimizers if hasattr(each, "describe")).describe()
    assert "body/kernel" in capsys.readouterr().out


@has_orbax
@uncompiled()
@pytest.mark.parametrize(
    "make",
    [lamb, *(pytest.param(m, marks=[pytest.mark.slow, has_multi]) for m in (multi, two_lambs))],
)
def test_orbax_saves_in_the_middle_of_fit_and_goes_on_with_the_same_bits(make, tmp_path):
    states = []

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, step, logs=None):
            states.append(state(self.model))

    x, y = data()
    orbax = keras.callbacks.OrbaxCheckpoint(str(tmp_path / "run"), save_freq=CUT)
    network(make()).fit(x, y, batch_size=ROWS, shuffle=False, verbose=0, callbacks=[Keep(), orbax])
    restored = load(str(tmp_path / "run"))
    assert_same(states[CUT - 1], state(restored))
    assert_same(states[-1], state(steps(restored, CUT)))


@uncompiled()
def test_a_backup_keeps_what_lora_trains(tmp_path):
    """Not merged, as Keras saves it: a run that goes on is the one without a break."""

    class Killed(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def train(*callbacks):
        model = network(ours.LAMB(0.1))
        model.layers[1].enable_lora(1)
        model.compile(ours.LAMB(0.1), "mse", run_eagerly=True)
        model.fit(*batch(0), epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
        return [array(weight) for weight in model.weights]

    with pytest.raises(KeyboardInterrupt):
        train(ours.BackupAndRestore(tmp_path), Killed())
    assert_same(train(), train(ours.BackupAndRestore(tmp_path)))


@uncompiled()
@pytest.mark.filterwarnings("ignore:Skipping variable loading")
@pytest.mark.parametrize("make", [keras.optimizers.Adam, ours.LAMB], ids=["Adam", "LAMB"])
def test_keras_forgets_the_optimizer_of_a_model_that_was_saved_as_h5(make, tmp_path):
    """Its own, too: docs/resume.md warns of it."""
    model, kept = network(make()), {}
    for name in ("a.keras", "b.h5", "c.keras"):
        model.save(tmp_path / name)
        if name.endswith(".keras"):
            loaded = keras.models.load_model(tmp_path / name).optimizer
            kept[name] = type(loaded) is type(model.optimizer)  # torch's Adam is a subclass
    assert kept == {"a.keras": True, "c.keras": False}


@has_multi
@uncompiled()
def test_fit_backs_a_multi_optimizer_up(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    def fit(model, *callbacks):
        x, y = data()
        model.fit(x, y, batch_size=ROWS, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        return model

    with pytest.raises(KeyboardInterrupt):
        fit(network(multi()), ours.BackupAndRestore(tmp_path), Stop())
    resumed = fit(network(multi()), ours.BackupAndRestore(tmp_path))
    assert_same(state(resumed), state(fit(network(multi()))))


@has_multi
@on_tensorflow
@uncompiled()
@pytest.mark.parametrize("is_told", [False, True], ids=["not told", "told"])
def test_a_checkpoint_of_tensorflow_needs_to_be_told_of_the_optimizers_inside(is_told, tmp_path):
    """Keras does not track them: news, where it does."""
    import tensorflow as tf

    def checkpoint(model):
        inside = {"inside": list(model.optimizer.optimizers)} if is_told else {}
        return tf.train.Checkpoint(model=model, optimizer=model.optimizer, **inside)

    saved, restored = steps(network(multi())), network(multi())
    restored.optimizer.build(restored.trainable_variables)
    path = checkpoint(saved).save(tmp_path / "ckpt")
    checkpoint(restored).restore(path)
    same = [np.array_equal(*each) for each in zip(state(saved), state(restored), strict=True)]
    assert all(same) == is_told
