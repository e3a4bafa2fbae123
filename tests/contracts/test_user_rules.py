"""A user's own rule: `optimizer_of` makes a class that has all that the optimizers here have."""

import copy
import inspect
import pickle

import numpy as np
import pytest
from support.frontends import FRONTENDS, apply, array, every_frontend, new_variable, uncompiled
from support.user_rules import layerwise_lion, lion_in_numpy, plain_sign

from tf_lamb import recipes, rules

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 4)).astype("float32")
Y = X[:, :1] - X[:, 1:2]


@pytest.fixture(autouse=True)
def no_rule_stays():
    """What a test adds to the known rules is taken away again."""
    before = dict(rules.ALL)
    yield
    rules.ALL.clear()
    rules.ALL.update(before)


def lion(frontend, **about):
    return FRONTENDS[frontend][1].optimizer_of(layerwise_lion, **about)


def model_of(frontend, optimizer):
    host = FRONTENDS[frontend][0]
    host.utils.set_random_seed(0)
    layers = [host.layers.Dense(3, "relu", name="a"), host.layers.Dense(1, name="b")]
    model = host.Sequential([host.Input((4,)), *layers])
    model.compile(optimizer, "mse")
    return model


def fit(model, epochs=1):
    return model.fit(X, Y, batch_size=16, epochs=epochs, shuffle=False, verbose=0)


@every_frontend
def test_a_step_is_that_of_the_rule(frontend):
    optimizer = lion(frontend)(0.1, weight_decay=0.01, exclude_from_weight_decay=["bias"])
    start = {"kernel": RNG.normal(size=(3, 2)), "bias": RNG.normal(size=2)}
    variables = [new_variable(frontend, w, path=path) for path, w in start.items()]
    expected = {path: (w, np.zeros_like(w)) for path, w in start.items()}
    for step in range(3):
        gradients = {p: np.random.default_rng(step).normal(size=w.shape) for p, w in start.items()}
        with uncompiled():
            apply(optimizer, gradients.values(), variables)
        for path, g in gradients.items():
            is_kernel = path == "kernel"
            expected[path] = lion_in_numpy(g, *expected[path], 0.1, 0.01 * is_kernel, is_kernel)
    for variable, (w, _) in zip(variables, expected.values(), strict=True):
        np.testing.assert_allclose(array(variable), w, rtol=1e-5)


@every_frontend
def test_a_rule_without_slots_trains(frontend):
    optimizer = FRONTENDS[frontend][1].optimizer_of(plain_sign)(0.5)
    variable = new_variable(frontend, [1.0, -2.0])
    apply(optimizer, [[3.0, -4.0]], [variable])
    np.testing.assert_array_equal(array(variable), [0.5, -1.5])


def forgetful(xp, g, w, m, *, lr, t, decay, adapt, axes):
    return w - lr * g


@every_frontend
def test_a_rule_that_forgets_a_slot_is_told_so(frontend):
    optimizer = FRONTENDS[frontend][1].optimizer_of(forgetful)(0.5)
    variable = new_variable(frontend, [1.0, -2.0])
    with uncompiled(), pytest.raises(TypeError, match="has to return w, m, and it returned 1"):
        apply(optimizer, [[3.0, -4.0]], [variable])


# What a training may have besides, all at once.
EVERYTHING = {
    "exclude_from_weight_decay": "norm_and_bias", "weight_decay": 0.01, "use_ema": True,
    "gradient_accumulation_steps": 3, "dtypes": {"slots": "bfloat16"}, "clipnorm": 1.0,
    "treatments": {"^b/": {"rate": 0.5}},
}  # fmt: skip


@every_frontend
def test_a_loaded_model_goes_on_with_the_same_bits(frontend, tmp_path):
    """In the midst of an update, with all options that there are."""
    model = model_of(frontend, lion(frontend)(0.01, **EVERYTHING))
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = FRONTENDS[frontend][0].models.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        fit(each)
    for one, same in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(same, one)


@every_frontend
def test_its_trust_ratios_are_shown(frontend):
    optimizer = lion(frontend)(0.01, exclude_from_layer_adaptation=["bias"])
    model = model_of(frontend, optimizer)
    optimizer.observe_trust_ratios()
    fit(model)
    kernels, biases = optimizer.trust_ratios()[::2], optimizer.trust_ratios()[1::2]
    assert all(seen.trust_ratio > 0 for seen in kernels)
    assert [seen.trust_ratio for seen in biases] == [None, None]


@every_frontend
def test_describe_lists_what_is_adapted(frontend):
    _, ours = FRONTENDS[frontend]
    model, lines = model_of(frontend, lion(frontend)(0.01, weight_decay=0.1)), []
    ours.describe(model, print_fn=lines.append)
    assert "a/kernel" in lines[0] and "yes" in lines[0]


@every_frontend
def test_its_signature_names_every_argument(frontend):
    parameters = inspect.signature(lion(frontend, learning_rate=0.003)).parameters
    assert [*parameters][:3] == ["learning_rate", "beta_1", "beta_2"]
    assert parameters["learning_rate"].default == 0.003
    assert parameters["name"].default == "LayerwiseLion"


