"""What was saved goes on where it stopped; a config makes the same optimizer again."""

import itertools

import pytest
from support.frontends import BACKEND, FRONTENDS, every_frontend, uncompiled
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


@every_frontend
def test_the_config_rebuilds_the_optimizer(frontend):
    host, ours = FRONTENDS[frontend]
    first = ours.LAMB(
        host.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9), beta_1=0.8, beta_2=0.99,
        epsilon=1e-4, weight_decay=0.2, exclude_from_weight_decay=["bias"],
        exclude_from_layer_adaptation=["gamma"], bias_correction=False, clipvalue=2.0, use_ema=True,
        ema_momentum=0.5, ema_overwrite_frequency=3, gradient_accumulation_steps=4,
        jit_compile=False, name="other",
    )  # fmt: skip
    again = host.optimizers.get(host.optimizers.serialize(first))
    assert type(again) is ours.LAMB
    assert again.get_config() == first.get_config()
    assert host.optimizers.serialize(first)["registered_name"] == "tf_lamb>LAMB"


@every_frontend
@pytest.mark.parametrize("name", ["LANS", "LARS", "Muon", "SOAP", "SGDP", "AdamP"])
def test_every_optimizer_survives_its_config(frontend, name):
    host, ours = FRONTENDS[frontend]
    cls = getattr(ours, name)
    projects = name in ("SGDP", "AdamP")
    extra = {"depthwise": ["dw"]} if projects else {"layer_slices": {"a": [0, 2]}}
    if name in ("Muon", "SOAP"):
        extra = {"matrix_rows": {"a": 0, "b": [0, 1], "c": None}}
        extra |= {"update_scale": "shape"} if name == "Muon" else {"max_precond_dim": 9}
    optimizer = cls(0.25, weight_decay=0.5, exclude_from_weight_decay=["bias"], **extra)
    assert cls.from_config(optimizer.get_config()).get_config() == optimizer.get_config()
    assert type(host.optimizers.get(host.optimizers.serialize(optimizer))) is cls
