"""Both doors under `tf.distribute`: one device, replicas, processes and parameter servers agree.

`test_sharded.py` is its half on JAX.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from support import clusters
from support.clusters import mirrored, native

import tf_lamb.keras
import tf_lamb.tf_keras

DOORS = {"keras": (keras, tf_lamb.keras), "tf_keras": (tf_keras, tf_lamb.tf_keras)}
STEPS, BATCH = 4, 8

# On `bias$` the mirrored copies of other packages part: see D7 in test_defects.py. A small epsilon
# would magnify the rounding of a sum in another order, where a gradient is nearly 0.
SHARED = {
    "weight_decay": 0.1, "exclude_from_weight_decay": ["bias$", "gamma$"], "epsilon": 0.1,
}  # fmt: skip
CASES = {
    "LAMB": ("LAMB", {}),
    "LAMB clipped": ("LAMB", {"global_clipnorm": 0.1}),
    "LAMB averaged": ("LAMB", {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}),
    "LAMB accumulated": ("LAMB", {"gradient_accumulation_steps": 2, "clipnorm": 0.5}),
    "LARS": ("LARS", {"trust_coefficient": 0.5}),
    "LARS accumulated": ("LARS", {"trust_coefficient": 0.5, "gradient_accumulation_steps": 2,
                                  "global_clipnorm": 0.1, "use_ema": True}),
    "AdamP": ("AdamP", {}),
}  # fmt: skip


class Task:
    """A model with an embedding, whose gradient is sparse, and a batch for each step."""

    def __init__(self, door, case, strategy, built=True, **changes):
        host, ours = DOORS[door]
        name, arguments = CASES[case]
        rng = np.random.default_rng(0)
        self.strategy, self.scale = strategy, strategy.num_replicas_in_sync
        self.x = rng.integers(10, size=(STEPS, BATCH, 3))
        self.y = rng.normal(size=(STEPS, BATCH, 2)).astype("float32")
        with strategy.scope():
            self.model = host.Sequential([
                host.layers.InputLayer((3,), dtype="int32"), host.layers.Embedding(10, 4),
                host.layers.Flatten(), host.layers.Dense(8, activation="tanh"),
                host.layers.LayerNormalization(), host.layers.Dense(2),
            ])  # fmt: skip
            self.model.set_weights([rng.normal(size=w.shape) for w in self.model.get_weights()])
            self.optimizer = getattr(ours, name)(0.05, **{**SHARED, **arguments, **changes})
            if built:
                self.optimizer.build(self.model.trainable_variables)

    def step(self, x, y):
        """What a replica does with its part of the batch."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model(x) - y) ** 2) / self.scale
        variables = self.model.trainable_variables
        gradients = tape.gradient(loss, [native(v) for v in variables])
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def train(self, graph=True):
        """Every step deals one batch out to all replicas."""

        def run(x, y):
            self.strategy.run(self.step, args=(x, y))

        run = tf.function(run) if graph else run
        for batch in zip(self.x, self.y, strict=True):
            run(*(self._dealt_out(whole) for whole in batch))
        return self

    def _dealt_out(self, whole):
        parts = np.split(whole, self.scale)
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )

    def copies(self):
        """Of each variable, of the model and then of the optimizer, this process's copies."""
        return [
            [copy.numpy() for copy in self.strategy.experimental_local_results(native(v))]
            for v in [*self.model.trainable_variables, *self.optimizer.variables]
        ]


@functools.cache
def one_device(door, case, graph=True, **changes):
    return [copy for (copy,) in Task(door, case, mirrored(1), **changes).train(graph).copies()]


def assert_equal(values, expected):
    for value, other in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-6)


# --- MirroredStrategy ---


def assert_replicas_are_one_device(task, expected):
    copies = task.copies()
    for own in copies:
        assert len(own) == task.scale
        for copy in own:
            np.testing.assert_array_equal(copy, own[0])
    assert_equal([own[0] for own in copies], expected)


@pytest.mark.parametrize(
    ("case", "replicas"),
    [*((case, 2) for case in CASES), ("LAMB", 4), ("LAMB", 8), ("LARS accumulated", 4),
     ("LARS accumulated", 8)],
)  # fmt: skip
@pytest.mark.parametrize("door", DOORS)
def test_replicas_are_one_device(door, case, replicas):
    """Weights, slots, accumulators and averages."""
    task = Task(door, case, mirrored(replicas)).train()
    assert_replicas_are_one_device(task, one_device(door, case))


@pytest.mark.parametrize("case", ["LAMB", "LARS accumulated"])
@pytest.mark.parametrize("door", DOORS)
def test_eager_replicas_are_one_device(door, case):
    """An eager one: the gradients of its eager model round differently."""
    task = Task(door, case, mirrored(2)).train(graph=False)
    assert_replicas_are_one_device(task, one_device(door, case, graph=False))


@pytest.mark.parametrize("door", DOORS)
def test_replicas_that_are_not_compiled_are_one_device(door):
    """Not to the last bit: uncompiled, TensorFlow adds three numbers in an order of its threads."""
    copies = Task(door, "LARS accumulated", mirrored(2), jit_compile=False).train().copies()
    expected = one_device(door, "LARS accumulated")
    for replica in range(2):
        assert_equal([own[replica] for own in copies], expected)


