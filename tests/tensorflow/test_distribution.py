"""`tf.distribute`: one device, replicas, processes and parameter servers agree.

`test_sharded.py` is its half on JAX.
"""

import numpy as np
import pytest
from support import clusters, replicas
from support.cases import assert_same
from support.clusters import mirrored
from support.frontends import FRONTENDS, every_frontend, uncompiled
from support.replicas import BATCH, CASES, Task, one_device, trained_on_one_device

from tf_lamb.api.variables import names_of


def assert_equal(values, expected):
    """But for float32 sums in another order, which differ from one processor to the next."""
    assert_same(values, expected, 1e-5)


def determined(case, values):
    """Of SOAP the weights alone: bases, and what belongs to them, magnify rounding."""
    return values[:7] if case == "SOAP" else values


def assert_all_equal(copies, expected):
    for replica in zip(*copies, strict=True):
        assert_equal(replica, expected)


# Those whose gradients are not added up on each replica.
OUTSIDE = ["LAMB", "LAMB clipped", "LAMB averaged", "LARS", "AdamP", "SOAP"]


# --- MirroredStrategy ---


def assert_replicas_are_one_device(copies, count, expected, case=""):
    for own in copies:
        assert len(own) == count
        for copy in own:
            np.testing.assert_array_equal(copy, own[0])
    assert_all_equal(determined(case, copies), determined(case, expected))


slow = pytest.mark.slow


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=() if c in ("LARS accumulated", "SOAP") else slow) for c in CASES],
)
@every_frontend
def test_replicas_are_one_device(frontend, case):
    """Weights, slots, accumulators and averages; the copies to the last bit."""
    task = Task(frontend, case, mirrored(2)).train()
    assert_replicas_are_one_device(task.copies(), 2, one_device(frontend, case), case)


@slow
@pytest.mark.parametrize("case", ["LAMB", "LARS accumulated"])
@every_frontend
def test_eager_replicas_are_one_device(frontend, case):
    """An eager one: the gradients of its eager model round differently."""
    task = Task(frontend, case, mirrored(2)).train(graph=False)
    assert_replicas_are_one_device(task.copies(), 2, one_device(frontend, case, graph=False))


@pytest.mark.parametrize("case", CASES)
@every_frontend
def test_replicas_that_are_not_compiled_are_one_device(frontend, case):
    """Not to the last bit: uncompiled, TensorFlow adds three numbers in an order of its threads."""
    with uncompiled():
        task = Task(frontend, case, mirrored(2)).train(graph=False)
        expected = one_device(frontend, case, graph=False, jit_compile=False)
        assert_all_equal(determined(case, task.copies()), determined(case, expected))


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=slow)])
@every_frontend
def test_fit_under_replicas_is_fit(frontend, count):
    fitted = []
    for replicas_of_it in (1, count):
        task = Task(
            frontend, "LAMB averaged", mirrored(replicas_of_it), built=False, jit_compile=False
        )
        with task.strategy.scope():
            task.model.compile(optimizer=task.optimizer, loss="mse")
        x, y = task.x.reshape(-1, 3), task.y.reshape(-1, 2)
        task.model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        fitted.append([own[0] for own in task.copies()])
    assert_equal(*fitted)


def sums(task):
    """Of each variable the sum over replicas: to gradients that wait, each adds its share."""
    return [sum(own) for own in task.copies()]


@every_frontend
@uncompiled()
def test_a_build_and_a_migration_outside_of_the_scope_are_those_inside(frontend):
    """There, variables would be made that one replica alone has."""

    def task_of(**more):
        case, changes = "LAMB accumulated", {"gradient_accumulation_steps": 3, "use_ema": True}
        return Task(frontend, case, mirrored(2), jit_compile=False, **changes, **more)

    inside, outside, migrated = task_of(), task_of(built=False), task_of(built=False)
    outside.optimizer.build(outside.model.trainable_variables)
    for task in (inside, outside):
        task.train(graph=False)
    assert_equal(sums(outside), sums(inside))
    migrated.model.set_weights(inside.model.get_weights())
    names = (names_of(task.model.trainable_variables) for task in (migrated, inside))
    report = FRONTENDS[frontend][1].migrate(
        inside.optimizer, migrated.optimizer, migrated.model, rename=dict(zip(*names, strict=True))
    )
    assert not (report.changes or report.left_behind)
    assert_equal(sums(migrated), sums(inside))  # one micro-batch waits
    for task in (inside, migrated):
        task.train(graph=False)
    assert_equal(sums(migrated), sums(inside))


