"""Migration from each source: every argument and every variable of it has its line, or goes on."""

import inspect

import keras
import numpy as np
import pytest
from support.frontends import FRONTENDS, array, every_frontend, uncompiled
from support.migrated import kept, model_of, steps

import tf_lamb.keras as ours
from tf_lamb.api.migration.changes import argument_changes

optimizers = keras.optimizers
# Of Keras 3.12's Muon nothing goes on, and TensorFlow cannot train with it.
KERAS = tuple(map(int, keras.__version__.split(".")[:2]))
PEERS = ["Lamb", "Muon"] if KERAS >= (3, 13) else ["Lamb"]
# So that nothing but what a case says is another there than here.
THERE = {
    "Lamb": {"learning_rate": 0.02},
    "Muon": {
        "learning_rate": 0.02, "exclude_layers": ["/b/"], "adam_weight_decay": 0.1,
        "weight_decay": 0.1,
    },
}  # fmt: skip
HERE = {
    "Lamb": {
        "learning_rate": 0.02, "epsilon": 1e-7, "weight_decay_mode": "decoupled",
        "exclude_from_layer_adaptation": [],
    },
    "Muon": {
        "learning_rate": 0.02, "epsilon": 1e-7, "weight_decay": 0.1,
        "exclude_from_layer_adaptation": ["^b/"],
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def eager():
    """Steps are few here: tracing them would take longer."""
    with uncompiled():
        yield


def there(peer, **arguments):
    return getattr(optimizers, peer)(**{**THERE[peer], **arguments})


def here(peer, **arguments):
    cls = {"Lamb": ours.LAMB, "Muon": ours.Muon}[peer]
    return cls(**{**HERE[peer], **arguments})


def trained(optimizer, count):
    """A model, after so many micro-batches."""
    model = model_of("keras")
    optimizer.build(model.trainable_variables)
    steps(optimizer, model, 0, count)
    return model


AVERAGED = {"use_ema": True, "ema_momentum": 0.5}
# What both have, the micro-batches before, and what the report says of averages.
GO_ON = {
    "an update has begun": ({"gradient_accumulation_steps": 4}, 7, ""),
    "an update is done": ({"gradient_accumulation_steps": 4}, 8, ""),
    "the first update has begun": (
        {"gradient_accumulation_steps": 4, **AVERAGED}, 3, "begin with the first update, as there",
    ),
    "averages": (AVERAGED, 3, "continue"),
    "averages that overwrite": ({**AVERAGED, "ema_overwrite_frequency": 3}, 2, "continue"),
    "averages wait": (AVERAGED, 0, "begin with the first update, as there"),
    "a loss scale": ({"loss_scale_factor": 16.0}, 3, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", GO_ON)
@pytest.mark.parametrize("peer", PEERS)
def test_all_that_a_peer_keeps_goes_on(peer, case):
    arguments, count, averages = GO_ON[case]
    old, new = there(peer, **arguments), here(peer, **arguments)
    model, other = trained(old, count), model_of("keras")
    other.set_weights(model.get_weights())
    report = ours.migrate(old, new, other)
    assert (report.left_behind, report.averages) == ((), averages)
    waits = case == "the first update has begun"  # then averages move at other times than there
    assert [*report.changes] == ["ema_momentum", "when the averages move"] * waits
    rest = 1 if waits else 6
    for optimizer, trains in ((old, model), (new, other)):
        steps(optimizer, trains, count, count + rest)
    assert int(old.iterations) == int(new.iterations)
    for one, same in zip(model.trainable_variables, other.trainable_variables, strict=True):
        np.testing.assert_allclose(array(same), array(one), rtol=0, atol=1e-5)
    if "use_ema" in arguments:
        pairs = zip(old._model_variables_moving_average, new._storage.averages, strict=True)
        for one, same in pairs:
            np.testing.assert_allclose(array(same), array(one), rtol=0, atol=1e-5)


# Of what has no place here: what there is there, here, and the words of the report.
LEFT = {
    "an update has begun": ({"gradient_accumulation_steps": 4}, {}, 7, "micro_step_of_4"),
    "another accumulation": (
        {"gradient_accumulation_steps": 4}, {"gradient_accumulation_steps": 2}, 7,
        "accumulator_of_4",
    ),
    "averages": (AVERAGED, {}, 3, "average"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
@pytest.mark.parametrize("peer", PEERS)
def test_what_a_peer_alone_has_is_told(peer, case):
    arguments, others, count, name = LEFT[case]
    old, new = there(peer, **arguments), here(peer, **others)
    model = trained(old, count)
    report = ours.migrate(old, new, model)
    assert name in report.left_behind and name in str(report)
    assert report.changes.keys() == arguments.keys()
    assert report.keep == arguments
    kept_there = here(peer, **{**others, **report.keep})
    again = ours.migrate(old, kept_there, model)
    assert (again.left_behind, again.changes) == ((), {})


def test_averages_that_move_at_micro_batches_are_told():
    """Four micro-batches of 0.9 there are one update of 0.6561 here."""
    arguments = {"use_ema": True, "ema_momentum": 0.9, "gradient_accumulation_steps": 4}
    old = there("Lamb", **arguments)
    model = trained(old, 4)
    report = ours.migrate(old, here("Lamb", **arguments), model)
    assert report.keep == {"ema_momentum": pytest.approx(0.6561)}
    as_slow = here("Lamb", **{**arguments, **report.keep})
    when = {"when the averages move": ("at each micro-batch", "at each update")}
    assert ours.migrate(old, as_slow, model).changes == when


# Argument of a peer -> another value than in `THERE`.
OTHERS = {
    "learning_rate": 0.03, "beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-5, "weight_decay": 0.2,
    "clipnorm": 1.0, "clipvalue": 1.0, "global_clipnorm": 1.0, "use_ema": True,
    "ema_momentum": 0.5, "ema_overwrite_frequency": 3, "loss_scale_factor": 8.0,
    "gradient_accumulation_steps": 2,
}  # fmt: skip
OTHERS_OF_MUON = {
    "adam_beta_1": 0.8, "adam_beta_2": 0.99, "adam_weight_decay": 0.2, "adam_lr_ratio": 0.5,
    "exclude_layers": ["/a/"], "exclude_embeddings": False, "muon_a": 3.0, "muon_b": -4.0,
    "muon_c": 2.0, "momentum": 0.8, "ns_steps": 4, "nesterov": False, "rms_rate": 0.3,
}  # fmt: skip
AVERAGES = ("ema_momentum", "ema_overwrite_frequency")  # which mean nothing without `use_ema`


def arguments_of(cls):
    """What a user gives to a class, but its name."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(cls).parameters.items()
    return [name for name, each in parameters if each.kind not in kinds and name != "name"]


def told_of(migrate, old, new, model):
    """All that a user reads of a migration from a built optimizer; an error is read, too."""
    old.build(model.trainable_variables)
    try:
        report = migrate(old, new, model)
    except ValueError as error:
        return str(error)
    return str(report)


@pytest.mark.parametrize("peer", PEERS)
def test_every_argument_of_a_peer_has_its_line(peer):
    """A new one of Keras's fails here until it is read, and until it has a value above."""
    cls, model = getattr(optimizers, peer), model_of("keras")
    others = {**OTHERS, **(OTHERS_OF_MUON if peer == "Muon" else {})}
    without_a_line = set()
    for name in arguments_of(cls):
        besides = {"use_ema": True} if name in AVERAGES else {}
        same, other = (
            told_of(ours.migrate, there(peer, **arguments), here(peer, **besides), model)
            for arguments in (besides, {**besides, name: others[name]})
        )
        if same == other:
            without_a_line.add(name)
    # Of embeddings, which have that word in their path, this model has none.
    assert without_a_line == {"exclude_embeddings"} & {*arguments_of(cls)}


@pytest.mark.parametrize("peer", PEERS)
def test_an_argument_and_a_variable_that_nobody_knows_are_told(peer):
    class Newer(getattr(optimizers, peer)):
        def build(self, variables):
            super().build(variables)
            self.horizon = self.add_variable((), name="horizon")

        def get_config(self):
            return {**super().get_config(), "cautious": True}

    old, model = Newer(**THERE[peer]), model_of("keras")
    old.build(model.trainable_variables)
    report = ours.migrate(old, here(peer), model)
    assert report.changes == {"cautious": (True, None)} and "cautious" not in report.keep
    assert report.left_behind == (old.horizon.path,)
    assert "cautious: True there" in str(report) and "horizon" in str(report)


@pytest.mark.parametrize(
    "numbers", [[3.4445, -4.775, 2.0315], [[3.4445, -4.775, 2.0315]] * 5], ids=["once", "a step"]
)
def test_the_numbers_of_a_preset_are_no_change_from_its_name(numbers):
    named = {"newton_schulz_steps": 5, "update_scale": "rms", "coefficients": "jordan"}
    spelt = {**named, "coefficients": numbers}
    assert not argument_changes({"form": named}, {"form": spelt}, {}, ())
    other = {**named, "coefficients": [3.0, -4.0, 2.0]}
    assert argument_changes({"form": spelt}, {"form": other}, {}, ()) == {"form": (spelt, other)}


@pytest.mark.skipif(KERAS >= (3, 13), reason="of Keras 3.12, the oldest")
def test_a_muon_before_keras_3_13_is_refused():
    model = model_of("keras")
    old, new = optimizers.Muon(0.02), ours.Muon(0.02)
    old.build(model.trainable_variables)
    with pytest.raises(ValueError, match=r"before Keras 3\.13 .* keeps other slots.*Nothing was"):
        ours.migrate(old, new, model)


# Arguments of ours that a case cannot make another by itself -> other values.
OURS = {
    "weight_decay": 0.2, "exclude_from_weight_decay": ["^b/"],
    "exclude_from_layer_adaptation": ["^b/"], "treatments": {"^b/": {"rate": 0.5}},
    "bounds": {"trust_ratio": [0.1, 2.0]}, "form": None, "max_precond_dim": 3,
    "clipnorm": 1.0, "clipvalue": 1.0, "global_clipnorm": 1.0, "use_ema": True,
    "ema_overwrite_frequency": 3, "loss_scale_factor": 8.0, "gradient_accumulation_steps": 2,
    "dtypes": {"slots": "bfloat16"}, "on_nonfinite": "propagate", "on_spike": [4, 3.0],
    "weight_decay_mode": "decoupled", "epsilon": 1e-3,
}  # fmt: skip
FORMS = {
    "LARS": {"denominator": "norm_of_sum"}, "Muon": {"newton_schulz_steps": 4},
    "SOAP": {"one_sided": True},
}  # fmt: skip
NO_PART = ("jit_compile", "shard_update")  # of what is computed
FAMILIES = ["LAMB", "LANS", "LARS", "Muon", "SGDP", "SOAP", "AdamP"]


def another(family, name, value):
    """Another value of an argument than its default."""
    if name == "form":
        return FORMS[family]
    if name in OURS:
        return OURS[name]
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value / 2


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=() if f == "LAMB" else pytest.mark.slow) for f in FAMILIES]
)
@every_frontend
def test_every_argument_of_ours_has_its_line(frontend, family):
    _, room = FRONTENDS[frontend]
    cls, model = getattr(room, family), model_of(frontend)
    without_a_line = set()
    for name in arguments_of(cls):
        if name == "loss_scale_factor" and frontend == "tf_keras":
            continue  # which has none
        besides = {"use_ema": True} if name in AVERAGES else {}
        value = another(family, name, inspect.signature(cls).parameters[name].default)
        same, other = (
            told_of(room.migrate, cls(**arguments), cls(**besides), model)
            for arguments in (besides, {**besides, name: value})
        )
        if same == other:
            without_a_line.add(name)
    assert without_a_line == {*NO_PART} & {*arguments_of(cls)}


@pytest.mark.parametrize("kind", [*PEERS, "LAMB", pytest.param("SOAP", marks=pytest.mark.slow)])
@every_frontend
def test_every_variable_of_a_source_goes_on_or_has_its_line(frontend, kind):
    """Another value of any of them makes another optimizer here, or another report."""
    if kind in PEERS and frontend != "keras":
        pytest.skip("a peer in Keras 3")
    _, room = FRONTENDS[frontend]
    arguments = {"gradient_accumulation_steps": 4, **AVERAGED}
    if kind in PEERS:
        old, make = there(kind, **arguments), lambda: here(kind, **arguments)
    else:
        old = getattr(room, kind)(0.02, **arguments, on_spike=[4, 3.0])
        make = lambda: type(old).from_config(old_config)  # noqa: E731
        old_config = old.get_config()
    model = model_of(frontend)
    old.build(model.trainable_variables)
    steps(old, model, 0, 6)

    def outcome():
        new = make()
        told = told_of(room.migrate, old, new, model)
        return told, {name: value.tolist() for name, value in kept(new).items()}

    before, lost = outcome(), []
    for variable in old.variables:
        value = array(variable)
        variable.assign(value + 1)
        if outcome() == before:
            lost.append(variable.name)
        variable.assign(value)
    assert lost == []
    assert outcome() == before
