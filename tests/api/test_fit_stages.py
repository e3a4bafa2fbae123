"""`fit_stages`: what it trains, what callbacks see of it, how it is resumed, what it refuses."""

import itertools
import os
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
from support.examples import run_example
from support.frontends import (
    BACKEND,
    FRONTENDS,
    every_frontend,
    extra,
    on_jax,
    on_tensorflow,
    precision,
    uncompiled,
)

from tf_lamb.core.recipes import Recipe, StagedRecipe

EXAMPLES, WIDTH = 22, 3
STAGES = ((4, 5), (8, 3), (20, 3))  # batch, updates
STEPS = [6, 3, 1, 1]  # of epochs, whose length is 24


@pytest.fixture(autouse=True)
def quick():
    """Operation by operation, but where compilation is what is tested."""
    with uncompiled(fits=True):
        yield


def recipe_of(stages=STAGES, rate=0.1, **more):
    return StagedRecipe(title="Growing", stages=tuple(
        Recipe(
            title=f"batch {batch}", batch_size=batch, learning_rate=rate * 0.5**i, warmup_steps=0,
            train_steps=steps, decay="constant", **more,
        )
        for i, (batch, steps) in enumerate(stages)
    ))  # fmt: skip


def data(examples=EXAMPLES):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(examples, WIDTH)).astype("float32")
    return x, (x @ rng.normal(size=(WIDTH, 1)) + 1).astype("float32")


def model_of(frontend, recipe=None, optimizer="SGD", compiled=None, **more):
    host, ours = FRONTENDS[frontend]
    model = host.Sequential([host.layers.Input((WIDTH,)), host.layers.Dense(1)])
    model.set_weights([np.full((WIDTH, 1), 0.3), np.zeros(1)])
    rate = (recipe or recipe_of()).schedule(ours.schedules)
    kind = getattr(ours, optimizer, None) or getattr(host.optimizers, optimizer)
    if optimizer == "SGD":
        more["momentum"] = 0.9
    model.compile(kind(rate, **more), "mse", **(compiled or {}))
    return model


def fit(frontend, model, of=None, recipe=None, **how):
    _, ours = FRONTENDS[frontend]
    how = {"verbose": 0, **how}
    return ours.fit_stages(model, data() if of is None else of, recipe or recipe_of(), **how)


def state_of(model):
    slots = model.optimizer.variables
    return [np.asarray(v) for v in (*model.variables, *(slots() if callable(slots) else slots))]


def assert_equal(a, b):
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        np.testing.assert_array_equal(one, other)


def shuffled(seed=0):
    """The places of the stream of arrays."""
    return np.concatenate([
        np.random.default_rng((seed, each)).permutation(EXAMPLES) for each in range(5)
    ])  # fmt: skip


