"""Workers with weights of their own, one a device: how their arrays lie, and the step they take.

An array of all workers has one more axis in front, which is sharded over the devices; a worker's
program sees its own part of it, and what `ppermute` brings from the neighbours.

Seam into Keras 3 (3.15.1): `Variable._layout`, the sharding of whatever it is assigned.
"""

import functools

import keras
from keras import ops

from tf_lamb.keras import arrays, replicas
from tf_lamb_extras.decentralized.rules import Mixing

AXIS = "workers"


class Workers:
    """The work on all devices.

    Args:
        model: of which each worker has weights.
        rule: of `rules.py`.
        matrices: the mixing matrices, which take turns.
        devices: one a worker.
    """

    def __init__(self, model, rule, matrices, devices):
        import jax

        self.model, self.count = model, len(devices)
        self._rule, self._matrices = rule, matrices
        self._mixings = [Mixing.of(matrix) for matrix in matrices]
        self._mesh = jax.sharding.Mesh(devices, (AXIS,))
        # What each worker has a part of, which is arrays of all workers and batches; all the rest.
        self._split = jax.NamedSharding(self._mesh, jax.P(AXIS))
        self._replicated = jax.NamedSharding(self._mesh, jax.P())

    def copies(self):
        """New variables of all workers: the model's trained ones, and its others.

        All begin alike, but for the random generators.
        """
        model = self.model
        seeds = replicas.seed_states(model)
        trained = [self._copies(v, False) for v in model.trainable_variables]
        return trained, [self._copies(v, id(v) in seeds) for v in model.non_trainable_variables]

    def _copies(self, variable, is_seed):
        import jax

        value = jax.device_get(variable.value)

        def part(index):
            own = value.copy()
            if is_seed:
                own[0] = (int(own[0]) + (index[0].start or 0) * replicas.GOLDEN_RATIO) % 2**32
            return own[None]

        shape = (self.count, *variable.shape)
        return keras.Variable(
            jax.make_array_from_callback(shape, self._split, part), dtype=variable.dtype,
            trainable=variable.trainable, autocast=False, layout=self._split, name=variable.name,
        )  # fmt: skip

    @functools.cached_property
    def means(self):
        """Arrays of all workers -> their means, on the host; of whole numbers, the first's."""
        import jax

        means = jax.jit(lambda arrays: [_mean(array) for array in arrays])
        # From the host, Keras puts them where it evaluates any model: on its one device.
        return lambda arrays: jax.device_get(means(arrays))

    @functools.cached_property
    def consensus_distance(self):
        """Arrays of all workers -> mean_i |x_i - mean x|^2, over all of them together."""
        import jax

        @jax.jit
        def distance(weights):
            wide = [ops.cast(x, arrays.compute_dtype(x.dtype)) for x in weights]
            return sum(ops.sum(ops.square(x - ops.mean(x, axis=0))) for x in wide) / self.count

        return distance

    def share(self, variables):
        """Has all devices hold these variables, whatever they are assigned."""
        for variable in variables:
            variable._layout = self._replicated
            variable.assign(variable.value)

    def shared(self, values):
        """The values, held by all devices."""
        import jax

        return jax.device_put(values, self._replicated)

    def waited(self, results):
        """The results; on CPUs, when they are there.

        There, two programs under way may take each other's threads, in which devices wait for one
        another, and wait for ever.
        """
        import jax

        on_cpu = self._mesh.devices.flat[0].platform == "cpu"
        return jax.block_until_ready(results) if on_cpu else results

    def on(self, devices):
        """The same on as many other devices; raises for another number of them."""
        if len(devices) != self.count:
            raise ValueError(
                f"there are {self.count} workers, and {len(devices)} devices to compile for: give "
                "as many."
            )
        return Workers(self.model, self._rule, self._matrices, tuple(devices))

    def jitted(self, step, optimizer):
        """A step of `fit`, (state, data) -> (logs, state), for these devices, its state donated."""
        import jax

        split, replicated = self._split, self._replicated
        slots = [jax.NamedSharding(self._mesh, v._layout.spec) for v in optimizer.variables]
        state = (split, split, slots, replicated)
        return jax.jit(
            step, donate_argnums=0, in_shardings=(state, split), out_shardings=(None, state)
        )

    def step(self, decays, rate, turn, state, data):
        """One step of every worker on its part of the batch: mean loss, predictions, new state.

        The state is the weights, the other variables and, a tuple for each weight, the slots, all
        of all workers; and the variables of the metrics.
        """
        import jax

        def worker(rate, turn, state, data):
            *own, metrics = state
            weights, others, slots = jax.tree.map(lambda x: x[0], own)
            (_, (loss, predictions, others, metrics)), gradients = replicas.gradient(
                self.model, AXIS, weights, others, [], metrics, data
            )
            update = functools.partial(_update, self.model, self._rule, decays)
            branches = [
                functools.partial(update, functools.partial(_mix, mixing))
                for mixing in self._mixings
            ]
            weights, slots = jax.lax.switch(
                turn % len(branches), branches, rate, gradients, weights, slots
            )
            own = jax.tree.map(lambda x: x[None], [weights, others, slots])
            return jax.lax.pmean(loss, AXIS), predictions, (*own, metrics)

        split, replicated = jax.P(AXIS), jax.P()
        parts = (split, split, split, replicated)
        # Unchecked: loops inside layers carry what is alike at first and differs later.
        return jax.shard_map(
            worker, mesh=self._mesh, in_specs=(replicated, replicated, parts, split),
            out_specs=(replicated, split, parts), check_vma=False,
        )(rate, turn, state, data)  # fmt: skip


def _mean(array):
    return ops.mean(array, axis=0) if keras.backend.is_float_dtype(array.dtype) else array[0]


def _update(model, rule, decays, mix, rate, gradients, weights, slots):
    """The rule for each weight of one worker."""
    new_weights, new_slots = [], []
    for variable, decay, g, w, own in zip(
        model.trainable_variables, decays, gradients, weights, slots, strict=True
    ):
        dtype = arrays.compute_dtype(w.dtype)
        g, wide, *wide_slots = (ops.cast(x, dtype) for x in (g, w, *own))
        lr = ops.cast(rate, dtype)
        wide, *wide_slots = rule(ops, g, wide, *wide_slots, lr=lr, decay=decay, mix=mix)
        if variable.constraint is not None:
            wide = variable.constraint(wide)
        new_weights.append(ops.cast(wide, w.dtype))
        new_slots.append(
            tuple(ops.cast(new, old.dtype) for new, old in zip(wide_slots, own, strict=True))
        )
    return new_weights, new_slots


def _mix(mixing, x):
    """sum_j w_ij x_j for this worker i."""
    import jax

    if mixing.is_mean:
        return jax.lax.pmean(x, AXIS)
    total = _own(mixing.own, x) * x
    for term in mixing.terms:
        total = total + _own(term.weights, x) * jax.lax.ppermute(x, AXIS, term.pairs)
    return total


def _own(weights, x):
    """This worker's of the weights: a number in the program where it is everyone's."""
    import jax

    if len(set(weights)) == 1:
        return weights[0]
    return ops.convert_to_tensor(weights, dtype=x.dtype)[jax.lax.axis_index(AXIS)]


class Consensus(keras.callbacks.Callback):
    """Adds the consensus distance to the logs of an epoch."""

    def on_epoch_end(self, epoch, logs=None):
        """Measures it once an epoch: the mean of all weights takes an all-reduce."""
        if logs is not None:
            logs["consensus_distance"] = self.model.consensus_distance()