@every_frontend
@pytest.mark.parametrize("is_measured", [False, True], ids=["LAMB", "MeasureNoise"])
@uncompiled()
def test_an_optimizer_that_was_made_outside_of_the_scope_is_refused_at_its_build(
    frontend, is_measured
):
    task, room = Task(frontend, "LAMB", mirrored(2), built=False), FRONTENDS[frontend][1]
    optimizer = room.MeasureNoise(room.LAMB()) if is_measured else room.LAMB()
    with pytest.raises(ValueError, match=r"made outside of the strategy .*strategy\.scope\(\)"):
        optimizer.build(task.model.trainable_variables)


@pytest.mark.parametrize("graph", [pytest.param(True, marks=slow), False])
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c == "LAMB averaged" else slow) for c in OUTSIDE]
)
@every_frontend
def test_gradients_of_a_whole_batch_update_all_replicas(frontend, case, graph):
    """They are applied once, outside of `strategy.run` and of the scope."""
    task = Task(frontend, case, mirrored(2), built=False).train_outside(graph)
    assert_replicas_are_one_device(task.copies(), 2, one_device(frontend, case), case)


@pytest.mark.parametrize(
    "optimizer_of",
    [
        lambda room: room.LAMB(gradient_accumulation_steps=2),
        lambda room: room.MeasureNoise(room.LAMB()),
        lambda room: room.AdaScale(room.LAMB(), scale=2),
    ],
    ids=["accumulation", "MeasureNoise", "AdaScale"],
)
@every_frontend
@uncompiled()
def test_what_needs_the_gradients_of_replicas_is_refused_outside_of_run(frontend, optimizer_of):
    task = Task(frontend, "LAMB", mirrored(2), built=False)
    with task.strategy.scope():
        task.optimizer = optimizer_of(FRONTENDS[frontend][1])
    with pytest.raises(ValueError, match=r"call apply_gradients inside strategy\.run"):
        task.train_outside(graph=False)


# --- MultiWorkerMirroredStrategy ---


@slow
@pytest.mark.parametrize("count", [2, 4])
def test_processes_are_one_device(count):
    first, *others = clusters.results(replicas.worker, clusters.workers(count))
    assert len(others) == count - 1
    for other in others:
        assert other == first  # to the last bit
    for frontend, cases in first.items():
        for case, values in cases.items():
            assert_equal(values, one_device(frontend, case))


# --- ParameterServerStrategy, which Keras 3 does not know ---


@pytest.fixture(scope="module")
def served():
    (result,) = clusters.results(replicas.parameter_servers)
    return result


@slow
@pytest.mark.parametrize("case", CASES)
def test_parameter_servers_are_one_device(served, case):
    assert len(set(served["devices"])) == 2  # each has a part of the variables
    found, expected = served["weights"][case], one_device("tf_keras", case)
    assert_equal(determined(case, found), determined(case, expected))


@slow
def test_each_variable_is_updated_where_it_lies(served):
    """Not all beside the first, which would move every slot from server to server."""
    assert served["places of the update"] == sorted(set(served["devices"]))


@slow
def test_a_joined_layer_may_lie_on_two_servers(served):
    expected = trained_on_one_device("tf_keras", "LAMB", treatments={"dense": {"join": True}})
    assert_equal(served["weights"]["joined"], expected)


@slow
def test_what_has_no_trust_ratio_may_lie_in_parts(served):
    expected = one_device("tf_keras", "LAMB averaged", exclude_from_layer_adaptation=("",))
    assert served["parts"] == 14
    assert_equal(served["in parts"], expected)


@slow
def test_a_norm_of_a_part_is_refused(served):
    """Before any step, whoever asks for a norm: an update, a projection, a clipping."""
    assert len(served["refused"]) == 3
    for message in served["refused"]:
        assert "embeddings" in message
        assert "variable_partitioner" in message
    assert "its update is of the whole variable" in served["refused"][0]
    assert "clipnorm" in served["refused"][2]
