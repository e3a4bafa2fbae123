"""`tf_lamb_extras.preflight`: what libtpu says of a Keras model's step, by hand and by XLA.

No TPU is needed. The truth is on CPU: the same road, compiled for eight CPU devices, is the program
that Keras itself ran there.
"""

import re
import sys

import keras
import numpy as np
import pytest
from keras import distribution as distributions

import tf_lamb.keras
from tf_lamb.keras import host

if keras.backend.backend() != "jax":
    pytest.skip("Keras trains on a TPU by JAX alone", allow_module_level=True)
pytest.importorskip("libtpu")

import jax

from tf_lamb_extras.preflight import preflight, shapes, step_programs
from tf_lamb_extras.preflight.tpu import compiler, programs, roofline

pytestmark = pytest.mark.usefixtures("undistributed")
layers = keras.layers
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def dense(dropout=0.1):
    """60 x 128 weights and 128 + 2 x 128 beside, 128 x 32 and 32; 2 x 128 that are not trained."""
    model = keras.Sequential([
        layers.Input((60,)), layers.Dense(128, activation="relu", name="up"),
        layers.BatchNormalization(name="normalization"),
        layers.Dropout(dropout, seed=1), layers.Dense(32, name="down"),
    ], name="model")  # fmt: skip
    return model


TRAINED = 60 * 128 + 128 + 2 * 128 + 128 * 32 + 32
KEPT = 4 * (TRAINED + 2 * 128) + 2 * 4  # and the two numbers of the dropout's seed


def model_parallel(devices):
    mesh = distributions.DeviceMesh((2, 4), ["batch", "model"], devices)
    layouts = distributions.LayoutMap(mesh)
    layouts["(model/)?up/kernel"] = (None, "model")
    layouts["(model/)?up/bias"] = ("model",)
    layouts["(model/)?down/kernel"] = ("model", None)
    return distributions.ModelParallel(layout_map=layouts, batch_dim_name="batch")


STRATEGIES = {
    "data": lambda devices: distributions.DataParallel(devices=devices),
    "model": model_parallel,
}
TPUS = [f"tpu:{i}" for i in range(8)]


PROGRAMS = {}  # what was compiled for a topology, by compiler and text


def ask(model, *, optimizer=None, loss="mse", shapes=(64, 60), topology="v3:2x2", **options):
    """Preflight of this batch alone, which compiles no program twice here."""
    compile_ = compiler.compile_lowered

    def once(lowered):
        key = compile_, topology, lowered.as_text()
        if key not in PROGRAMS:
            PROGRAMS[key] = compile_(lowered)
        return PROGRAMS[key]

    optimizer = optimizer or tf_lamb.keras.LAMB(0.01)
    options = {"largest_batch": False} | options
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "compile_lowered", once)
        return preflight(model, optimizer, loss, shapes, topology, **options)


@pytest.mark.parametrize(("topology", "replicas"), [("v3:2x2", 8), ("v3:32x32", 2048)])
def test_a_slice_of_any_size_and_memory_by_hand(topology, replicas):
    report = ask(dense(), shapes=(4 * replicas, 60), topology=topology, steps=10)
    memory = report.memory
    assert report.fits and report.share == 4
    assert memory.weights == KEPT
    # LAMB keeps two moments; its rate and two counts are the rest, of 4 or 8 bytes each.
    assert 2 * 4 * TRAINED < memory.slots <= 2 * 4 * TRAINED + 3 * 8
    assert report.needed == memory.needed > memory.weights + memory.slots
    assert memory.rest >= 4 * (60 + 32) * 4  # the batch: of floats, four examples of it
    count, size = report.collectives["all-reduce"]
    assert count and set(report.collectives) == {"all-reduce"}
    # The gradients, the loss, and four sums of the batch normalization with half of them again.
    assert 4 * TRAINED < size < 4 * TRAINED + 8 * 4 * 128
    assert report.work.reduced == pytest.approx(size)
    # Products of matrices: both layers forward, both weights' gradients, and the hidden layer's.
    products = 2 * 4 * (2 * 60 * 128 + 3 * 128 * 32)
    assert products < report.work.flops - report.work.update_flops < 2 * products
    assert 0 < report.work.update_bytes <= report.work.bytes_moved
    assert f"on {topology}: {replicas // 2:,} chips" in str(report)
    assert report.as_dict()["hours"] == pytest.approx(10 * report.bounds.step / 3600)


@pytest.mark.parametrize(
    ("list_devices", "accelerated"),
    [(lambda: TPUS, True), (distributions.list_devices, False)],
    ids=["TPUs", "these"],
)
def test_a_step_is_traced_for_the_devices_that_it_is_compiled_for(list_devices, accelerated):
    assert not host.has_accelerator()
    with STRATEGIES["data"](list_devices()).scope():
        assert host.has_accelerator() is accelerated


