"""A model that is trained on one device, on replicas, by workers and by parameter servers."""

import functools

import numpy as np
import tensorflow as tf
from support import clusters
from support.clusters import mirrored, native
from support.frontends import FRONTENDS

STEPS, BATCH = 4, 8

# On `bias$` the mirrored copies of other packages part: see D7 in test_defects.py. A small epsilon
# would magnify the rounding of a sum in another order, where a gradient is nearly 0; so would long
# steps of LARS.
SHARED = {
    "weight_decay": 0.1, "exclude_from_weight_decay": ["bias$", "gamma$"], "epsilon": 0.1,
}  # fmt: skip
CASES = {
    "LAMB": ("LAMB", {}),
    "LAMB clipped": ("LAMB", {"global_clipnorm": 0.1, "on_spike": [4, 0.5]}),
    "LAMB averaged": ("LAMB", {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}),
    "LAMB accumulated": ("LAMB", {"gradient_accumulation_steps": 2, "clipnorm": 0.5}),
    "LARS": ("LARS", {"trust_coefficient": 0.25,
                      "treatments": {"embedding": {"rate": 0.5}, "norm": {"rate": 0.0}}}),
    "LARS accumulated": ("LARS", {"trust_coefficient": 0.5, "gradient_accumulation_steps": 2,
                                  "global_clipnorm": 0.1, "use_ema": True}),
    "AdamP": ("AdamP", {}),
    # A side that gradients do not span has no determined basis, and eight rows hardly span eight.
    "SOAP": ("SOAP", {"form": {"one_sided": True, "renewal": "cholesky"},
                      "precondition_frequency": 2, "epsilon": 1.0}),
}  # fmt: skip


class Task:
    """A model with an embedding, whose gradient is sparse, and a batch for each step."""

    def __init__(self, frontend, case, strategy, built=True, **changes):
        host, ours = FRONTENDS[frontend]
        name, arguments = CASES[case]
        rng = np.random.default_rng(0)
        self.strategy, self.scale = strategy, strategy.num_replicas_in_sync
        self.x = rng.integers(10, size=(STEPS, BATCH, 3))
        self.y = rng.normal(size=(STEPS, BATCH, 2)).astype("float32")
        if "on_spike" in arguments:
            self.y[2] *= 100  # a spike
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

    def train_outside(self, graph=True):
        """Every step has the gradients of the whole batch, computed outside of `strategy.run`."""
        self.scale = 1
        step = tf.function(self.step) if graph else self.step
        for x, y in zip(self.x, self.y, strict=True):
            step(tf.constant(x), tf.constant(y))
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


def trained_on_one_device(frontend, case, graph=True, **changes):
    return [copy for (copy,) in Task(frontend, case, mirrored(1), **changes).train(graph).copies()]


one_device = functools.cache(trained_on_one_device)  # which takes no dict among the changes


# --- MultiWorkerMirroredStrategy ---


def worker():
    """What a worker has after training: by frontend and optimizer, its copies of all variables."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs
    return {
        frontend: {
            case: [copy.tolist() for (copy,) in Task(frontend, case, strategy).train().copies()]
            for case in ("LAMB", "LARS accumulated")
        }
        for frontend in FRONTENDS
    }


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
    """What `test_distribution.py` asserts of a process that has parameter servers."""
    resolver, _servers = cluster_of_servers()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    seen = {case: Scheduled("tf_keras", case, strategy).train().values() for case in CASES}
    joined = Scheduled(
        "tf_keras", "LAMB", strategy, built=False, treatments={"dense": {"join": True}}
    ).train()
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
