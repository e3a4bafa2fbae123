"""Keras 3 on JAX in several processes, each with devices of its own: one training, as in one."""

import functools
import re
import shutil
import signal

import keras
import pytest
from support import clusters, hosts, processes
from support.cases import assert_same

if keras.backend.backend() != "jax":
    pytest.skip("keras.distribution trains on JAX alone", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("quickly_compiled", "undistributed")
DEVICES = 8


def in_two(function, *arguments):
    """What it returns in each of two processes of four devices."""
    return clusters.results(
        functools.partial(function, *arguments), clusters.jax_processes(2, DEVICES), timeout=300
    )


OTHERS = tuple(case for case in hosts.CASES if case != "apart")


@pytest.mark.parametrize("cases", [("apart",), pytest.param(OTHERS, marks=pytest.mark.slow)])
def test_two_processes_are_one(cases, tmp_path):
    """Their backup is the first one's, and whole: a process that is alone goes on from it."""
    found, same = in_two(hosts.trained, cases, str(tmp_path / "two"))
    assert found == same  # to the last bit
    expected = hosts.trained(cases, str(tmp_path / "one"))
    again = hosts.trained(cases, str(tmp_path / "two"))
    for case in cases:
        assert found[case]["epochs"] == expected[case]["epochs"] == [*range(hosts.EPOCHS)]
        assert_same(found[case]["state"], expected[case]["state"], 1e-6)
        assert again[case] == {"epochs": [], "state": found[case]["state"]}
        for process in (0, 1):
            model = hosts.compiled(case)
            model.optimizer.build(model.trainable_variables)
            model.load_weights(tmp_path / "two" / f"{case}_{process}.weights.h5")
            count = len(model.optimizer.variables)
            assert hosts.state(model)[-count:] == found[case]["state"][-count:]


@pytest.mark.slow
def test_keras_deals_out_a_dataset(tmp_path):
    found, same = in_two(hosts.trained_on_a_dataset, str(tmp_path / "two"))
    assert found == same
    assert_same(found, hosts.trained_on_a_dataset(str(tmp_path / "one")), 1e-6)


@pytest.mark.slow
def test_weights_in_parts_on_two_processes(tmp_path):
    found, same = in_two(hosts.trained_in_parts, str(tmp_path / "two"))
    assert found == same
    assert_same(found["state"], hosts.trained_in_parts(str(tmp_path / "one"))["state"], 1e-6)
    again = hosts.trained_in_parts(str(tmp_path / "two"))
    assert again == {"epochs": [], "state": found["state"]}


@pytest.mark.slow
@pytest.mark.parametrize("victims", [(0, 1), (0,), (1,)])
def test_killed_it_goes_on_from_the_last_epoch(victims, tmp_path, unbroken):
    """All of them or one, whose loss ends the other."""
    folder, environments = str(tmp_path / "apart"), clusters.jax_processes(2, DEVICES)
    running = [
        processes.started(hosts.die_in_the_third_epoch, folder, victims, **own)
        for own in environments
    ]
    for process in running:
        process.join(300)
    codes = [process.exitcode for process in running]
    for process in running:
        process.kill()
    assert all(code is not None and code != 0 for code in codes), codes
    assert all(codes[i] == -signal.SIGKILL for i in victims), codes
    shutil.copytree(folder, tmp_path / "copy" / "apart")
    found, same = in_two(hosts.trained, ("apart",), str(tmp_path))
    assert found == same
    assert found["apart"] == {"epochs": [2, 3], "state": unbroken["state"]}
    alone = hosts.trained(("apart",), str(tmp_path / "copy"))["apart"]
    assert alone["epochs"] == [2, 3]
    assert_same(alone["state"], unbroken["state"], 1e-6)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return in_two(hosts.trained, ("apart",), str(tmp_path_factory.mktemp("unbroken")))[0]["apart"]


REFUSED = {
    "argument": r"optimizer LAMB: weight_decay is 0.1 in process 0, 0.2 in process 1. Start",
    "weights": r"model/up/kernel is float32 \(16, 32\) with the checksum \w{8} in process 0, ",
    "epochs": "fit with BackupAndRestore: epochs is 4 in process 0, 5 in process 1",
    "examples": "steps is 4 in process 0, 2 in process 1.* as many examples as the others",
    "batch": r"the batch: the shape of a part of it is \(8, 16\) in process 0, \(4, 16\) in proc",
    "folder": r"last epoch in the folder that they share is \[4\] in process 0, \[\] in process 1",
}


@pytest.mark.slow
def test_what_differs_is_refused_before_the_first_step(tmp_path):
    for found in in_two(hosts.refusals, str(tmp_path)):
        assert found.keys() == REFUSED.keys()
        for case, (message, steps) in found.items():
            assert re.search(REFUSED[case], message), message
            assert steps == 0