def test_model_parallelism_divides_the_weights_and_changes_the_collectives():
    model = dense()
    data = ask(model, distribution=STRATEGIES["data"](TPUS))
    cut = ask(model, distribution=STRATEGIES["model"](TPUS))
    sharded = 60 * 128 + 128 + 128 * 32
    assert data.memory.weights == KEPT
    assert cut.memory.weights == KEPT - 4 * sharded * 3 // 4
    assert data.memory.slots - cut.memory.slots == 2 * 4 * sharded * 3 // 4
    assert cut.collectives != data.collectives
    # Of the gradients, that of the sharded weights is summed in parts.
    assert cut.work.reduced < data.work.reduced
    assert data.collectives == ask(model).collectives
    # A batch of 64 is split over the 2 rows of the mesh alone.
    assert (data.share, cut.share) == (8, 32)
    assert "64 = 8 examples x 8 replicas x 1" in str(data)
    assert "64 = 32 examples x 2 parts x 1" in str(cut)


@pytest.mark.parametrize("strategy", ["model", pytest.param("data", marks=pytest.mark.slow)])
def test_it_is_the_program_that_keras_ran(strategy):
    """For eight CPUs the same road leads to what `train_on_batch` had compiled."""
    devices = distributions.list_devices()
    model = dense()
    inputs = shapes.inputs((64, 60), model)
    targets = shapes.targets_of("mse", step_programs.predictions(model, inputs))
    assert targets.shape == (64, 32)
    steps = step_programs.Steps(
        model, step_programs.copy_of(tf_lamb.keras.LAMB(0.01), model), "mse", inputs, targets,
        step_programs.on_devices(STRATEGIES[strategy](TPUS), jax.devices()),
    )  # fmt: skip
    ours = compiler.compile_lowered(steps.step(inputs, targets))
    theirs = keras_program(inputs, targets, STRATEGIES[strategy](devices))
    cost = theirs.cost_analysis()
    assert ours.flops == pytest.approx(cost["flops"], rel=0.1)
    assert ours.exchanges == programs.Text(theirs.as_text()).exchanges()
    # XLA counts one turn of a loop, and there is one in the random numbers.
    once = programs.Text(ours.text.replace("known_trip_count", ""))
    assert once.bytes_moved() == pytest.approx(cost["bytes accessed"], rel=0.1)
    assert ours.bytes_moved > once.bytes_moved()
    memory = theirs.memory_analysis()
    assert ours.arguments == pytest.approx(memory.argument_size_in_bytes, rel=0.1)
    assert ours.temporaries == pytest.approx(memory.temp_size_in_bytes, rel=0.1)


def keras_program(inputs, targets, distribution):
    """What Keras compiled for a batch that it trained on."""
    batch = [np.ones(s.shape, s.dtype) for s in (inputs, targets)]
    distributions.set_distribution(distribution)
    model = dense()
    model.compile(tf_lamb.keras.LAMB(0.01), "mse")
    model.train_on_batch(*batch)
    (jitted,) = (cell.cell_contents for cell in model.train_function.__closure__)
    state = model._get_jax_state(
        trainable_variables=True,
        non_trainable_variables=True,
        optimizer_variables=True,
        metrics_variables=True,
    )
    from keras.src.backend.jax.trainer import _distribute_data

    compiled = []
    listen = lambda event, seconds, **_: compiled.append(event)  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        lowered = jitted.lower(state, _distribute_data((*batch, None)))
    finally:
        jax.monitoring.clear_event_listeners()
    # It is the very function that ran: nothing was traced again.
    assert not [event for event in compiled if "trace" in event and "jaxpr" in event]
    return lowered.compile()


def wide(share, **options):
    """A model of which an example is a MiB."""
    model = keras.Sequential([layers.Input((2**18,)), layers.Dense(8)], name="wide")
    return ask(model, optimizer="sgd", shapes=(8 * share, 2**18), **options)


def test_what_does_not_fit_and_the_largest_batch_that_does(tmp_path, monkeypatch):
    printed = []
    searched = {"largest_batch": True, "cache_dir": tmp_path}
    report = wide(2**16, print_fn=printed.append, **searched)
    assert re.fullmatch(r"compiled 524,288 examples: too large, [\d.]+ GiB, \d+ s", printed[0])
    assert len(printed) == len(list(tmp_path.iterdir())) and 2 <= len(printed) <= 4
    assert "it does not fit, by" in str(report)
    assert re.search(r"^          at (most|least) [\d,]+ examples a replica fit", str(report), re.M)
    available = roofline.topology("v3:2x2").chip.memory
    assert not report.fits and report.memory is None and report.work is None
    # The batch alone is a MiB an example.
    assert report.needed > 2**16 * 2**20 > available
    assert report.largest == pytest.approx(available / 2**20, rel=0.1)
    most, over = wide(report.largest), wide(report.too_large)
    assert most.fits and most.needed <= available
    assert not over.fits and over.largest is None
    # The same question compiles nothing.
    monkeypatch.setattr(compiler, "compile_lowered", lambda lowered: pytest.fail("compiled"))
    monkeypatch.setattr(sys.modules[__name__], "PROGRAMS", {})
    assert wide(2**16, **searched) == report