@pytest.mark.parametrize("name", rules.OURS)
@every_frontend
def test_a_users_class_takes_what_ours_take(frontend, name):
    parameters = inspect.signature(getattr(FRONTENDS[frontend][1], name)).parameters
    of_a_user = inspect.signature(lion(frontend)).parameters
    shared = [argument for argument in parameters if argument in of_a_user and argument != "name"]
    assert len(shared) >= 18
    of_the_rule = ("learning_rate", "weight_decay", *rules.OURS[name].hyper)
    expected, own = (
        {argument: (of[argument].default, of[argument].annotation)
         for argument in shared if argument not in of_the_rule}
        for of in (parameters, of_a_user)
    )  # fmt: skip
    assert own == expected


@pytest.mark.parametrize("name", rules.OURS)
@every_frontend
def test_a_default_is_the_same_in_a_rule_and_in_its_constructor(frontend, name):
    parameters = inspect.signature(getattr(FRONTENDS[frontend][1], name)).parameters
    of_rule = inspect.signature(rules.OURS[name].step).parameters
    numbers = [argument for argument in rules.OURS[name].hyper
               if isinstance(of_rule[argument].default, (bool, int, float))]  # fmt: skip
    assert numbers
    assert {argument: parameters[argument].default for argument in numbers} == {
        argument: of_rule[argument].default for argument in numbers
    }


@every_frontend
def test_adascale_takes_a_rule_without_second_moments(frontend):
    ours = FRONTENDS[frontend][1]
    inner = lion(frontend)(0.01, gradient_accumulation_steps=2)
    optimizer = ours.AdaScale(inner, scale=2.0)
    variable = new_variable(frontend, [1.0, -2.0])
    for gradient in ([3.0, -4.0], [1.0, -2.0]):
        apply(optimizer, [gradient], [variable])
    assert optimizer.power == 1.0
    assert 1.0 <= optimizer.gain <= 2.0 and optimizer.base_steps > 0


def rule_of_shared(xp, g, w, *, lr, t, decay, adapt, axes, shared=0.5):
    return (w - shared * lr * g,)


@every_frontend
def test_a_hyper_parameter_may_have_any_name(frontend):
    optimizer = FRONTENDS[frontend][1].optimizer_of(rule_of_shared)(0.5)
    variable = new_variable(frontend, [1.0, -2.0])
    apply(optimizer, [[2.0, -4.0]], [variable])
    np.testing.assert_array_equal(array(variable), [0.5, -1.0])


@every_frontend
def test_a_copy_and_a_config_are_the_same(frontend):
    optimizer = lion(frontend)(0.01, beta_1=0.8)
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.beta_1 == 0.8 and again.get_config() == optimizer.get_config()


def test_a_rule_can_be_given_to_transfer_with_its_exponent():
    lion(next(iter(FRONTENDS)), transfer_exponent=0.5)
    recipe = recipes.transfer(
        512, 64, 0.01, examples=1000, epochs=30, optimizer="LayerwiseLion", noise_scale=100.0
    )
    fewer = (1 + 100 / 64) / (1 + 100 / 512)
    assert recipe.learning_rate == pytest.approx(0.01 * fewer**0.5)


def test_transfer_refuses_a_rule_whose_exponent_nobody_told():
    lion(next(iter(FRONTENDS)))
    with pytest.raises(ValueError, match="optimizer must be one of"):
        recipes.transfer(512, 64, 0.01, examples=1000, epochs=30, optimizer="LayerwiseLion")


def rule_without_axes(xp, g, w, *, lr, t, decay, adapt): ...
def rule_with_text(xp, g, w, *, lr, t, decay, adapt, axes, mode="sign"): ...
def rule_without_default(xp, g, w, *, lr, t, decay, adapt, axes, beta): ...
def rule_in_another_order(g, w, xp, *, lr, t, decay, adapt, axes): ...
def rule_with_star(xp, g, w, *state, lr, t, decay, adapt, axes): ...
def rule_with_any_keyword(xp, g, w, *, lr, t, decay, adapt, axes, **others): ...


REFUSED = {
    rule_without_axes: "is no rule: it has to be",
    rule_with_text: "mode of rule_with_text needs a default that is a number",
    rule_without_default: "beta of rule_without_default needs a default",
    rule_in_another_order: "is no rule: it has to be",
    rule_with_star: "is no rule: it has to be",
    rule_with_any_keyword: "is no rule: it has to be",
}


