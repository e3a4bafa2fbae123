"""What was saved goes on where it stopped; a config makes the same optimizer again."""

import itertools

import numpy as np
import pytest
from support.frontends import BACKEND, FRONTENDS, array, every_frontend, uncompiled
from support.small_model import assert_same_weights, classes, fit, functional, go_on

FORMS = ["model.keras", "model.h5"]
if BACKEND == "tensorflow":
    # Restored before the slots exist, as a training program does, and after.
    FORMS += ["checkpoint of an unbuilt", "checkpoint of a built"]


# Those of one epoch make the bases and renew them, and so do those of the next.
OWN = {"LAMB": {}, "SOAP": {"precondition_frequency": 3}}


def optimizer(frontend, name):
    return getattr(FRONTENDS[frontend][1], name)(
        0.01, weight_decay=0.1, exclude_from_weight_decay=["bias"],
        exclude_from_layer_adaptation=[], global_clipnorm=1.0, name="mine", **OWN[name],
    )  # fmt: skip


@pytest.fixture(
    scope="module", params=itertools.product(FRONTENDS, OWN), ids=lambda of: "-".join(of)
)
def trained(request):
    """A frontend, an optimizer's name, its model after two epochs, and after one."""
    frontend, name = request.param
    with uncompiled(fits=True):
        return *request.param, *(
            fit(frontend, optimizer(frontend, name), epochs=epochs)[0] for epochs in (2, 1)
        )


@pytest.mark.parametrize("form", FORMS)
@uncompiled(fits=True)
def test_a_saved_model_goes_on_where_it_stopped(tmp_path, trained, form):
    frontend, name, unbroken, saved = trained
    host, ours = FRONTENDS[frontend]
    if form.startswith("model"):
        saved.save(tmp_path / form)
        restored = host.models.load_model(tmp_path / form, {"Block": classes(frontend)[0]})
        assert restored.optimizer.get_config() == saved.optimizer.get_config()
    else:
        built = form.endswith("a built")
        restored, status = from_checkpoint(frontend, name, saved, tmp_path, built)
    go_on(restored)
    assert int(restored.optimizer.iterations) == 8
    if not form.startswith("model"):
        status.assert_existing_objects_matched()
    assert_same_weights(unbroken, restored)
    assert restored.optimizer.plan.treatments == unbroken.optimizer.plan.treatments


def from_checkpoint(frontend, name, saved, folder, built):
    import tensorflow as tf

    path = tf.train.Checkpoint(model=saved, optimizer=saved.optimizer).save(folder / "ckpt")
    restored = functional(frontend)
    restored.compile(optimizer=optimizer(frontend, name), loss="mse")
    if built:
        restored.optimizer.build(restored.trainable_variables)
    return restored, tf.train.Checkpoint(model=restored, optimizer=restored.optimizer).restore(path)


MATRICES = {"treatments": {"a": {"rows": 0}, "b": {"rows": [0, 1]}, "c": {"rows": None}}}
SLICES = {"treatments": {"a": {"slices": [0, 2]}, "encoder/": {"rate": 0}, "bias": {"rate": 2}}}
DEPTHWISE = {"treatments": {"dw": {"depthwise": True}}}
# Values that are no defaults.
CONFIGS = {
    "LAMB": {
        "beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-4, "exclude_from_layer_adaptation": ["gamma"],
        "bias_correction": False, "clipvalue": 2.0, "use_ema": True, "ema_momentum": 0.5,
        "ema_overwrite_frequency": 3, "gradient_accumulation_steps": 4, "jit_compile": False,
        "name": "other", **SLICES,
    },
    "LANS": SLICES, "LARS": SLICES, "SGDP": DEPTHWISE, "AdamP": DEPTHWISE,
    "Muon": {"form": {"update_scale": "shape"}, **MATRICES},
    "SOAP": {"max_precond_dim": 9, **MATRICES},
}  # fmt: skip


@every_frontend
@pytest.mark.parametrize("name", CONFIGS)
def test_the_config_rebuilds_the_optimizer(frontend, name):
    host, ours = FRONTENDS[frontend]
    rate = host.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    given = {"weight_decay": 0.5, "exclude_from_weight_decay": ["bias"], **CONFIGS[name]}
    first = getattr(ours, name)(rate, **given)
    config, said = first.get_config(), host.optimizers.serialize(first)
    assert config["treatments"].keys() == given.pop("treatments").keys()
    given.pop("form", None)
    assert {key: config[key] for key in given} == given
    assert said["registered_name"] == f"tf_lamb>{name}"
    for again in (host.optimizers.get(said), type(first).from_config(config)):
        assert type(again) is type(first) and again.get_config() == config