def snapshot(model, optimizer):
    state = dict(vars(model))
    lists = {name: list(value) for name, value in state.items() if isinstance(value, list)}
    values = [np.array(v.value) for v in model.variables + optimizer.variables]
    layouts = [getattr(v, "_layout", None) for v in model.variables]
    built = [(layer.built, layer.trainable) for layer in model._flatten_layers()]
    return state, lists, values, layouts, built, len(optimizer.variables), optimizer.built


def test_the_model_and_the_optimizer_stay_as_they_are():
    """Compiled with the one that is asked about."""
    model, optimizer = dense(), tf_lamb.keras.LAMB(0.01)
    model.compile(optimizer, "mae", metrics=["mse"])
    model.train_on_batch(np.ones((8, 60)), np.ones((8, 32)))
    before = snapshot(model, optimizer)
    assert ask(model, optimizer=optimizer).fits
    after = snapshot(model, optimizer)
    assert after[0].keys() == before[0].keys()
    assert all(after[0][name] is value for name, value in before[0].items())
    assert after[1] == before[1] and after[3:] == before[3:]
    for value, other in zip(after[2], before[2], strict=True):
        np.testing.assert_array_equal(value, other)
    assert model.optimizer is optimizer
    model.train_on_batch(np.ones((8, 60)), np.ones((8, 32)))


def test_micro_batches_make_one_update():
    """Keras's optimizer accumulates, so a step of `fit` is a micro-batch of an update."""
    model = dense()
    one = ask(model)
    four = ask(model, optimizer=tf_lamb.keras.LAMB(0.01, gradient_accumulation_steps=4))
    assert (four.batch_size, four.micro_batches, four.share) == (256, 4, one.share)
    assert four.memory.slots == pytest.approx(one.memory.slots * 3 / 2, rel=0.01)
    assert four.work.reduced == pytest.approx(4 * one.work.reduced, rel=0.01)
    assert one.work.flops < four.work.flops < 4.5 * one.work.flops


def test_a_gradient_is_summed_before_it_is_shared_out():
    """Else libtpu multiplies matrices in a ring, and keeps whole what it goes around with."""
    model = keras.Sequential([keras.Input((1024,)), layers.Dense(4096)])
    optimizer = tf_lamb.keras.LAMB(0.01, shard_update=True)
    wide = {"loss": SPARSE, "shapes": (2**15, 1024), "topology": "v5e:2x4"}
    found = ask(model, optimizer=optimizer, **wide).collectives
    assert found["reduce-scatter"] == (1, 4 * 1024 * 4096)
    assert "collective-permute" not in found


class Subclass(keras.Model):
    def __init__(self):
        super().__init__(name="model")
        self.first, self.second = layers.Dense(8), layers.Dense(2)

    def call(self, x):
        return {"a": self.second(self.first(x["one"])), "b": self.first(x["two"])}


def test_structures_and_a_model_that_is_built_by_the_shapes():
    model = Subclass()
    report = ask(
        model,
        loss={"a": "mse", "b": "sparse_categorical_crossentropy"},
        shapes={"one": (None, 4), "two": jax.ShapeDtypeStruct((64, 4), "float32")},
        batch_size=64,
    )
    assert report.fits and report.memory.weights == 4 * (4 * 8 + 8 + 8 * 2 + 2)
    assert model.first.built and not model.compiled


def built_elsewhere():
    optimizer = tf_lamb.keras.LAMB(0.01)
    optimizer.build(dense().trainable_variables)
    return optimizer


BAD = {
    "topology": ({"topology": "v9:2x2"}, "TPU v9 is not known here. Known are v3:4x4"),
    "batch": ({"shapes": (100, 60)}, "100 = 12 x 8 + 4. Nearest: 96 or 104"),
    "mesh": (
        {"distribution": lambda: STRATEGIES["data"](TPUS[:4])},
        "has 4 devices, and v3:2x2 has 8",
    ),
    "distribution": ({"distribution": "data"}, "'data' is neither"),
    "unknown length": ({"shapes": (64, None)}, "(64, None): a TPU needs every length"),
    "two batches": ({"batch_size": 32}, "(64, 60) and batch_size=32"),
    "two lengths": ({"target_shapes": (32, 32)}, "not [32, 64]"),
    "no batch": ({"shapes": ()}, "without a batch axis"),
    "optimizer": ({"optimizer": built_elsewhere}, "is built for other variables"),
    "loss": ({"loss": lambda true, predicted: predicted}, "say target_shapes="),
    "inputs": ({"shapes": (64, 61)}, "model 'model' takes no inputs float32[64, 61]"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_one_error_before_anything_is_compiled(name, monkeypatch):
    options, message = BAD[name]
    called = lambda key: callable(options[key]) and key in ("optimizer", "distribution")  # noqa: E731
    options = {key: each() if called(key) else each for key, each in options.items()}
    monkeypatch.setattr(compiler, "compile_lowered", lambda lowered: pytest.fail("compiled"))
    with pytest.raises(ValueError, match=re.escape(message)):
        ask(dense(), **options)


def test_without_the_compiler_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "libtpu", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs libtpu.*pip install "jax\[tpu\]"\.$'):
        ask(dense())
