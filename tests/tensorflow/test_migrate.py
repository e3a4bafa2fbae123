"""State of other optimizers goes on in ours: the steps after it are the peer's own."""

import inspect
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from goldens import problem
from official.modeling.optimization import ema_optimizer
from official.modeling.optimization import lamb as garden_lamb
from official.modeling.optimization import lars as garden_lars
from support import migrating
from support.examples import run_example
from support.frontends import FRONTENDS, every_frontend, uncompiled
from support.migrating import ADDONS, DECAY, GARDEN, KERAS, build, renamed_model

import tf_lamb.keras
import tf_lamb.tf_keras

CLASSIC = {"trust_coefficient": 0.02, "form": {"denominator": "norm_of_sum"}}
# Source -> golden, what is read, our class, our arguments.
FILES = {
    "Addons checkpoint": (ADDONS, "checkpoint", "LAMB", {"learning_rate": 0.02, **DECAY}),
    "Addons HDF5": (ADDONS, "hdf5", "LAMB", {"learning_rate": 0.02, **DECAY}),
    "Garden LAMB": (GARDEN["lamb_model"], "checkpoint", "LAMB", {"learning_rate": 0.02, **DECAY}),
    "Garden LARS": (
        GARDEN["lars_model"], "checkpoint", "LARS", {"learning_rate": 0.5, **DECAY, **CLASSIC},
    ),
}  # fmt: skip
SAVED = problem.SAVED_AFTER


@pytest.fixture(autouse=True)
def eager():
    """Steps are few here: tracing them would take longer."""
    with uncompiled():
        yield


def path(variable):
    return getattr(variable, "path", None) or variable.name.split(":")[0]


def apply(optimizer, model, gradients, steps):
    """The weights after each of the steps."""
    variables = model.trainable_variables
    native = [v.value if isinstance(v, keras.Variable) else v for v in variables]
    for i in steps:
        step = [tf.constant(gradients[path(v)][i]) for v in variables]
        optimizer.apply_gradients(zip(step, native, strict=True))
        yield {path(v): v.numpy() for v in variables}


