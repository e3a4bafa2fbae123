"""State of other optimizers goes on in ours: the steps after it are the peer's own."""

import contextlib
import doctest
import inspect
import io
import json
import pathlib
import shutil

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from goldens import load, problem
from official.modeling.optimization import lamb as garden_lamb
from official.modeling.optimization import lars as garden_lars

import tf_lamb.keras
import tf_lamb.tf_keras
from tf_lamb.core import peers

DOORS = {"keras": (tf_lamb.keras, keras), "tf_keras": (tf_lamb.tf_keras, tf_keras)}
ADDONS = load.models("tensorflow_addons")["lamb_model"]
GARDEN = load.models("model_garden")
KERAS = load.models("keras")
DECAY = {"weight_decay": 0.01, "exclude_from_weight_decay": ["layer_norm", "bias"]}
CLASSIC = {"trust_coefficient": 0.02, "denominator": "norm_of_sum"}
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
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def build(host):
    host.backend.clear_session()
    return problem.build_model(host)


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
@pytest.mark.parametrize("door", DOORS)
def test_a_file_goes_on_as_the_peer_did(door, name):
    room, host = DOORS[door]
    golden, kind, family, arguments = FILES[name]
    model = build(host)
    optimizer = getattr(room, family)(**arguments, jit_compile=False)
    report = room.migrate(golden["files"][kind], optimizer, model, weights=True)
    assert (report.step, len(report.matched), report.weights) == (SAVED, 7, 7)
    assert not (report.changes or report.left_over or report.fresh)
    assert int(optimizer.iterations) == SAVED
    go_on(optimizer, model, golden)


@pytest.mark.parametrize("name", ["lamb_model", "lamb_model_decay"])
def test_keras_lamb_goes_on(name):
    golden = KERAS[name]
    model = build(keras)
    old = keras.optimizers.Lamb(**golden["arguments"])
    old.build(model.trainable_variables)
    for variable in old.variables:
        variable.assign(golden["state"][variable.path])
    for variable in model.trainable_variables:
        variable.assign(golden["weights"][variable.path][SAVED - 1])
    bare = {"learning_rate": 0.02, "weight_decay": golden["arguments"].get("weight_decay", 0.0)}
    keep = tf_lamb.keras.migrate(old, tf_lamb.keras.LAMB(**bare), model).keep
    assert keep["epsilon"] == 1e-7
    optimizer = tf_lamb.keras.LAMB(**bare, **keep, jit_compile=False)
    report = tf_lamb.keras.migrate(old, optimizer, model)
    assert report.weights is None and not report.changes
    go_on(optimizer, model, golden)