@pytest.mark.parametrize("door", DOORS)
def test_fit_under_replicas_is_fit(door):
    fitted = []
    for replicas in (1, 4):
        task = Task(door, "LAMB averaged", mirrored(replicas), built=False, jit_compile=False)
        with task.strategy.scope():
            task.model.compile(optimizer=task.optimizer, loss="mse")
        x, y = task.x.reshape(-1, 3), task.y.reshape(-1, 2)
        task.model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        fitted.append([own[0] for own in task.copies()])
    assert_equal(*fitted)


# --- MultiWorkerMirroredStrategy ---


def worker(strategy):
    """What a worker has after training: by door and optimizer, its copies of all variables."""
    return {
        door: {
            case: [copy.tolist() for (copy,) in Task(door, case, strategy).train().copies()]
            for case in ("LAMB", "LARS accumulated")
        }
        for door in DOORS
    }


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_are_one_device(processes):
    first, *others = clusters.results_of_workers("test_distribution", "worker", processes)
    assert len(others) == processes - 1
    for other in others:
        assert other == first  # to the last bit
    for door, cases in first.items():
        for case, values in cases.items():
            assert_equal(values, one_device(door, case))


# --- ParameterServerStrategy, which Keras 3 does not know ---


def cluster_of_servers():
    """Two workers and two parameter servers, all in this process."""
    jobs = {"worker": clusters.addresses(2), "ps": clusters.addresses(2)}
    spec = tf.train.ClusterSpec(jobs)
    servers = [
        tf.distribute.Server(spec, job_name=job, task_index=i, protocol="grpc")
        for job in jobs
        for i in range(2)
    ]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    return resolver, servers


class Scheduled(Task):
    """A task whose steps a coordinator hands to the workers, one after the other."""

    def train(self, graph=True):
        coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        for x, y in zip(self.x, self.y, strict=True):
            coordinator.schedule(self.run, args=(tf.constant(x), tf.constant(y)))
            coordinator.join()
        return self

    @functools.cached_property
    def run(self):
        return tf.function(lambda x, y: self.strategy.run(self.step, args=(x, y)))

    def traced(self):
        return self.run.get_concrete_function(tf.constant(self.x[0]), tf.constant(self.y[0]))

    def values(self):
        """Of each variable that is seen from outside, whole again where it lies in parts."""
        seen = {}
        for v in [*self.model.trainable_variables, *self.optimizer.variables]:
            whole = v._sharded_container() if hasattr(v, "_sharded_container") else v
            seen[id(whole)] = whole
        return [tf.convert_to_tensor(whole).numpy().tolist() for whole in seen.values()]


# What has no trust ratio may lie in parts.
PARTS = {"exclude_from_layer_adaptation": [""]}


def parameter_servers():
    """What is asserted below of a process that has parameter servers."""
    resolver, _servers = cluster_of_servers()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    seen = {case: Scheduled("tf_keras", case, strategy).train().values() for case in CASES}
    joined = Scheduled("tf_keras", "LAMB", strategy, built=False, layer_groups=["dense"]).train()
    seen["joined"] = joined.values()
    devices = [v.device for v in joined.model.trainable_variables]
    program = Scheduled("tf_keras", "LAMB", strategy).traced().graph.as_graph_def()
    branches = [node for function in program.library.function for node in function.node_def]
    roots = {node.device for node in [*program.node, *branches] if node.op == "Sqrt"}
    cutting = tf.distribute.ParameterServerStrategy(
        resolver,
        variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2),
    )
    in_parts = Scheduled("tf_keras", "LAMB averaged", cutting, **PARTS).train()
    refused = []
    for case, changes in (("LAMB", {}), ("AdamP", {}), ("LAMB", {**PARTS, "clipnorm": 1.0})):
        try:
            Scheduled("tf_keras", case, cutting, **changes)
        except ValueError as error:
            refused.append(str(error))
    return {
        "weights": seen,
        "devices": devices,
        "places of the update": sorted(roots),
        "parts": len(in_parts.model.trainable_variables),
        "in parts": in_parts.values(),
        "refused": refused,
    }


@pytest.fixture(scope="module")
def served():
    return clusters.result_of_process("test_distribution", "parameter_servers")


@pytest.mark.parametrize("case", CASES)
def test_parameter_servers_are_one_device(served, case):
    assert len(set(served["devices"])) == 2  # each has a part of the variables
    assert_equal(served["weights"][case], one_device("tf_keras", case))


def test_each_variable_is_updated_where_it_lies(served):
    """Not all beside the first, which would move every slot from server to server."""
    assert served["places of the update"] == sorted(set(served["devices"]))


def test_a_joined_layer_may_lie_on_two_servers(served):
    expected = one_device("tf_keras", "LAMB", layer_groups=("dense",))
    assert_equal(served["weights"]["joined"], expected)


def test_what_has_no_trust_ratio_may_lie_in_parts(served):
    expected = one_device("tf_keras", "LAMB averaged", exclude_from_layer_adaptation=("",))
    assert served["parts"] == 14
    assert_equal(served["in parts"], expected)


def test_a_norm_of_a_part_is_refused(served):
    """Before any step, whoever asks for a norm: a trust ratio, a projection, a clipping."""
    assert len(served["refused"]) == 3
    for message in served["refused"]:
        assert "embeddings" in message
        assert "variable_partitioner" in message
    assert "trust ratio" in served["refused"][0]
    assert "clipnorm" in served["refused"][2]