@pytest.mark.parametrize("rule", REFUSED)
def test_what_is_no_rule_is_refused(rule):
    _, ours = FRONTENDS["keras"]
    with pytest.raises(TypeError, match=REFUSED[rule]):
        ours.optimizer_of(rule)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "LAMB"}, "LAMB is an optimizer of this package"),
        ({"name": "my lion"}, "name must be that of a class"),
        ({"ranges": {"beta_3": "[0, 1)"}}, "has no 'beta_3'"),
        ({"transfer_exponent": 2.0}, "transfer_exponent must be a number in"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        lion("keras", **arguments)


@pytest.mark.once
def test_every_beta_of_a_rule_has_the_interval_of_a_mean():
    def with_three_betas(xp, g, w, m, *, lr, t, decay, adapt, axes, beta_3=0.9):
        return w - lr * g, beta_3 * m

    cls = FRONTENDS["keras"][1].optimizer_of(with_three_betas)
    with pytest.raises(ValueError, match=r"beta_3 must be a number in \[0, 1\), but it is 1.5"):
        cls(0.1, beta_3=1.5)


def test_a_hyper_parameter_is_held_in_its_interval():
    cls = lion("keras", ranges={"beta_2": "[0.5, 1)"})
    with pytest.raises(ValueError, match=r"beta_2 must be a number in \[0.5, 1\)"):
        cls(0.1, beta_2=0.1)


def rule_of_whole_numbers(
    xp, g, w, *, lr, t, decay, adapt, axes, beta_1=0, gamma=1, steps=5, delay=0
):
    return (w - lr * g,)


@pytest.mark.parametrize(
    "values",
    [{"beta_1": 0.9}, {"beta_1": 0}, {"gamma": 0}, {"gamma": -1}, {"steps": 7}, {"delay": 0}],
    ids=str,
)
def test_a_hyper_parameter_may_have_a_whole_number_as_its_default(values):
    ours = next(iter(FRONTENDS.values()))[1]
    optimizer = ours.optimizer_of(rule_of_whole_numbers, ranges={"gamma": "[-1.5, 2)"})(**values)
    assert optimizer.get_config().items() >= values.items()


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"steps": 0.5}, TypeError, r"steps must be a whole number >= 0, not 0\.5"),
        ({"gamma": 0.5}, TypeError, r"gamma must be a whole number >= -1, not 0\.5"),
        ({"gamma": 2}, ValueError, r"gamma must be a whole number up to 1, not 2"),
    ],
    ids=str,
)
def test_what_has_a_whole_number_as_its_default_takes_no_other(values, error, message):
    ours = next(iter(FRONTENDS.values()))[1]
    optimizer = ours.optimizer_of(rule_of_whole_numbers, ranges={"gamma": "(-2, 2)"})
    with pytest.raises(error, match=message):
        optimizer(**values)


def scalar_slot(xp, g, w, m, *, lr, t, decay, adapt, axes):
    return w - lr * g, xp.sum(m + g)


def scalar_weight(xp, g, w, m, *, lr, t, decay, adapt, axes):
    return xp.sum(w - lr * g), m


@pytest.mark.parametrize(("rule", "name"), [(scalar_slot, "m"), (scalar_weight, "w")])
@every_frontend
def test_an_array_of_another_shape_is_refused(frontend, rule, name):
    optimizer = FRONTENDS[frontend][1].optimizer_of(rule)(0.5)
    variable = new_variable(frontend, [1.0, -2.0])
    message = rf"has to return {name} in the shape of w, \(2,\), and it returned the shape \(\)"
    with pytest.raises(ValueError, match=message):
        apply(optimizer, [[3.0, -4.0]], [variable])
    np.testing.assert_array_equal(array(variable), [1.0, -2.0])


@pytest.mark.parametrize("interval", ["0..5", "0, 1", "[1, 0]", "[a, b]", "", None, 3])
def test_what_is_no_interval_is_refused(interval):
    with pytest.raises(ValueError, match=r"an interval is written as '\[0, 1\)' or '\(0, inf\)'"):
        lion("keras", ranges={"beta_2": interval})


def test_a_default_outside_of_its_interval_is_refused():
    message = r"The default of beta_2 in layerwise_lion: beta_2 must be a number in \[0, 0\.5\]"
    with pytest.raises(ValueError, match=message):
        lion("keras", ranges={"beta_2": "[0, 0.5]"})


def rule_of_a_taken_name(xp, g, w, *, lr, t, decay, adapt, axes, clipnorm=1.0):
    return (w - lr * g,)


def test_a_hyper_parameter_has_no_name_of_an_argument_of_all():
    with pytest.raises(TypeError, match="'clipnorm' of rule_of_a_taken_name is an argument that"):
        FRONTENDS["keras"][1].optimizer_of(rule_of_a_taken_name)


def test_only_the_rate_is_taken_by_position():
    with pytest.raises(TypeError, match="LayerwiseLion takes the learning rate alone by position"):
        lion("keras")(0.01, 0.9)


def test_an_argument_that_is_none_is_answered_with_one_that_is():
    answer = r"LayerwiseLion has no argument 'lr' .*: write LayerwiseLion\(learning_rate=0\.1\)\.$"
    with pytest.raises(TypeError, match=answer):
        lion("keras")(lr=0.1)


@every_frontend
def test_a_cell_may_run_again(frontend):
    for _ in range(2):
        cls = lion(frontend)
    assert copy.copy(cls) is cls and cls.__name__ == "LayerwiseLion"


def test_a_class_is_pickled_by_where_it_is_bound(monkeypatch):
    import support.user_rules as module

    cls = lion("keras")
    monkeypatch.setattr(module, "LayerwiseLion", cls, raising=False)
    assert pickle.loads(pickle.dumps(cls)) is cls
