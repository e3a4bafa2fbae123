"""A config of TensorFlow Addons, in each of its forms, becomes one of ours, or is refused."""

import json

import h5py
import numpy as np
import pytest
from goldens import load, problem
from support.frontends import FRONTENDS, every_frontend
from support.migrating import ADDONS, GARDEN

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
def test_from_addons_refuses_what_it_would_have_to_guess(frontend):
    _, room = FRONTENDS[frontend]
    garden = GARDEN["lamb_model"]["config"]
    with pytest.raises(ValueError, match="exclusion lists"):
        room.LAMB.from_addons(garden)
    lists = {"exclude_from_weight_decay": ["bias"], "exclude_from_layer_adaptation": None}
    optimizer = room.LAMB.from_addons(garden, **lists)
    assert optimizer.get_config()["weight_decay"] == 0.01
    assert optimizer.get_config()["exclude_from_weight_decay"] == ["bias"]
    with pytest.raises(ValueError, match="'Adam'"):
        room.LAMB.from_addons({"class_name": "Adam", "config": {}})
    strange = {"class_name": "Addons>LAMB", "config": {"amsgrad": True}}
    with pytest.raises(ValueError, match="'amsgrad'"):
        room.LAMB.from_addons(strange)


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
