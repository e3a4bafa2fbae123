"""Defines the workers of decentralized training, one per device, and the training step they take.

The arrays of all workers are stacked to one array. Its first axis is the axis of workers, and is
sharded over the devices. The program of a worker reads its own part of the array, and what
`ppermute` brings from its neighbours.

This file uses private API of Keras 3.15.1: `Variable._layout`, which is the sharding of every value
that is assigned to the variable.
"""

import functools

import keras
from keras import ops

from tf_lamb.keras import arrays, replicas
from tf_lamb_extras.decentralized.rules import Mixing

AXIS = "workers"  # the name of the axis of workers in the mesh


class Workers:
    """Makes the arrays and the training step of all workers.

    Args:
        model: The model. Each worker has a copy of its variables.
        rule: The update rule of a variable, a function of `rules.py`.
        matrices: The mixing matrices, of which each step uses the next one in turn.
        devices: The devices, one per worker.
    """

    def __init__(self, model, rule, matrices, devices):
        import jax

        self.model, self.count = model, len(devices)
        self._rule, self._matrices = rule, matrices
        self._mixings = [Mixing.of(matrix) for matrix in matrices]
        self._mesh = jax.sharding.Mesh(devices, (AXIS,))
        # Batches and stacked arrays of all workers are split over the devices. Everything else is
        # replicated.
        self._split = jax.NamedSharding(self._mesh, jax.P(AXIS))
        self._replicated = jax.NamedSharding(self._mesh, jax.P())

    def copies(self):
        """Makes a variable for each variable of the model, with stacked copies for all workers.

        All workers begin with the model's values. Only the states of random generators differ.

        Returns:
            The pair (list for the trainable variables, list for the non-trainable ones).
        """
        model = self.model
        seeds = replicas.seed_state_ids(model)
        trained = [self._copies(v, False) for v in model.trainable_variables]
        return trained, [self._copies(v, id(v) in seeds) for v in model.non_trainable_variables]

    def _copies(self, variable, is_seed):
        """Makes a variable with a copy of one of the model's variables for each worker.

        The copies are split over the devices.

        Args:
            variable: The variable of the model.
            is_seed: Whether it is the state of a random generator. If so, each worker gets another
                seed. Else the copies are equal.
        """
        import jax

        value = jax.device_get(variable.value)

        def worker_part(index):
            worker_value = value.copy()
            if is_seed:
                worker_value[0] = (
                    int(worker_value[0]) + (index[0].start or 0) * replicas.GOLDEN_RATIO
                ) % 2**32
            return worker_value[None]

        shape = (self.count, *variable.shape)
        return keras.Variable(
            jax.make_array_from_callback(shape, self._split, worker_part), dtype=variable.dtype,
            trainable=variable.trainable, autocast=False, layout=self._split, name=variable.name,
        )  # fmt: skip

    @functools.cached_property
    def means(self):
        """A function that takes a list of stacked arrays and returns their means over the workers.

        The means are NumPy arrays. For an array of integers, it returns the first worker's part
        instead.
        """
        import jax

        means = jax.jit(lambda arrays: [_mean(array) for array in arrays])
        # The results are NumPy arrays, because Keras can move these to the one device on which it
        # evaluates the model.
        return lambda arrays: jax.device_get(means(arrays))

    @functools.cached_property
    def consensus_distance(self):
        """A function that takes a list of stacked arrays and returns mean_i |x_i - mean x|^2.

        x_i is the vector of all parts of worker i in these arrays.
        """
        import jax

        @jax.jit
        def distance(weights):
            wide = [ops.cast(x, arrays.compute_dtype(x.dtype)) for x in weights]
            return sum(ops.sum(ops.square(x - ops.mean(x, axis=0))) for x in wide) / self.count

        return distance

    def share(self, variables):
        """Replicates variables on all devices, also the values that are assigned to them later."""
        for variable in variables:
            variable._layout = self._replicated
            variable.assign(variable.value)

    def shared(self, values):
        """Returns the values, replicated on all devices."""
        import jax

        return jax.device_put(values, self._replicated)

    def waited(self, results):
        """Returns the results of a jitted step; on CPUs it waits until they are computed.

        On CPUs, all devices share a pool of threads. If the next step began before this one ended,
        the devices of a step that wait for one another might not all get a thread, and would wait
        forever.

        Args:
            results: What the jitted step returned.
        """
        import jax

        on_cpu = self._mesh.devices.flat[0].platform == "cpu"
        return jax.block_until_ready(results) if on_cpu else results

    def on(self, devices):
        """Returns a `Workers` that is the same but for its devices.

        Raises:
            ValueError: If the number of devices is not the number of workers.
        """
        if len(devices) != self.count:
            raise ValueError(
                f"there are {self.count} workers, and {len(devices)} devices to compile for: give "
                "as many."
            )
        return Workers(self.model, self._rule, self._matrices, tuple(devices))

    def jitted(self, step, optimizer):
        """Returns a training step, jitted for these devices, with its state donated.

        Args:
            step: A function that takes (state, data) and returns (logs, new state).
            optimizer: The optimizer, whose variables are part of the state.
        """
        import jax

        split, replicated = self._split, self._replicated
        slots = [jax.NamedSharding(self._mesh, v._layout.spec) for v in optimizer.variables]
        state = (split, split, slots, replicated)
        return jax.jit(
            step, donate_argnums=0, in_shardings=(state, split), out_shardings=(None, state)
        )

    def step(self, decays, rate, turn, state, data):
        """Takes one step of every worker on its part of the batch.

        Args:
            decays: The weight decay of each trained weight.
            rate: The learning rate, a scalar.
            turn: The number of the step, which chooses the mixing matrix.
            state: A tuple of weights, non-trainable variables, slots and metric variables. The
                slots are a tuple of optimizer arrays for each weight. In all but the metric
                variables, the first axis is that of the workers.
            data: The batch: inputs, targets and sample weights.

        Returns:
            The mean loss, the predictions, and the new state.
        """
        import jax

        def worker(rate, turn, state, data):
            """Takes the step of one worker, from its part of the state and of the data."""
            *worker_state, metrics = state
            weights, non_trainable, slots = jax.tree.map(lambda x: x[0], worker_state)
            (_, (loss, predictions, non_trainable, metrics)), gradients = (
                replicas.loss_and_gradients(
                    self.model, AXIS, weights, non_trainable, [], metrics, data
                )
            )
            update = functools.partial(_update, self.model, self._rule, decays)
            branches = [
                functools.partial(update, functools.partial(_mix, mixing))
                for mixing in self._mixings
            ]
            weights, slots = jax.lax.switch(
                turn % len(branches), branches, rate, gradients, weights, slots
            )
            worker_state = jax.tree.map(lambda x: x[None], [weights, non_trainable, slots])
            return jax.lax.pmean(loss, AXIS), predictions, (*worker_state, metrics)

        split, replicated = jax.P(AXIS), jax.P()
        parts = (split, split, split, replicated)
        # `check_vma` is False, because with it JAX refuses a layer with a loop, such as an RNN, if
        # the loop's carry begins with the same value for all workers and later differs.
        return jax.shard_map(
            worker, mesh=self._mesh, in_specs=(replicated, replicated, parts, split),
            out_specs=(replicated, split, parts), check_vma=False,
        )(rate, turn, state, data)  # fmt: skip