def scaled(frontend, name="LAMB", **options):
    """A model that is built, with a loss scale around its optimizer."""
    host, ours = FRONTENDS[frontend]
    host.utils.set_random_seed(0)
    model = host.Sequential([host.layers.Input((2,)), host.layers.Dense(1)])
    inner = getattr(ours, name)(0.05, **options)
    wrap = host.mixed_precision.LossScaleOptimizer
    optimizer = wrap(inner, initial_scale=64.0, dynamic_growth_steps=2)
    model.compile(optimizer, host.losses.MeanSquaredError())  # Keras 3 loads no "mse" from HDF5
    model.optimizer.build(model.trainable_variables)
    return model


def step_by_step(model):
    x = np.linspace(-1, 1, 12, dtype="float32").reshape(6, 2)
    model.fit(x, x[:, :1], batch_size=1, shuffle=False, verbose=0)
    return model


def state(model):
    return {
        key: array(v)
        for key, v in model.optimizer.inner_optimizer._named_state().variables().items()
    }


@every_frontend
def test_a_config_of_other_arguments_says_what_to_do(frontend):
    ours = FRONTENDS[frontend][1]
    config = {**ours.LAMB().get_config(), "slot_dtype": "bfloat16"}
    with pytest.raises(
        TypeError, match="'slot_dtype'.* the arguments of today, .*load the weights"
    ):
        ours.LAMB.from_config(config)


@every_frontend
@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ({}, {}),
        ({"gradient_accumulation_steps": 2}, {"use_ema": True}),
        ({"dtypes": {"slots": "bfloat16"}}, {"dtypes": {"slots": "bfloat16"}}),
    ],
    ids=str,
)
def test_a_loss_scale_and_what_is_inside_go_on(frontend, tmp_path, saved, loaded):
    first = step_by_step(scaled(frontend, **saved))
    first.save_weights(path := str(tmp_path / "saved.weights.h5"))
    second = scaled(frontend, **loaded)
    second.load_weights(path)
    assert_goes_on(first, second)


def assert_goes_on(first, second):
    ours, theirs = state(first), state(second)
    assert ours["iterations"] == theirs["iterations"] > 0
    for name in ours.keys() & theirs.keys():
        np.testing.assert_array_equal(ours[name], theirs[name])
    if hasattr(second.optimizer, "dynamic_scale"):  # else it is in checkpoints alone
        assert array(second.optimizer.dynamic_scale) == array(first.optimizer.dynamic_scale) > 64


@pytest.mark.parametrize("is_built", [True, False])
def test_a_loss_scale_of_a_file_of_before(tmp_path, monkeypatch, is_built):
    """In which the scale is saved by position, with what is inside."""
    first, path = scaled("keras"), str(tmp_path / "saved.weights.h5")
    wrapper, second = type(first.optimizer), scaled("keras")
    if is_built:
        step_by_step(first)
    else:
        first.compile(wrapper(FRONTENDS["keras"][1].LAMB(0.05)), "mse")
    with monkeypatch.context() as before:
        method = FRONTENDS["keras"][0].optimizers.Optimizer.save_own_variables
        before.setattr(wrapper, "save_own_variables", method)
        first.save_weights(path)
    second.load_weights(path)
    if is_built:
        assert_goes_on(first, second)
    else:
        assert array(second.optimizer.dynamic_scale) == 64


@every_frontend
def test_a_loss_scale_loads_nothing_that_is_refused(frontend, tmp_path):
    step_by_step(scaled(frontend)).save_weights(path := str(tmp_path / "saved.weights.h5"))
    other = scaled(frontend, "AdamP")
    before = state(other)
    with pytest.raises(ValueError, match="lamb wrote it.* Nothing of it was changed"):
        other.load_weights(path)
    for name, value in state(other).items():
        np.testing.assert_array_equal(value, before[name])


@every_frontend
@pytest.mark.parametrize("key", ["1:", "skipped_steps"], ids=["a slot", "a counter"])
def test_a_store_with_an_array_of_another_shape_changes_nothing(frontend, key):
    """Of the last variable, so that all others were matched before."""
    saved, other = (fit(frontend, optimizer(frontend, "LAMB"))[0].optimizer for _ in range(2))
    store: dict = {}
    saved.save_own_variables(store)
    store = {name: np.array(value) for name, value in store.items()}
    damaged = [name for name in store if name.startswith(key)][-1]
    store[damaged] = np.zeros((2, 7))
    before = [array(variable).copy() for variable in other.variables]
    with pytest.raises(ValueError, match=r"has shape \(2, 7\) in it, and .* Nothing of it was"):
        other.load_own_variables(store)
    for variable, value in zip(other.variables, before, strict=True):
        np.testing.assert_array_equal(array(variable), value)
