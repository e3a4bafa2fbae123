"""A config of TensorFlow Addons, in each of its forms, becomes one of ours, or is refused."""

import json
import shutil

import h5py
import numpy as np
import pytest
from goldens import load, problem
from support.frontends import FRONTENDS, apply, every_frontend, uncompiled
from support.migrating import ADDONS, GARDEN, build

CASES = load.cases("tensorflow_addons")


@pytest.mark.parametrize("name", CASES)
@every_frontend
def test_from_addons(frontend, name):
    case = CASES[name]
    config = FRONTENDS[frontend][1].LAMB.from_addons(case["config"]).get_config()
    for argument, value in case["arguments"].items():
        if argument == "learning_rate" and value == "schedule":
            assert config["learning_rate"]["config"]["values"] == problem.SCHEDULE["lamb"]
        elif value != []:  # none given, for Addons
            assert config[argument] == (value if isinstance(value, list) else pytest.approx(value))
    assert config["epsilon"] == case["arguments"].get("epsilon", 1e-6)


@every_frontend
def test_from_addons_reads_both_forms_and_the_file(frontend):
    _, room = FRONTENDS[frontend]
    with h5py.File(ADDONS["files"]["hdf5"]) as file:
        older = json.loads(file.attrs["training_config"])["optimizer_config"]
    configs = [
        room.LAMB.from_addons(form).get_config()
        for form in (older, ADDONS["config"], ADDONS["files"]["hdf5"])
    ]
    assert configs[0] == configs[1] == configs[2]
    assert configs[0]["exclude_from_weight_decay"] == ["layer_norm", "bias"]


@every_frontend
def test_from_addons_needs_the_lists_that_a_config_has_not(frontend):
    _, room = FRONTENDS[frontend]
    garden = GARDEN["lamb_model"]["config"]
    with pytest.raises(ValueError, match="exclusion lists"):
        room.LAMB.from_addons(garden)
    lists = {"exclude_from_weight_decay": ["bias"], "exclude_from_layer_adaptation": None}
    optimizer = room.LAMB.from_addons(garden, **lists)
    assert optimizer.get_config()["weight_decay"] == 0.01
    assert optimizer.get_config()["exclude_from_weight_decay"] == ["bias"]


@every_frontend
@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"class_name": "Adam", "config": {}}, "'Adam'"),
        ({"class_name": "Addons>LAMB", "config": {"amsgrad": True}}, "'amsgrad'"),
    ],
    ids=["another class", "another argument"],
)
def test_from_addons_refuses_what_it_would_have_to_guess(frontend, config, word):
    with pytest.raises(ValueError, match=word):
        FRONTENDS[frontend][1].LAMB.from_addons(config)


@every_frontend
def test_a_path_without_a_file_is_not_called_damaged(frontend, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no HDF5 file at .*none\.h5"):
        FRONTENDS[frontend][1].LAMB.from_addons(tmp_path / "none.h5")


@every_frontend
def test_the_legacy_decay_of_the_rate_becomes_a_schedule(frontend):
    host, room = FRONTENDS[frontend]
    config = {"class_name": "Addons>LAMB", "config": {"learning_rate": 0.1, "decay": 0.5}}
    falls = room.LAMB.from_addons(config)._learning_rate
    np.testing.assert_allclose([float(falls(t)) for t in range(3)], [0.1, 0.1 / 1.5, 0.05], 1e-6)
    schedule = host.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.5)
    twice = host.optimizers.schedules.serialize(schedule)
    with pytest.raises(ValueError, match=r"a schedule and decay=0\.5 besides"):
        room.LAMB.from_addons({**config, "config": {"learning_rate": twice, "decay": 0.5}})
    assert room.LAMB.from_addons(config, learning_rate=schedule)._learning_rate is schedule


# As a file of TensorFlow 2.15 holds them, but for its name: a class there -> its arguments.
SCHEDULES = {
    "ExponentialDecay": {
        "initial_learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.5, "staircase": False,
    },
    "PiecewiseConstantDecay": {"boundaries": [3, 6], "values": [0.3, 0.2, 0.1]},
    "PolynomialDecay": {
        "initial_learning_rate": 0.1, "decay_steps": 10, "end_learning_rate": 1e-4, "power": 1.0,
        "cycle": False,
    },
    "InverseTimeDecay": {
        "initial_learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.5, "staircase": False,
    },
    "CosineDecay": {
        "initial_learning_rate": 0.1, "decay_steps": 10, "alpha": 0.0, "warmup_target": 0.2,
        "warmup_steps": 3,
    },
    "CosineDecayRestarts": {
        "initial_learning_rate": 0.1, "first_decay_steps": 3, "t_mul": 2.0, "m_mul": 1.0,
        "alpha": 0.0,
    },
}  # fmt: skip
RATES_AT_4 = {  # of tf_keras 2.20.1
    "ExponentialDecay": 0.0757858, "PiecewiseConstantDecay": 0.2, "PolynomialDecay": 0.06004,
    "InverseTimeDecay": 0.0833333, "CosineDecay": 0.1951057, "CosineDecayRestarts": 0.0933013,
}  # fmt: skip


def file_with_rate(folder, rate):
    """The HDF5 file of Addons with another learning rate in its config."""
    path = shutil.copy(ADDONS["files"]["hdf5"], folder / "addons.h5")
    with h5py.File(path, "a") as file:
        training = json.loads(file.attrs["training_config"])
        training["optimizer_config"]["config"]["learning_rate"] = rate
        file.attrs["training_config"] = json.dumps(training)
    return path


@pytest.mark.parametrize("name", [None, "a/b"])
@pytest.mark.parametrize("kind", SCHEDULES)
@every_frontend
def test_a_schedule_of_tensorflow_2_15_trains_and_goes_on(frontend, kind, name, tmp_path):
    """There a schedule is nameless by default, which Keras 3 finds out in the first step."""
    host, room = FRONTENDS[frontend]
    rate = {"class_name": kind, "config": {**SCHEDULES[kind], "name": name}}
    if name is None:  # the newer of its two forms
        rate |= {"module": "keras.optimizers.schedules", "registered_name": None}
    path = file_with_rate(tmp_path, rate)
    optimizer, model = room.LAMB.from_addons(path, jit_compile=False), build(host)
    variables = model.trainable_variables
    assert float(optimizer._learning_rate(4)) == pytest.approx(RATES_AT_4[kind], rel=1e-5)
    report = room.migrate(path, optimizer, model, weights=True)
    assert (report.step, report.changes) == (problem.SAVED_AFTER, {})
    with uncompiled():
        apply(optimizer, [np.ones(v.shape) for v in variables], variables)
    assert int(optimizer.iterations) == problem.SAVED_AFTER + 1


@every_frontend
def test_a_schedule_inside_another_is_named_as_keras_3_takes_it(frontend):
    _, room = FRONTENDS[frontend]
    inside = {"class_name": "CosineDecay", "config": {**SCHEDULES["CosineDecay"], "name": None}}
    around = {"class_name": "tf_lamb>Warmup", "config": {"steps": 2, "after": inside}}
    config = {"class_name": "Addons>LAMB", "config": {"learning_rate": around}}
    assert float(room.LAMB.from_addons(config)._learning_rate(6)) > 0