@pytest.mark.parametrize(
    ("peer", "family", "theirs", "ours"),
    [
        (garden_lamb.LAMB, "LAMB", {}, {}),
        (garden_lars.LARS, "LARS", {"eeta": 0.02}, CLASSIC),
        (garden_lars.LARS, "LARS", {"eeta": 0.02, "classic_momentum": False, "nesterov": True},
         {**CLASSIC, "momentum_form": "outside", "denominator": "norm_of_update",
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
    "SGDP": {"learning_rate": 0.02, **DECAY},
    "AdamP": {"learning_rate": 0.02, **DECAY, "use_ema": True},
}


@pytest.mark.parametrize("family", TO_AND_FRO)
@pytest.mark.parametrize(("here", "there"), [("keras", "tf_keras"), ("tf_keras", "keras")])
def test_a_door_leads_to_the_other(here, there, family):
    gradients, rest = ADDONS["gradients"], range(SAVED, problem.STEPS)
    models, optimizers = {}, {}
    for door, (room, host) in DOORS.items():
        models[door] = build(host)
        optimizers[door] = getattr(room, family)(**TO_AND_FRO[family], jit_compile=False)
    list(apply(optimizers[here], models[here], gradients, range(SAVED)))
    models[there].set_weights(models[here].get_weights())
    report = DOORS[there][0].migrate(optimizers[here], optimizers[there], models[there])
    assert report.step == SAVED and not (report.changes or report.unsaid)
    one, other = (apply(optimizers[d], models[d], gradients, rest) for d in (here, there))
    for weights, same in zip(one, other, strict=True):
        for name, value in weights.items():
            np.testing.assert_array_equal(value, same[name])
    if "use_ema" in TO_AND_FRO[family]:
        averages = [optimizers[d]._model_variables_moving_average for d in (here, there)]
        for value, same in zip(*averages, strict=True):
            np.testing.assert_allclose(value.numpy(), same.numpy(), rtol=1e-6)


def test_slots_are_converted_between_our_own_forms():
    """Without gradient averaging the first moment is longer; dampening shortens the velocity."""
    model = build(tf_keras)
    for family, slot, one, factor in (
        ("LAMB", 0, {"grad_averaging": False}, 10.0),
        ("LARS", 0, {"dampening": 0.5}, 0.5),
    ):
        cls = getattr(tf_lamb.tf_keras, family)
        old, new = cls(0.1, jit_compile=False), cls(0.1, **one)
        list(apply(old, model, ADDONS["gradients"], range(1)))
        assert list(tf_lamb.tf_keras.migrate(old, new, model).changes) == list(one)
        for before, after in zip(old._slots, new._slots, strict=True):
            np.testing.assert_allclose(after[slot], factor * before[slot].numpy(), rtol=1e-6)


@pytest.mark.parametrize("door", DOORS)
def test_what_accompanies_the_slots(door):
    """Averages begin with the weights, micro-steps are counted, half slots are cast."""
    room, host = DOORS[door]
    model = build(host)
    optimizer = room.LAMB(
        0.02, **DECAY, use_ema=True, gradient_accumulation_steps=3, slot_dtype="bfloat16",
        jit_compile=False,
    )  # fmt: skip
    room.migrate(ADDONS["files"]["checkpoint"], optimizer, model, weights=True)
    assert int(optimizer.iterations) == SAVED
    averages = optimizer._model_variables_moving_average
    for average, slots, weight in zip(
        averages, optimizer._slots, model.trainable_variables, strict=True
    ):
        np.testing.assert_array_equal(average.numpy(), weight.numpy())
        expected = ADDONS["slots"]["m"][path(weight)][SAVED - 1]
        np.testing.assert_allclose(slots[0].numpy().astype("float32"), expected, rtol=2**-8)
    list(apply(optimizer, model, ADDONS["gradients"], range(3)))
    assert int(optimizer.iterations) == SAVED + 1


# -- names ----------------------------------------------------------------------------------------


def renamed_model(host, **names):
    model = host.Sequential(
        [host.Input((4,)), host.layers.Dense(3, name=names.get("dense", "dense")),
         host.layers.Dense(2, name=names.get("head", "head"))]
    )  # fmt: skip
    return model


@pytest.fixture
def stepped():
    """An optimizer of door 2 that has made a step, on layers `dense` and `head`."""
    tf_keras.backend.clear_session()
    model = renamed_model(tf_keras)
    optimizer = tf_lamb.tf_keras.LAMB(0.1, jit_compile=False)
    variables = model.trainable_variables
    optimizer.apply_gradients([(tf.ones(v.shape), v) for v in variables])
    return optimizer


def test_other_names_and_fresh_variables(stepped):
    model = renamed_model(tf_keras, head="logits")
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
    assert np.all(new._slots[2][0].numpy() != 0) and np.all(new._slots[3][0].numpy() == 0)


def test_the_name_of_the_model_does_not_matter(stepped):
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


# -- what cannot be right -------------------------------------------------------------------------


def copy_of(golden, kind, folder):
    source = golden["files"][kind]
    for file in source.parent.glob(source.name + "*"):
        shutil.copy(file, folder / file.name)
    return folder / source.name


def cut(file, keep):
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])


def short_data(folder):
    prefix = copy_of(ADDONS, "checkpoint", folder)
    cut(prefix.parent / f"{prefix.name}.data-00000-of-00001", 0.7)
    return prefix


def short_index(folder):
    prefix = copy_of(ADDONS, "checkpoint", folder)
    cut(prefix.parent / f"{prefix.name}.index", 0.5)
    return prefix


def flipped_data(folder):
    prefix = copy_of(ADDONS, "checkpoint", folder)
    file = prefix.parent / f"{prefix.name}.data-00000-of-00001"
    data = bytearray(file.read_bytes())
    data[100] ^= 255
    file.write_bytes(data)
    return prefix


def short_hdf5(folder):
    file = copy_of(ADDONS, "hdf5", folder)
    cut(file, 0.5)
    return file


def hdf5_without(name):
    def make(folder):
        file = copy_of(ADDONS, "hdf5", folder)
        with h5py.File(file, "a") as opened:
            del opened[name]
        return file

    return make


def hdf5_uncompiled(folder):
    file = folder / "model.h5"
    renamed_model(tf_keras).save(file, save_format="h5")
    return file


def hdf5_of_adam(folder):
    file = folder / "adam.h5"
    model = renamed_model(tf_keras)
    model.compile(tf_keras.optimizers.legacy.Adam(), "mse")
    model.train_on_batch(np.ones((1, 4)), np.ones((1, 2)))
    model.save(file, save_format="h5")
    return file


def without_model(folder):
    optimizer = garden_lamb.LAMB(0.1)
    variable = tf.Variable([1.0], name="w")
    optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    return tf.train.Checkpoint(optimizer=optimizer).write(str(folder / "ckpt"))


def of_sgd(folder):
    model = renamed_model(tf_keras)
    optimizer = tf_keras.optimizers.legacy.SGD(0.1, momentum=0.9)
    optimizer.apply_gradients([(v, v) for v in model.trainable_variables])
    return tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(folder / "ckpt"))