def _mean(array):
    """Returns the mean over workers of an array whose first axis stands for the workers.

    Integers, such as counters, are not averaged: the result is that of the first worker.
    """
    return ops.mean(array, axis=0) if keras.backend.is_float_dtype(array.dtype) else array[0]


def _update(model, rule, decays, mix, rate, gradients, weights, slots):
    """Applies the update rule to each weight of one worker.

    Args:
        model: The model, whose variables have the constraints of the weights.
        rule: The update rule, a function of `rules.py`.
        decays: The weight decay of each weight.
        mix: A function that returns the weighted mean of this worker's array and its neighbours'.
        rate: The learning rate.
        gradients: The gradient of each weight.
        weights: The weights.
        slots: A tuple of the optimizer's arrays, such as the velocity, for each weight.

    Returns:
        The new weights and the new slots.
    """
    new_weights, new_slots = [], []
    for variable, decay, g, w, weight_slots in zip(
        model.trainable_variables, decays, gradients, weights, slots, strict=True
    ):
        dtype = arrays.compute_dtype(w.dtype)
        g, wide_weight, *wide_slots = (ops.cast(x, dtype) for x in (g, w, *weight_slots))
        lr = ops.cast(rate, dtype)
        wide_weight, *wide_slots = rule(
            ops, g, wide_weight, *wide_slots, lr=lr, decay=decay, mix=mix
        )
        if variable.constraint is not None:
            wide_weight = variable.constraint(wide_weight)
        new_weights.append(ops.cast(wide_weight, w.dtype))
        new_slots.append(
            tuple(
                ops.cast(wide_slot, slot.dtype)
                for wide_slot, slot in zip(wide_slots, weight_slots, strict=True)
            )
        )
    return new_weights, new_slots


def _mix(mixing, x):
    """Returns sum_j w_ij x_j for the worker i that runs this program.

    Args:
        mixing: The `Mixing`, which has the weights w_ij.
        x: The array x_i of this worker.
    """
    import jax

    if mixing.is_mean:
        return jax.lax.pmean(x, AXIS)
    total = _own(mixing.own, x) * x
    for term in mixing.terms:
        total = total + _own(term.weights, x) * jax.lax.ppermute(x, AXIS, term.pairs)
    return total


def _own(weights, x):
    """Returns the mixing weight of the worker that runs this program.

    Args:
        weights: The weight of each worker. If all are equal, a Python number is returned.
        x: An array, whose dtype the result has otherwise.
    """
    import jax

    if len(set(weights)) == 1:
        return weights[0]
    return ops.convert_to_tensor(weights, dtype=x.dtype)[jax.lax.axis_index(AXIS)]


class Consensus(keras.callbacks.Callback):
    """Adds the consensus distance, the mean over workers of |x_i - mean x|^2, to epoch logs."""

    def on_epoch_end(self, epoch, logs=None):
        """Adds the consensus distance to the logs.

        It is measured only once per epoch, because the mean of all weights takes an all-reduce.

        Args:
            epoch: The number of the epoch, from 0.
            logs: Keras's logs, to which "consensus_distance" is added. Defaults to None.
        """
        if logs is not None:
            logs["consensus_distance"] = self.model.consensus_distance()