def by_hand(model, order, stages=STAGES, calls=(1, 1, 1)):
    """The same training, call by call."""
    (x, y), at = data(), 0
    for (batch, steps), count in zip(stages, calls, strict=True):
        for _ in range(steps * count):
            rows = order[at : at + batch // count]
            model.train_on_batch(x[rows], y[rows])
            at += batch // count
    return model


# -- what it trains --------------------------------------------------------------------------------


@every_frontend
def test_it_is_the_loop_of_its_updates(frontend):
    model = model_of(frontend)
    history = fit(frontend, model)
    assert_equal(state_of(by_hand(model_of(frontend), shuffled())), state_of(model))
    assert history.epoch == [0, 1, 2, 3] and len(history.history["loss"]) == 4
    assert int(model.optimizer.iterations) == 11
    other = model_of(frontend)
    fit(frontend, other, seed=1)
    assert not np.array_equal(state_of(other)[0], state_of(model)[0])


@every_frontend
def test_micro_batches_are_taken_from_the_optimizer(frontend):
    """A number that grows."""
    accumulating = {"optimizer": "LAMB", "gradient_accumulation_steps": {0: 1, 5: 2, 8: 5}}
    fit(frontend, model := model_of(frontend, **accumulating))
    same = by_hand(model_of(frontend, **accumulating), shuffled(), calls=(1, 2, 5))
    assert_equal(state_of(same), state_of(model))
    assert int(model.optimizer.iterations) == 11


@every_frontend
def test_averages_of_the_weights_come_at_the_end(frontend):
    averaged = {"use_ema": True, "ema_momentum": 0.9}
    fit(frontend, model := model_of(frontend, **averaged))
    same = by_hand(model_of(frontend, **averaged), shuffled())
    before = [np.asarray(w) for w in same.get_weights()]
    same.optimizer.finalize_variable_values(same.trainable_variables)
    assert_equal(state_of(same), state_of(model))
    assert not np.array_equal(before[0], model.get_weights()[0])
    assert "finalize_variable_values" not in vars(model.optimizer)


@every_frontend
def test_a_call_of_each_size_is_compiled_once(frontend):
    """On TensorFlow, one program serves all sizes."""
    host, _ = FRONTENDS[frontend]
    traced = []

    class Tracing(host.layers.Layer):
        def call(self, x):
            traced.append(x.shape[0])
            return x

    model = host.Sequential([host.layers.Input((WIDTH,)), Tracing(), host.layers.Dense(1)])
    model.compile(host.optimizers.SGD(0.1), "mse")
    if BACKEND == "tensorflow":
        import tensorflow as tf

        tf.config.run_functions_eagerly(False)
    traced.clear()
    recipe = recipe_of(((4, 5),))
    fit(frontend, model, recipe=recipe)
    one_size = len(traced)
    model.compile(host.optimizers.SGD(0.1), "mse")
    traced.clear()
    constant = StagedRecipe(
        title="Growing", stages=tuple(stage for b, s in STAGES for stage in recipe_of(((b, s),)))
    )
    fit(frontend, model, recipe=constant)
    sizes = {"tensorflow": 0, "jax": 2, "torch": len(traced) - one_size}[BACKEND]
    assert len(traced) - one_size == sizes


def by_dataset(host, *arrays):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(arrays).shuffle(EXAMPLES, seed=3).batch(7)


def by_py_dataset(host, x, y):
    class Shuffling(getattr(host.utils, "PyDataset", None) or host.utils.Sequence):
        """Anew at the end of each pass, in batches of 6, of which the last has 4."""

        def __init__(self):
            super().__init__()
            self.random, self.order = np.random.default_rng(1), np.arange(EXAMPLES)

        def __len__(self):
            return 4

        def __getitem__(self, index):
            rows = self.order[6 * index : 6 * (index + 1)]
            return x[rows], y[rows]

        def on_epoch_end(self):
            self.random.shuffle(self.order)

    return Shuffling()


def by_list(host, x, y):
    return [(x[:15], y[:15]), (x[15:], y[15:])]


KINDS = {"dataset": by_dataset, "py_dataset": by_py_dataset, "list": by_list}
if BACKEND != "tensorflow":
    del KINDS["dataset"]


def order_of(kind, host):
    """The places that five passes over the data have, which are its inputs."""
    places = np.arange(EXAMPLES)[:, None]
    of = KINDS[kind](host, places, places)
    if kind == "dataset":
        for _ in range(3):  # it is looked at, counted, and gives the model its first batch
            iter(of)
    found = []
    for _ in range(5):
        found += [np.asarray(of[i][0]) for i in range(len(of))] if kind != "dataset" else [
            batch[0].numpy() for batch in of
        ]  # fmt: skip
        if kind == "py_dataset":
            of.on_epoch_end()
    return np.concatenate(found)[:, 0]


@pytest.mark.once
def test_a_py_dataset_is_told_of_each_pass():
    """As by `fit`, where it may shuffle."""
    host, _ = FRONTENDS["keras"]
    of, told = by_py_dataset(host, *data()), []
    of.on_epoch_begin = lambda: told.append("begin")
    of.on_epoch_end = lambda: told.append("end")
    fit("keras", model_of("keras"), of)
    assert told == ["begin", *["begin", "end"] * 4, "begin"]  # once for the first batch alone


@pytest.mark.once
def test_a_py_dataset_may_tell_its_number_of_batches_alone():
    """By `num_batches`, which is None for one without end."""
    host, _ = FRONTENDS["keras"]

    class Numbered(host.utils.PyDataset):
        num_batches = None

        def __getitem__(self, index):
            return data()

    with pytest.raises(ValueError, match="does not say how many .* pass examples="):
        fit("keras", model_of("keras"), Numbered())
    Numbered.num_batches = 1
    fit("keras", model := model_of("keras"), Numbered())
    assert int(model.optimizer.iterations) == 11


@pytest.mark.once
def test_batches_of_several_sizes_are_counted_or_refused():
    host, _ = FRONTENDS["keras"]
    x, y = data()
    starts = (0, 2, 4, 6, 20, 22)  # the first, the second, the middle and the last hold two
    several = [(x[a:b], y[a:b]) for a, b in itertools.pairwise(starts)]
    fit("keras", model := model_of("keras"), several)
    fit("keras", same := model_of("keras"), [(x, y)])
    assert_equal(state_of(same), state_of(model))

    class Several(host.utils.PyDataset):
        def __len__(self):
            return len(several)

        def __getitem__(self, index):
            return several[index]

    small = recipe_of(((2, 3), (4, 2)))  # into the second pass
    with pytest.raises(Exception, match="more than the 10 examples .* pass examples="):
        fit("keras", model_of("keras", small), Several(), small)
    fit("keras", model := model_of("keras"), Several(), examples=22)
    assert_equal(state_of(same), state_of(model))
    several = [(x[:2], y[:2]), (x[2:20], y[2:20]), (x[20:], y[20:])]  # the second tells of it
    fit("keras", model := model_of("keras"), Several())
    assert_equal(state_of(same), state_of(model))


@every_frontend
def test_several_inputs_come_as_lists_or_dicts(frontend):
    host, ours = FRONTENDS[frontend]
    (x, y), weights = data(), np.ones(EXAMPLES)
    recipe = recipe_of(((4, 2), (8, 1)))

    def trained(inputs, of):
        output = host.layers.Dense(1)(host.layers.Add()(list(inputs.values())))
        model = host.Model(inputs if isinstance(of, dict) else list(inputs.values()), output)
        model.set_weights([np.full((WIDTH, 1), 0.3), np.zeros(1)])
        model.compile(host.optimizers.SGD(recipe.schedule(ours.schedules)), "mse")
        fit(frontend, model, (of, y, weights), recipe)
        return state_of(model)

    inputs = {name: host.layers.Input((WIDTH,), name=name) for name in "ab"}
    assert_equal(trained(inputs, [x, 0 * x]), trained(inputs, {"a": x, "b": 0 * x}))


ARRAYS = {
    "x": lambda x, y: (x,),
    "no weights": lambda x, y: (x, y, None),
    "a list": lambda x, y: ([x, x],),
    "a dict": lambda x, y: ({"a": x, "b": y},),
}
BATCHES = {
    "batches of x": lambda x, y: x,
    "batches of x and y": lambda x, y: (x, y),
    "batches of a dict": lambda x, y: {"a": x, "b": y},
}


@pytest.mark.parametrize(
    "kind", [*ARRAYS, *BATCHES, pytest.param("windows of a series", marks=on_tensorflow)]
)
@every_frontend
def test_a_train_step_of_the_user_gets_what_fit_gives_it(frontend, kind):
    host, ours = FRONTENDS[frontend]
    (x, y), recipe = data(), recipe_of(((8, 1), (16, 1)))

    class Model(host.Sequential):
        def train_step(self, *state_and_data):
            *state, batch = state_and_data  # a state on JAX
            batch = keras.tree.map_structure(lambda _: "array", batch)
            seen.append(keras.tree.lists_to_tuples(batch))  # a generator has lists on torch
            return ({"loss": 0.0}, *state) if state else {"loss": 0.0}

    class Batches(getattr(host.utils, "PyDataset", None) or host.utils.Sequence):
        def __init__(self, batch):
            super().__init__()
            self.batch = batch

        def __len__(self):
            return 2

        def __getitem__(self, index):
            return self.batch

    def compiled():
        model = Model([host.layers.Input((WIDTH,)), host.layers.Dense(1)])
        model.compile(host.optimizers.SGD(recipe.schedule(ours.schedules)))
        return model

    if kind in ARRAYS:
        given = ARRAYS[kind](x, y)
    elif kind in BATCHES:
        given = Batches(BATCHES[kind](x[:11], y[:11]))
    else:
        given = host.utils.timeseries_dataset_from_array(x, None, 1, batch_size=11)
    seen = []
    compiled().fit(*(given if isinstance(given, tuple) else [given]), shuffle=False, verbose=0)
    (wanted, *_), seen = seen, []
    fit(frontend, compiled(), given, recipe)
    assert seen and all(each == wanted for each in seen)


# -- what callbacks see ----------------------------------------------------------------------------


def recording(host, seen):
    """A callback that records every call, and what it is told of the run."""

    class Recording(host.callbacks.Callback):
        pass

    def recorder(name):
        def record(self, *told, **logs):
            numbers = (each for each in told if isinstance(each, int))
            seen.append((name, *numbers, self.params["steps"]))

        return record

    for event in ("train", "epoch", "train_batch", "test", "test_batch"):
        for when in ("begin", "end"):
            setattr(Recording, f"on_{event}_{when}", recorder(f"on_{event}_{when}"))
    return Recording()


@every_frontend
def test_callbacks_see_what_one_fit_shows_them(frontend):
    host, _ = FRONTENDS[frontend]
    recipe, seen, wanted = recipe_of(((4, 6),)), [], []
    model = model_of(frontend, recipe)
    history = fit(
        frontend, model, data(8), recipe, validation_data=data(20),
        callbacks=[recording(host, seen)],
    )  # fmt: skip
    plain = model_of(frontend, recipe)
    same = plain.fit(
        *data(8), batch_size=4, epochs=3, validation_data=data(20), verbose=0,
        callbacks=[recording(host, wanted)],
    )  # fmt: skip
    assert seen == wanted
    assert (history.epoch, history.params) == (same.epoch, same.params)
    assert history.history.keys() == same.history.keys()
    assert getattr(model, "_train_counter", 6) == getattr(plain, "_train_counter", 6)


@pytest.mark.once
@every_frontend
def test_callbacks_are_told_the_steps_of_each_epoch(frontend, capsys):
    host, _ = FRONTENDS[frontend]
    seen = []
    fit(frontend, model_of(frontend), callbacks=[recording(host, seen)], verbose=2)
    assert [each for each in seen if each[0] == "on_epoch_begin"] == [
        ("on_epoch_begin", epoch, steps) for epoch, steps in enumerate(STEPS)
    ]
    assert sum(each[0] == "on_train_batch_end" for each in seen) == sum(STEPS)
    assert [name for name, *_ in seen].count("on_train_begin") == 1
    assert seen[-1][0] == "on_train_end"
    printed = capsys.readouterr().out
    assert "Epoch 1/4" in printed and "Epoch 4/4" in printed and "6/6" in printed


@pytest.mark.once
@every_frontend
def test_a_callback_ends_it(frontend):
    host, _ = FRONTENDS[frontend]
    seen, model = [], model_of(frontend)
    stop = host.callbacks.EarlyStopping("loss", mode="max", patience=1, restore_best_weights=True)
    history = fit(frontend, model, callbacks=[stop, recording(host, seen)])
    assert history.epoch == [0, 1] and seen[-1][0] == "on_train_end"
    assert_equal(by_hand(model_of(frontend), shuffled(), ((4, 5), (8, 1)), (1, 1)).get_weights(),
                 model.get_weights())  # fmt: skip


@pytest.mark.once
def test_a_rate_that_a_callback_lowers_stays_low():
    host, ours = FRONTENDS[frontend := "keras"]
    recipe = StagedRecipe(title="Constant", stages=tuple(
        stage for each in STAGES for stage in recipe_of((each,))
    ))  # fmt: skip
    model = model_of(frontend, recipe)
    model.compile(ours.LAMB(0.1), "mse")

    class Lower(host.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                model.optimizer.learning_rate = 0.05

    fit(frontend, model, recipe=recipe, callbacks=[Lower()])
    assert float(np.asarray(model.optimizer.learning_rate)) == pytest.approx(0.05)


# -- how it is resumed -----------------------------------------------------------------------------


class Died(Exception):
    pass


def dying(host, epoch, batch):
    class Dying(host.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, at, logs=None):
            if (self.epoch, at) == (epoch, batch):
                raise Died

    return Dying()


@pytest.mark.parametrize(
    "epoch, batch", [pytest.param(0, 3, marks=pytest.mark.slow), (1, 1), (3, 0)]
)
@every_frontend
def test_a_killed_training_ends_with_the_same_weights(frontend, epoch, batch, tmp_path):
    """In each stage."""
    host, ours = FRONTENDS[frontend]
    more = {"use_ema": True}
    fit(frontend, whole := model_of(frontend, **more))
    backup = str(tmp_path / "backup")
    with pytest.raises(Died):
        fit(frontend, model_of(frontend, **more), callbacks=[
            ours.BackupAndRestore(backup), dying(host, epoch, batch)
        ])  # fmt: skip
    model = model_of(frontend, **more)
    history = fit(frontend, model, callbacks=[ours.BackupAndRestore(backup)])
    assert history.epoch == list(range(epoch, 4))
    assert_equal(state_of(whole), state_of(model))
    assert not os.path.exists(os.path.join(backup, "chief")) and not (
        os.path.isdir(backup) and os.listdir(backup)
    )


@every_frontend
def test_where_float16_overflows_the_data_goes_on_and_is_resumed(frontend, tmp_path):
    """A loss scale skips the first calls, until it has found its value."""
    host, ours = FRONTENDS[frontend]
    recipe = recipe_of(STAGES[:2])

    def scaled():
        return model_of(frontend, recipe, "LAMB", gradient_accumulation_steps={0: 1, 5: 2})

    backup = str(tmp_path / "backup")
    with precision(frontend, policy="mixed_float16"):
        fit(frontend, whole := scaled(), recipe=recipe)
        same = by_hand(scaled(), shuffled(), STAGES[:2], (1, 2))
        with pytest.raises(Died):
            fit(frontend, scaled(), recipe=recipe, callbacks=[
                ours.BackupAndRestore(backup), dying(host, 1, 0)
            ])  # fmt: skip
        resumed = ours.BackupAndRestore(backup)
        fit(frontend, model := scaled(), recipe=recipe, callbacks=[resumed])
    assert 0 < int(whole.optimizer.iterations) < 8
    assert_equal(state_of(same), state_of(whole))
    assert_equal(state_of(whole), state_of(model))


of_each_kind = pytest.mark.parametrize("frontend, kind", [
    *(("keras", kind) for kind in KINDS),
    *((frontend, "py_dataset") for frontend in FRONTENDS if frontend != "keras"),
])  # fmt: skip


@of_each_kind
def test_other_data_are_batched_anew_in_their_order_and_go_on_where_they_were(
    frontend, kind, tmp_path
):  # fmt: skip
    """By the backup of the host itself, too."""
    host, _ = FRONTENDS[frontend]
    whole = state_of(by_hand(model_of(frontend), order_of(kind, host)))
    kept = host.callbacks.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=False)
    with pytest.raises(Died):
        fit(frontend, model_of(frontend), KINDS[kind](host, *data()), callbacks=[
            kept, dying(host, 2, 0)
        ])  # fmt: skip
    model = model_of(frontend)
    history = fit(frontend, model, KINDS[kind](host, *data()), callbacks=[kept])
    assert history.epoch == [2, 3]
    assert_equal(whole, state_of(model))
    fit(frontend, ended := model_of(frontend), callbacks=[kept])
    assert_equal(whole, state_of(ended))


@pytest.mark.once
def test_a_backup_of_another_recipe_is_refused(tmp_path):
    host, ours = FRONTENDS["keras"]
    backup = ours.BackupAndRestore(str(tmp_path / "backup"))
    with pytest.raises(Died):
        fit("keras", model_of("keras"), callbacks=[backup, dying(host, 2, 0)])
    for stages, planned in (((4, 2), (8, 3), (20, 3)), 6), (((4, 12),), 12):
        other = recipe_of(stages)
        with pytest.raises(ValueError, match=f"to step 9, and epoch 3 .* at step {planned}: go on"):
            fit("keras", model_of("keras", other), recipe=other, callbacks=[backup])


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from api import test_fit_stages as tests
host, ours = tests.FRONTENDS[{frontend!r}]

class Killing(host.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.epoch == {epoch}:
            os.kill(os.getpid(), signal.SIGKILL)

tests.fit({frontend!r}, tests.model_of({frontend!r}), callbacks=[
    ours.BackupAndRestore({folder!r}), Killing()
])
"""


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [1, 3])
@every_frontend
def test_a_process_that_was_killed_is_resumed(frontend, epoch, tmp_path):
    _, ours = FRONTENDS[frontend]
    folder, tests = str(tmp_path / "backup"), os.path.dirname(os.path.dirname(__file__))
    code = KILLED.format(tests=tests, frontend=frontend, epoch=epoch, folder=folder)
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    fit(frontend, whole := model_of(frontend))
    model = model_of(frontend)
    history = fit(frontend, model, callbacks=[ours.BackupAndRestore(folder)])
    assert history.epoch == list(range(epoch, 4))
    assert_equal(state_of(whole), state_of(model))


# -- what it refuses -------------------------------------------------------------------------------


def compiled_with(frontend, make, *loss):
    model = model_of(frontend)
    model.compile(make(*FRONTENDS[frontend]), *loss)
    return model


def bare(host):
    return host.Sequential([host.layers.Input((WIDTH,)), host.layers.Dense(1)])


def of_lengths(*lengths):
    return StagedRecipe(title="Two", stages=tuple(
        recipe_of(((4, 2),), sequence_length=length).stages[0] for length in lengths
    ))  # fmt: skip


# What is refused -> the error, its words, and what `fit` is given in a frontend.
REFUSED = {
    "not compiled": (
        ValueError, "is not compiled", lambda of: {"model": bare(FRONTENDS[of][0])},
    ),
    "no recipe": (
        TypeError, "A recipe is what tf_lamb.recipes makes", lambda of: {"recipe": 0.1},
    ),
    "two lengths": (
        ValueError, "sequence lengths of 128 and 512", lambda of: {"recipe": of_lengths(128, 512)},
    ),
    "a batch that shrinks": (
        ValueError, "a batch of 4, and the one before 8",
        lambda of: {"recipe": StagedRecipe(title="Two", stages=recipe_of().stages[:2][::-1])},
    ),
    "fewer examples than a batch": (
        ValueError, "Stage 3 .* a batch of 20, more than all 19 examples",
        lambda of: {"of": data(19)},
    ),
    "a generator": (
        TypeError, "a generator, which can be read once",
        lambda of: {"of": (each for each in [data()])},
    ),
    "another rate": (
        ValueError, "rate at step 5, of stage 2, is 0.1, and .* 0.05",
        lambda of: {
            "model": compiled_with(of, lambda host, ours: host.optimizers.SGD(0.1), "mse")
        },
    ),
    "micro-batches that do not divide": (
        ValueError, "4, which gradient_accumulation_steps=3 .* not divide",
        lambda of: {"model": model_of(of, optimizer="LAMB", gradient_accumulation_steps=3)},
    ),
    "micro-batches of other stages": (
        ValueError, "changes at step 6, where no stage .* begin at 0, 5, 8",
        lambda of: {
            "model": model_of(of, optimizer="LAMB", gradient_accumulation_steps={0: 1, 6: 2})
        },
    ),
    "MeasureNoise": (
        ValueError, "MeasureNoise measures gradients at one batch",
        lambda of: {
            "model": compiled_with(
                of,
                lambda host, ours: ours.MeasureNoise(ours.LAMB(0.1, gradient_accumulation_steps=2)),
            )
        },
    ),
    "a model that is trained": (
        ValueError, "has made 2 steps, and the recipe begins at step 0",
        lambda of: {"model": by_hand(model_of(of), shuffled(), ((4, 2),), (1,))},
    ),
    "accumulation of Keras": (
        ValueError, "gradient_accumulation_steps=2 of Keras's Adam",
        lambda of: {"model": model_of(of, optimizer="Adam", gradient_accumulation_steps=2)},
    ),
    "averages before a backup": (
        ValueError, "would save the averages .*: put it after",
        lambda of: {
            "callbacks": [
                FRONTENDS[of][0].callbacks.SwapEMAWeights(swap_on_epoch=True),
                FRONTENDS[of][1].BackupAndRestore("backup"),
            ]
        },
    ),
    "a backup within an epoch": (
        ValueError, "BackupAndRestore with save_freq=3",
        lambda of: {
            "callbacks": [FRONTENDS[of][0].callbacks.BackupAndRestore("backup", save_freq=3)]
        },
    ),
    "AutoWarmup": (
        ValueError, "^AutoWarmup sets a learning rate of its own",
        lambda of: {"callbacks": [extra("automatic_warmup")[of][1].AutoWarmup()]},
    ),
    "ReduceLROnPlateau": (
        ValueError, "^ReduceLROnPlateau sets a learning rate of its own",
        lambda of: {"callbacks": [FRONTENDS[of][0].callbacks.ReduceLROnPlateau()]},
    ),
    "LearningRateScheduler": (
        ValueError, "^LearningRateScheduler sets a learning rate of its own",
        lambda of: {
            "callbacks": [FRONTENDS[of][0].callbacks.LearningRateScheduler(lambda epoch: 0.1)]
        },
    ),
}  # fmt: skip
OF_KERAS_3 = ("accumulation of Keras", "averages before a backup")


@pytest.mark.parametrize("frontend, case", [
    (frontend, case) for frontend in FRONTENDS for case in REFUSED
    if frontend == "keras" or case not in OF_KERAS_3
])  # fmt: skip
def test_what_cannot_be_trained_is_refused_before_any_step(frontend, case):
    error, words, given = REFUSED[case]
    model = model_of(frontend)
    before = state_of(model)
    with pytest.raises(error, match=words):
        fit(frontend, **{"model": model, **given(frontend)})
    assert_equal(before, state_of(model))


@every_frontend
def test_an_array_in_the_place_of_the_recipe_is_refused(frontend):
    model = model_of(frontend)
    before = state_of(model)
    with pytest.raises(TypeError, match=r"recipe is an array: .* fit_stages\(model, \(x, y\), rec"):
        FRONTENDS[frontend][1].fit_stages(model, *data())
    assert_equal(before, state_of(model))


class Unsized:
    """Batches whose number nothing tells."""

    def __iter__(self):
        return iter(list(by_list(FRONTENDS["keras"][0], *data())))


@pytest.mark.once
def test_data_without_a_length_need_the_number_of_examples():
    with pytest.raises(ValueError, match="pass examples="):
        fit("keras", model_of("keras"), Unsized())


@pytest.mark.once
def test_a_pass_that_is_shorter_than_it_was_said_to_be_is_an_error():
    with pytest.raises(Exception, match="has 22 examples, and not 30: pass examples=22"):
        fit("keras", model_of("keras"), Unsized(), examples=30)


@pytest.mark.once
def test_data_without_a_length_are_trained_on_as_those_with_one():
    fit("keras", same := model_of("keras"), Unsized(), examples=22)
    fit("keras", model := model_of("keras"), by_list(FRONTENDS["keras"][0], *data()))
    assert_equal(state_of(same), state_of(model))


@on_jax
def test_devices_share_a_call():
    fit("keras", alone := model_of("keras"))
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=keras.distribution.list_devices()[:2])
    )
    try:
        fit("keras", model := model_of("keras"))
        for a, b in zip(state_of(alone), state_of(model), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        with pytest.raises(ValueError, match="stage 1 has 1 examples, which 2 devices cannot"):
            fit("keras", model_of("keras", optimizer="LAMB", gradient_accumulation_steps=4))
    finally:
        keras.distribution.set_distribution(None)


@on_tensorflow
@every_frontend
def test_replicas_share_a_call(frontend):
    from support.clusters import mirrored

    with mirrored(2).scope():
        model = model_of(frontend)
        split = model_of(frontend, optimizer="LAMB", gradient_accumulation_steps=4)
    with pytest.raises(ValueError, match="stage 1 has 1 examples, which 2 devices cannot"):
        fit(frontend, split)
    fit(frontend, model)
    fit(frontend, alone := model_of(frontend))
    for a, b in zip(state_of(alone), state_of(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(BACKEND == "torch", reason="Keras refuses it there")
@every_frontend
def test_several_steps_of_an_execution(frontend):
    model = model_of(frontend, compiled={"steps_per_execution": 3})
    fit(frontend, model)
    fit(frontend, one := model_of(frontend))
    assert_equal(state_of(one), state_of(model))


@pytest.mark.once
@pytest.mark.filterwarnings("error:.* is for")
def test_data_of_another_number_than_the_recipe_is_for_is_warned_of():
    recipe, wrong = recipe_of(examples=EXAMPLES), recipe_of(examples=40)
    said = "for 40 examples, and the data has 22, .* 11 updates are 4 epochs: make the rec"
    with pytest.warns(UserWarning, match=said):
        fit("keras", model_of("keras"), recipe=wrong)
    fit("keras", model_of("keras"), recipe=recipe)


@pytest.mark.once
def test_its_example_runs():
    run_example(FRONTENDS["keras"][1].fit_stages, least=8)