def keras_file(folder):
    file = folder / "model.keras"
    renamed_model(tf_keras).save(file)
    return file


def other_shape(folder):
    model = tf_keras.Sequential([tf_keras.Input((5,)), tf_keras.layers.Dense(3, name="dense")])
    optimizer = garden_lamb.LAMB(0.1)
    optimizer.apply_gradients([(v, v) for v in model.trainable_variables])
    return tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(folder / "ckpt"))


BAD = {
    "data cut short": (short_data, ValueError, ["cut short or damaged", "Nothing was changed"]),
    "index cut short": (short_index, ValueError, ["cut short or damaged"]),
    "a byte flipped": (flipped_data, ValueError, ["cut short or damaged"]),
    "HDF5 cut short": (short_hdf5, ValueError, ["cut short or damaged", "model.h5"]),
    "HDF5 without a slot": (
        hdf5_without("optimizer_weights/LAMB/dense/kernel/v:0"), ValueError,
        ["incomplete", "'v' of 'dense/kernel'"],
    ),
    "HDF5 without slots": (hdf5_without("optimizer_weights"), ValueError, ["no slots", ".h5"]),
    "HDF5 without a counter": (
        hdf5_without("optimizer_weights/LAMB/iter:0"), ValueError, ["no slots"]
    ),
    "HDF5 uncompiled": (hdf5_uncompiled, ValueError, ["not compiled"]),
    "HDF5 of Adam": (hdf5_of_adam, ValueError, ["'Adam'", "neither"]),
    "without the model": (without_model, ValueError, ["without the model", "model=model"]),
    "SGD's momentum": (of_sgd, ValueError, ["'SGD'", "['momentum']"]),
    "a .keras file": (keras_file, ValueError, [".keras", "2.15"]),
    "another model": (
        other_shape, ValueError, ["'m' of", "dense/kernel'", "(5, 3)", "(4, 3)", "another model"],
    ),
    "another family": (
        lambda _: GARDEN["lars_model"]["files"]["checkpoint"], ValueError, ["is LARS", "is LAMB"],
    ),
    "nothing there": (lambda folder: folder / "none", FileNotFoundError, ["ckpt-1"]),
    "an empty folder": (lambda folder: folder, FileNotFoundError, ["prefix"]),
    "no source at all": (lambda _: 3, TypeError, ["path", "tf_lamb"]),
    "unbuilt": (lambda _: tf_lamb.keras.LAMB(), ValueError, ["train it first"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("door", DOORS)
def test_bad_sources_change_nothing(door, name, tmp_path):
    room, host = DOORS[door]
    make, error, words = BAD[name]
    source = make(tmp_path)
    host.backend.clear_session()
    model = renamed_model(host) if name == "another model" else build(host)
    optimizer, built = room.LAMB(0.1), room.LAMB(0.1)
    built.build(model.trainable_variables)
    before = model.get_weights()
    for each in (optimizer, built):
        with pytest.raises(error) as caught:
            room.migrate(source, each, model, weights=isinstance(source, pathlib.Path))
        for word in words:
            assert word in str(caught.value)
    assert optimizer._plan is None and int(built.iterations) == 0
    assert not any(np.any(slot.numpy()) for slots in built._slots for slot in slots)
    for value, same in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, same)


def test_the_forms_of_momentum_do_not_mix(stepped):
    model = renamed_model(tf_keras)
    old = garden_lars.LARS(0.1, classic_momentum=False)
    old.apply_gradients([(v, v) for v in model.trainable_variables])
    with pytest.raises(ValueError, match="momentum_form='outside'"):
        tf_lamb.tf_keras.migrate(old, tf_lamb.tf_keras.LARS(0.1), model)
    for door, (room, host) in DOORS.items():
        new = room.LARS(0.1, momentum_form="mixed")
        with pytest.raises(ValueError, match="'inside' or"):
            room.migrate(GARDEN["lars_model"]["files"]["checkpoint"], new, build(host)), door


def test_arguments_of_migrate_that_cannot_be_right(stepped):
    model = renamed_model(tf_keras)
    new = tf_lamb.tf_keras.LAMB(0.1)
    for arguments, word in (
        ({"fresh": ["nowhere"]}, "fresh names 'nowhere'"),
        ({"rename": {"nowhere": "head/bias"}}, "rename names 'nowhere'"),
        ({"rename": {"dense/kernel": "nowhere"}}, "under the name 'nowhere'"),
        ({"rename": {"dense/bias": "head/bias"}}, r"'head/bias'.*\(2,\)|shape"),
        ({"weights": True}, "holds no weights"),
    ):
        with pytest.raises(ValueError, match=word):
            tf_lamb.tf_keras.migrate(stepped, new, model, **arguments)
    for room, stranger in (
        (tf_lamb.keras, new),
        (tf_lamb.tf_keras, tf_lamb.keras.LAMB()),
        (tf_lamb.keras, keras.optimizers.Adam()),
    ):
        with pytest.raises(TypeError, match=r"tf_lamb\.(tf_)?keras\.migrate"):
            room.migrate(stepped, stranger, model)
    assert new._plan is None


# -- configs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", load.cases("tensorflow_addons"))
@pytest.mark.parametrize("door", DOORS)
def test_from_addons(door, name):
    case = load.cases("tensorflow_addons")[name]
    config = DOORS[door][0].from_addons(case["config"]).get_config()
    for argument, value in case["arguments"].items():
        if argument == "learning_rate" and value == "schedule":
            assert config["learning_rate"]["config"]["values"] == problem.SCHEDULE["lamb"]
        elif value != []:  # none given, for Addons
            assert config[argument] == (value if isinstance(value, list) else pytest.approx(value))
    assert config["epsilon"] == case["arguments"].get("epsilon", 1e-6)


@pytest.mark.parametrize("door", DOORS)
def test_from_addons_reads_both_forms_and_the_file(door):
    room, _ = DOORS[door]
    with h5py.File(ADDONS["files"]["hdf5"]) as file:
        older = json.loads(file.attrs["training_config"])["optimizer_config"]
    configs = [
        room.from_addons(form).get_config()
        for form in (older, ADDONS["config"], ADDONS["files"]["hdf5"])
    ]
    assert configs[0] == configs[1] == configs[2]
    assert configs[0]["exclude_from_weight_decay"] == ["layer_norm", "bias"]


@pytest.mark.parametrize("door", DOORS)
def test_from_addons_refuses_what_it_would_have_to_guess(door):
    room, _ = DOORS[door]
    garden = GARDEN["lamb_model"]["config"]
    with pytest.raises(ValueError, match="exclusion lists"):
        room.from_addons(garden)
    lists = {"exclude_from_weight_decay": ["bias"], "exclude_from_layer_adaptation": None}
    optimizer = room.from_addons(garden, **lists)
    assert optimizer.get_config()["weight_decay"] == 0.01
    assert optimizer.get_config()["exclude_from_weight_decay"] == ["bias"]
    with pytest.raises(ValueError, match="'Adam'"):
        room.from_addons({"class_name": "Adam", "config": {}})
    strange = {"class_name": "Addons>LAMB", "config": {"amsgrad": True}}
    with pytest.raises(ValueError, match="'amsgrad'"):
        room.from_addons(strange)


@pytest.mark.parametrize("door", DOORS)
def test_the_legacy_decay_of_the_rate_becomes_a_schedule(door):
    room, _ = DOORS[door]
    config = {"class_name": "Addons>LAMB", "config": {"learning_rate": 0.1, "decay": 0.5}}
    optimizer = room.from_addons(config)
    rates = [float(optimizer._learning_rate(step)) for step in range(3)]
    np.testing.assert_allclose(rates, [0.1, 0.1 / 1.5, 0.1 / 2], rtol=1e-6)


def test_we_register_nothing_of_others():
    for host in (keras, tf_keras):
        ours = [name for name, cls in host.saving.get_custom_objects().items()
                if cls.__module__.startswith("tf_lamb")]  # fmt: skip
        assert all(name.startswith("tf_lamb>") for name in ours)


# -- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["migrate", "from_addons"])
def test_both_doors_say_it_alike(name):
    one, other = (getattr(room, name) for room, _ in DOORS.values())
    assert inspect.signature(one) == inspect.signature(other)
    parser = doctest.DocTestParser()
    for function in (one, other):
        test = parser.get_doctest(inspect.getdoc(function), {}, name, None, 0)
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
        assert result.attempted and not result.failed


def test_a_report_reads_as_a_letter():
    model = build(keras)
    old = keras.optimizers.Lamb(0.02, weight_decay=0.01)
    old.build(model.trainable_variables)
    optimizer = tf_lamb.keras.LAMB(0.02, **DECAY)
    text = str(tf_lamb.keras.migrate(old, optimizer, model))
    for line in (
        "LAMB continues keras.optimizers.Lamb after step 0.",
        "7 of 7 variables",
        "left as they are",
        "weight_decay_mode: 'decoupled' there, 'update' here",
        "LAMB(..., epsilon=1e-07, weight_decay_mode='decoupled', exclude_from_layer_adaptation=[])",
        "the source does not hold exclude_from_weight_decay",
    ):
        assert line in text


def test_names_of_slots_are_parsed():
    named = {"training/LAMB/iter:0": 3, "training/LAMB/a/b/m:0": 1, "training/LAMB/a/b/v:0": 2}
    assert peers.legacy_slots(named) == ("LAMB", 3, {"a/b": {"m": 1, "v": 2}})
    assert peers.legacy_slots({"LAMB/a/b/m:0": 1}) == ("", 0, {})


# -- the docs -------------------------------------------------------------------------------------

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "moving_in.md"


def code_blocks():
    """Heading -> the Python under it, in order; blocks marked `before` are not ours to run."""
    blocks, heading, lines = [], "", None
    for line in DOCS.read_text().splitlines():
        if lines is not None and line.startswith("```"):
            blocks.append((heading, "\n".join(lines)))
            lines = None
        elif lines is not None:
            lines.append(line)
        elif line.startswith("#"):
            heading = line.strip("# ")
        elif line == "```python":
            lines = []
    return blocks


AFTER = [block for block in code_blocks() if not block[1].startswith("# before")]


@pytest.mark.parametrize(("heading", "code"), AFTER, ids=[heading for heading, _ in AFTER])
def test_what_the_docs_show_runs(heading, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ADDONS["files"]["checkpoint"].parent, tmp_path / "addons")
    shutil.copy(ADDONS["files"]["hdf5"], tmp_path / "addons.h5")
    shutil.copytree(GARDEN["lars_model"]["files"]["checkpoint"].parent, tmp_path / "garden")
    with contextlib.redirect_stdout(io.StringIO()):
        for host in (keras, tf_keras):
            host.backend.clear_session()
        rng = np.random.default_rng(0)
        ids, targets = rng.integers(0, 7, (8, 4)), rng.normal(size=(8, 2))
        exec(code, {"ids": ids, "targets": targets, "tiny": problem.build_model})


def test_a_port_is_three_lines():
    blocks = code_blocks()
    befores = [(h, code) for h, code in blocks if code.startswith("# before")]
    assert len(befores) == 3
    for heading, before in befores:
        after = next(c for h, c in blocks if h == heading and c.startswith("# after"))
        new = set(after.splitlines()) - set(before.splitlines()) - {"# after"}
        assert len(new) <= 3, new