def go_on(optimizer, model, golden):
    """Steps 6 to 10 are the golden's."""
    rest = range(SAVED, problem.STEPS)
    for i, weights in zip(rest, apply(optimizer, model, golden["gradients"], rest), strict=True):
        for name, value in weights.items():
            np.testing.assert_allclose(value, golden["weights"][name][i], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", FILES)
@every_frontend
def test_a_file_goes_on_as_the_peer_did(frontend, name):
    host, room = FRONTENDS[frontend]
    golden, kind, family, arguments = FILES[name]
    model = build(host)
    optimizer = getattr(room, family)(**arguments, jit_compile=False)
    report = room.migrate(golden["files"][kind], optimizer, model, weights=True)
    assert (report.step, len(report.matched), report.weights) == (SAVED, 7, 7)
    assert not (report.changes or report.left_over or report.fresh)
    assert int(optimizer.iterations) == SAVED
    go_on(optimizer, model, golden)


def test_a_saved_model_is_named_by_its_folder(tmp_path):
    tf_keras.backend.clear_session()
    old = renamed_model(tf_keras)
    old.compile(garden_lamb.LAMB(0.1, exclude_from_weight_decay=["bias"]), "mse")
    old.train_on_batch(np.ones((2, 4)), np.ones((2, 2)))
    old.save(tmp_path / "model", save_format="tf")
    for host, room in FRONTENDS.values():
        model, new = renamed_model(host), room.LAMB(0.1, exclude_from_weight_decay=["bias"])
        report = room.migrate(tmp_path / "model", new, model, weights=True)
        assert (report.step, len(report.matched), report.weights) == (1, 4, 4)
        for i, variable in enumerate(old.trainable_variables):
            for name in ("m", "v"):
                slot = old.optimizer.get_slot(variable, name)
                np.testing.assert_array_equal(new.state_of(i)[name].numpy(), slot.numpy())
            np.testing.assert_array_equal(model.get_weights()[i], variable.numpy())


def of_keras(golden, cls):
    """Keras's optimizer and its model, as the golden has them after step 5."""
    model = build(keras)
    old = cls(**golden["arguments"])
    old.build(model.trainable_variables)
    for variable in old.variables:
        variable.assign(golden["state"][variable.path])
    for variable in model.trainable_variables:
        variable.assign(golden["weights"][variable.path][SAVED - 1])
    return old, model


@pytest.mark.parametrize("name", ["lamb_model", "lamb_model_decay"])
def test_keras_lamb_goes_on(name):
    golden = KERAS[name]
    old, model = of_keras(golden, keras.optimizers.Lamb)
    bare = {"learning_rate": 0.02, "weight_decay": golden["arguments"].get("weight_decay", 0.0)}
    keep = tf_lamb.keras.migrate(old, tf_lamb.keras.LAMB(**bare), model).keep
    assert keep["epsilon"] == 1e-7
    optimizer = tf_lamb.keras.LAMB(**bare, **keep, jit_compile=False)
    report = tf_lamb.keras.migrate(old, optimizer, model)
    assert report.weights is None and not report.changes
    go_on(optimizer, model, golden)


def test_keras_muon_goes_on():
    golden = KERAS["muon_model"]
    old, model = of_keras(golden, keras.optimizers.Muon)
    bare = {"learning_rate": 2e-3, "exclude_from_layer_adaptation": ["embedding", "head"]}
    keep = tf_lamb.keras.migrate(old, tf_lamb.keras.Muon(**bare), model).keep
    assert keep == {"weight_decay": 0.004, "epsilon": 1e-12}
    optimizer = tf_lamb.keras.Muon(**bare, **keep, jit_compile=False)
    report = tf_lamb.keras.migrate(old, optimizer, model)
    assert (report.step, len(report.matched)) == (SAVED, 7) and not report.changes
    assert report.unsaid == ("exclude_from_weight_decay",)
    go_on(optimizer, model, golden)


@pytest.mark.parametrize(
    ("peer", "family", "theirs", "ours"),
    [
        (garden_lamb.LAMB, "LAMB", {}, {}),
        (garden_lars.LARS, "LARS", {"eeta": 0.02}, CLASSIC),
        (garden_lars.LARS, "LARS", {"eeta": 0.02, "classic_momentum": False, "nesterov": True},
         {**CLASSIC, "form": {"momentum": "outside", "denominator": "norm_of_update"},
          "nesterov": True}),
    ],
    ids=["LAMB", "LARS classic", "LARS popular"],
)  # fmt: skip
def test_a_garden_optimizer_goes_on(peer, family, theirs, ours):
    model = build(tf_keras)
    rate = problem.LEARNING_RATE[family.lower()]
    gradients = ADDONS["gradients"]
    decay = {"weight_decay_rate": 0.01, "exclude_from_weight_decay": ["layer_norm", "bias"]}
    old = peer(rate, **decay, **theirs)
    list(apply(old, model, gradients, range(SAVED)))
    new = getattr(tf_lamb.tf_keras, family)(rate, **DECAY, **ours, jit_compile=False)
    report = tf_lamb.tf_keras.migrate(old, new, model)
    assert not (report.changes or report.unsaid)
    start = model.get_weights()
    rest = range(SAVED, problem.STEPS)
    expected = list(apply(old, model, gradients, rest))
    model.set_weights(start)
    for ours_now, theirs_now in zip(apply(new, model, gradients, rest), expected, strict=True):
        for name, value in ours_now.items():
            np.testing.assert_allclose(value, theirs_now[name], rtol=0, atol=1e-6)


TO_AND_FRO = {
    "LAMB": {"learning_rate": 0.02, **DECAY},
    "LARS": {"learning_rate": 0.5, **DECAY, **CLASSIC},
    "Muon": {"learning_rate": 2e-3, **DECAY, "exclude_from_layer_adaptation": ["embed", "head"]},
    "SOAP": {"learning_rate": 2e-3, **DECAY, "use_ema": True, "precondition_frequency": 2},
}


@pytest.mark.parametrize("family", TO_AND_FRO)
@pytest.mark.parametrize(("here", "there"), [("keras", "tf_keras"), ("tf_keras", "keras")])
def test_a_frontend_leads_to_the_other(here, there, family):
    gradients, rest = ADDONS["gradients"], range(SAVED, problem.STEPS)
    models, optimizers = {}, {}
    for frontend, (host, room) in FRONTENDS.items():
        models[frontend] = build(host)
        optimizers[frontend] = getattr(room, family)(**TO_AND_FRO[family], jit_compile=False)
    list(apply(optimizers[here], models[here], gradients, range(SAVED)))
    models[there].set_weights(models[here].get_weights())
    report = FRONTENDS[there][1].migrate(optimizers[here], optimizers[there], models[there])
    assert report.step == SAVED and not (report.changes or report.unsaid)
    assert report.averages == ("continue" if "use_ema" in TO_AND_FRO[family] else "")
    one, other = (apply(optimizers[d], models[d], gradients, rest) for d in (here, there))
    for weights, same in zip(one, other, strict=True):
        for name, value in weights.items():
            np.testing.assert_array_equal(value, same[name])
    if "use_ema" in TO_AND_FRO[family]:
        averages = [optimizers[d]._model_variables_moving_average for d in (here, there)]
        for value, same in zip(*averages, strict=True):
            np.testing.assert_allclose(value.numpy(), same.numpy(), rtol=1e-6)


def test_other_names_and_fresh_variables():
    stepped, model = migrating.stepped(), renamed_model(tf_keras, head="logits")
    new = tf_lamb.tf_keras.LAMB(0.1)
    with pytest.raises(ValueError, match="rename={'logits/kernel': 'head/kernel'}.*fresh="):
        tf_lamb.tf_keras.migrate(stepped, new, model)
    report = tf_lamb.tf_keras.migrate(
        stepped, new, model, rename={"logits/kernel": "head/kernel"}, fresh=["logits/bias"]
    )
    assert report.matched["logits/kernel"] == "head/kernel"
    assert report.fresh == ("logits/bias",)
    assert report.left_over == ("head/bias",)
    for word in ("there head/kernel", "logits/bias", "head/bias", "3 of 4"):
        assert word in str(report)
    assert np.all(new.state_of(2)["m"].numpy() != 0) and np.all(new.state_of(3)["m"].numpy() == 0)


def test_variables_of_the_users_own_are_left_over(tmp_path):
    """A counter of theirs is in no optimizer, and so begins again where nobody restores it."""
    tf_keras.backend.clear_session()
    old, frozen = renamed_model(tf_keras), renamed_model(tf_keras)
    old.compile(garden_lamb.LAMB(0.1), "mse")
    old.train_on_batch(np.ones((2, 4)), np.ones((2, 2)))
    tracked = {"net": old, "optimizer": old.optimizer, "count": old.optimizer.iterations}
    objects = {"step": tf.Variable(7), "state": {"epoch": tf.Variable(2)}, "teacher": frozen}
    path = tf.train.Checkpoint(**tracked, **objects).save(str(tmp_path / "ckpt"))
    report = tf_lamb.tf_keras.migrate(path, tf_lamb.tf_keras.LAMB(0.1), renamed_model(tf_keras))
    names = {"step", "state/epoch", "teacher/... (4 variables)"}
    assert {*report.left_over} == {*report.own_variables} == names
    restored = "of your own, which tf.train.Checkpoint(state=..., step=..., teacher=...) restores"
    assert f"step, teacher/... (4 variables): {restored}" in str(report)
    assert "nothing in the source" not in str(report)
    # What the report says.
    step = tf.Variable(0)
    tf.train.Checkpoint(step=step).restore(path).expect_partial()
    assert int(step) == 7


@pytest.mark.parametrize("root", ["checkpoint", "weights", "SavedModel"])
def test_what_the_model_has_beside_its_weights_is_none_of_the_users_own(tmp_path, root):
    tf_keras.backend.clear_session()
    old = renamed_model(tf_keras)
    old.counter = tf.Variable(3)
    old.compile(garden_lamb.LAMB(0.1), "mse", metrics=["mae"])
    old.train_on_batch(np.ones((2, 4)), np.ones((2, 2)))
    path = str(tmp_path / "saved")
    if root == "checkpoint":
        path = tf.train.Checkpoint(old).save(path)
    else:
        old.save_weights(path) if root == "weights" else old.save(path, save_format="tf")
    report = tf_lamb.tf_keras.migrate(path, tf_lamb.tf_keras.LAMB(0.1), renamed_model(tf_keras))
    assert len(report.matched) == 4 and report.own_variables == ()


def test_the_name_of_the_model_does_not_matter():
    stepped = migrating.stepped()

    class Mine(keras.Model):
        def __init__(self):
            super().__init__(name="mine")
            self.one = keras.layers.Dense(3, name="dense")
            self.two = keras.layers.Dense(2, name="head")

        def call(self, x):
            return self.two(self.one(x))

    model = Mine()
    with pytest.raises(ValueError, match="no trainable variables yet"):
        tf_lamb.keras.migrate(stepped, tf_lamb.keras.LAMB(), model)
    model(np.zeros((1, 4)))
    report = tf_lamb.keras.migrate(stepped, tf_lamb.keras.LAMB(0.1), model)
    assert report.matched["mine/head/kernel"] == "head/kernel"


OTHER = {
    "no accumulation": {"each": None},
    "divided already": {"steps": 25},
    "read by AdaScale": {"around": lambda ours, new: ours.AdaScale(new, scale=4.0)},
}


@pytest.mark.parametrize("but", [None, *OTHER])
def test_a_schedule_that_counted_micro_batches_is_warned_of(but):
    given = {"each": 4, "steps": 100, "around": lambda ours, new: new, **OTHER.get(but, {})}
    model, falls = renamed_model(keras), keras.optimizers.schedules.CosineDecay
    old = keras.optimizers.Lamb(falls(0.02, 100), gradient_accumulation_steps=given["each"])
    old.build(model.trainable_variables)
    new = tf_lamb.keras.LAMB(falls(0.02, given["steps"]), gradient_accumulation_steps=4)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        tf_lamb.migrate(old, given["around"](tf_lamb.keras, new), model)
    heard = [str(each.message) for each in warned]
    assert heard == ([] if but else [
        "LAMB: the learning rate's schedule is 4 times slower than in keras.optimizers.Lamb, which "
        "read it at micro-batches: divide its steps by 4."
    ])  # fmt: skip


@pytest.mark.parametrize("function", [tf_lamb.migrate, tf_lamb.LAMB.from_addons])
def test_its_example_runs(function):
    run_example(function, least=1)


@every_frontend
def test_what_accompanies_the_slots(frontend):
    """Averages begin with the weights, micro-steps are counted, half slots are cast."""
    host, room = FRONTENDS[frontend]
    model = build(host)
    optimizer = room.LAMB(
        0.02, **DECAY, use_ema=True, gradient_accumulation_steps=3, dtypes={"slots": "bfloat16"},
        jit_compile=False,
    )  # fmt: skip
    report = room.migrate(ADDONS["files"]["checkpoint"], optimizer, model, weights=True)
    assert int(optimizer.iterations) == SAVED
    assert "averages    begin with the weights" in str(report)
    plain = room.LAMB(0.02, **DECAY)
    assert "average" in room.migrate(optimizer, plain, model).left_behind
    averages = optimizer._model_variables_moving_average
    for average, slots, weight in zip(
        averages, optimizer._storage.slots, model.trainable_variables, strict=True
    ):
        np.testing.assert_array_equal(average.numpy(), weight.numpy())
        expected = ADDONS["slots"]["m"][path(weight)][SAVED - 1]
        np.testing.assert_allclose(slots[0].numpy().astype("float32"), expected, rtol=2**-8)
    list(apply(optimizer, model, ADDONS["gradients"], range(3)))
    assert int(optimizer.iterations) == SAVED + 1


def test_arguments_of_keras_muon_alone_are_reported():
    model = build(keras)
    old = keras.optimizers.Muon(2e-3, rms_rate=0.3, adam_lr_ratio=0.5, exclude_layers=["head"])
    old.build(model.trainable_variables)
    new = tf_lamb.keras.Muon(
        2e-3, weight_decay=0.004, epsilon=1e-7, exclude_from_layer_adaptation=["embed", "head"]
    )
    report = tf_lamb.keras.migrate(old, new, model)
    form = {**new.get_config()["form"], "fallback_lr_scale": 0.5}
    assert report.changes == {"form": (form, new.get_config()["form"]), "rms_rate": (0.3, 0.2)}
    assert report.keep == {"form": form}
    halved = tf_lamb.keras.Muon(**{**new.get_config(), **report.keep})
    changes = tf_lamb.keras.migrate(old, halved, model).changes
    assert changes == {"rms_rate": (0.3, 0.2), "adam_weight_decay": (0.004, 0.002)}


@every_frontend
def test_a_model_without_its_code_comes_from_the_file(frontend):
    host, room = FRONTENDS[frontend]
    file = str(ADDONS["files"]["hdf5"])
    model = host.models.load_model(file, compile=False)
    optimizer = room.LAMB.from_addons(file, jit_compile=False)
    assert len(room.migrate(file, optimizer, model).matched) == 7
    go_on(optimizer, model, ADDONS)


@pytest.mark.parametrize(
    ("peer", "read"),
    [(garden_lamb.LAMB, "object"), (garden_lamb.LAMB, "checkpoint"),
     (tf_lamb.tf_keras.LAMB, "object")],
    ids=["Garden", "Garden in a checkpoint", "ours"],
)  # fmt: skip
def test_averages_of_a_garden_wrapper_go_on(peer, read, tmp_path):
    tf_keras.backend.clear_session()
    model = renamed_model(tf_keras)
    inner = peer(0.1)
    old = ema_optimizer.ExponentialMovingAverage(inner, average_decay=0.9, dynamic_decay=False)
    old.shadow_copy(model)
    for _ in range(3):
        old.apply_gradients([(tf.ones(v.shape), v) for v in model.trainable_variables])
    if read == "checkpoint":
        source = tf.train.Checkpoint(model=model, optimizer=old).write(str(tmp_path / "ckpt"))
    else:
        source = old
    new = tf_lamb.tf_keras.LAMB(0.1, use_ema=True, ema_momentum=0.9)
    report = tf_lamb.tf_keras.migrate(source, new, model)
    assert (report.averages, report.changes, report.left_behind) == ("continue", {}, ())
    assert ("ema_momentum" in report.unsaid) == (read == "checkpoint")
    for average, same in zip(old._average_weights, new._storage.averages, strict=True):
        assert np.any(average.numpy() != 0)
        np.testing.assert_array_equal(same.numpy(), average.numpy())
    left = tf_lamb.tf_keras.migrate(source, tf_lamb.tf_keras.LAMB(0.1), model)
    assert "average" in left.left_behind and left.changes["use_ema"] == (True, False)


@pytest.mark.parametrize("is_same", [False, True], ids=["a number here", "the schedule here"])
@pytest.mark.parametrize("read", ["object", "checkpoint"])
@pytest.mark.parametrize("peer", [garden_lamb.LAMB, garden_lars.LARS])
def test_the_legacy_decay_of_the_rate_is_told_as_the_schedule_that_it_is(
    peer, read, is_same, tmp_path
):
    tf_keras.backend.clear_session()
    model = renamed_model(tf_keras)
    source, family = peer(0.1, decay=0.5), peer.__name__
    source.apply_gradients([(tf.ones(v.shape), v) for v in model.trainable_variables])
    if read == "checkpoint":
        source = tf.train.Checkpoint(model=model, optimizer=source).write(str(tmp_path / "ckpt"))
    falls = tf_keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.5)
    arguments = CLASSIC if family == "LARS" else {}
    new = getattr(tf_lamb.tf_keras, family)(falls if is_same else 0.1, **arguments)
    report = tf_lamb.tf_keras.migrate(source, new, model)
    assert ("learning_rate" in report.changes) != is_same and "decay" not in report.changes
    assert ("InverseTimeDecay(initial_learning_rate=0.1" in str(report)) != is_same


# Argument of Model Garden's LAMB and LARS -> another value than its default.
OF_GARDEN = {
    "learning_rate": 0.3, "beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-4, "weight_decay_rate": 0.2,
    "exclude_from_weight_decay": ["bias"], "exclude_from_layer_adaptation": ["bias"],
    "momentum": 0.8, "eeta": 0.01, "nesterov": True, "classic_momentum": False, "clipnorm": 1.0,
    "clipvalue": 1.0, "global_clipnorm": 1.0, "decay": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("peer", [garden_lamb.LAMB, garden_lars.LARS])
def test_every_argument_of_a_garden_optimizer_has_its_line(peer):
    """A new one fails here until it is read, and until it has a value above."""
    model, family = renamed_model(tf_keras), peer.__name__
    parameters = {*inspect.signature(peer).parameters} - {"name", "kwargs"}
    of_legacy = {"clipnorm", "clipvalue", "global_clipnorm", "decay"}
    arguments = CLASSIC if family == "LARS" else {}

    def told(**changes):
        old = peer(**{"learning_rate": 0.1, "weight_decay_rate": 0.1, **changes})
        old.apply_gradients([(tf.zeros(v.shape), v) for v in model.trainable_variables])
        new = getattr(tf_lamb.tf_keras, family)(0.1, weight_decay=0.1, **arguments)
        try:
            return str(tf_lamb.tf_keras.migrate(old, new, model))
        except ValueError as error:
            return str(error)

    before, names = told(), parameters | of_legacy
    assert {name for name in names if told(**{name: OF_GARDEN[name]}) == before} == set()
    assert "None here" not in before
