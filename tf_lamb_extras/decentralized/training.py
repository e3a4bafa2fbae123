"""Trains a Keras model on JAX with many workers, each with its own weights, by Keras's `fit`.

This file uses private API of Keras 3.15.1:
    `Trainer._symbolic_build`, `_make_function`, `_update_metrics_variables`: methods of the JAX
        trainer. They are called as its own `fit`, `make_train_function` and `train_step` do.
    `EpochIterator.data_adapter`: it has the sizes of the batches before the first batch is read.
    `SGD.momentums`: the velocities of the weights.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tf_lamb.api.optimizers.settings import Patterns
from tf_lamb.core import plan
from tf_lamb.core.checks import choice, number, patterns
from tf_lamb.core.messages import warn
from tf_lamb_extras.decentralized import checks, rules
from tf_lamb_extras.decentralized.workers import Consensus, Workers

# The update rule of each method of `Decentralized`.
_RULES: dict[str, Callable] = {
    "decentlam": rules.decentlam,
    "dmsgd": rules.dmsgd,
    "dmsgd_awc": functools.partial(rules.dmsgd, order="adapt_with_combine"),
    "dsgd": rules.dsgd,
}


class Decentralized(keras.Model):
    """Trains a compiled model on many devices, each of which averages with its neighbours only.

        x_i <- sum_j w_ij (x_j - lr g_j)        "dsgd"; the other methods add momentum

    Each device i is a worker with its own weights x_i and its own part of every batch: the first of
    n workers takes the first n-th. g_j is the gradient of worker j on its part, and lr the learning
    rate. w_ij is the weight with which worker i averages the weights of worker j. It is 0 unless j
    is i or a neighbour of i. Instead of an all-reduce of the gradients, a step has one exchange
    with each neighbour. `fit`, callbacks, metrics and the progress bar are Keras's own. The logs of
    each epoch contain `consensus_distance`: the mean over workers of |x_i - mean x|^2. Evaluation,
    prediction and saving use the mean of all workers' weights. Each worker has its own statistics
    of batch normalization, which are averaged in the same way.

    `save_weights`, `load_weights` and the callback `tf_lamb.keras.BackupAndRestore` save and load
    every worker's weights and velocity. A resumed training equals an uninterrupted one.

    Args:
        model: A `keras.Model` on the JAX backend, compiled with a `keras.optimizers.SGD`. That SGD
            provides the learning rate (or schedule) and the momentum. At the first `fit` all
            workers start with the model's weights. After `fit` and after `average()` the model has
            the mean of the workers' weights.
        method: "decentlam", which converges to the limit of "dsgd" at any momentum; "dmsgd",
            momentum SGD that averages the updated weights; "dmsgd_awc", momentum SGD that averages
            the weights before it adds the update; or "dsgd", without momentum. Defaults to
            "decentlam".
        topology: The neighbours of each worker: "ring", "one_sided_ring", "exponential",
            "symmetric_exponential", "one_peer_exponential", "grid", "full", or a doubly stochastic
            matrix with a row for each device. "decentlam" needs a symmetric matrix, unless the
            momentum is small. Defaults to "ring".
        weight_decay: Factor of the weight that is added to the gradient before averaging.
            Defaults to 0.
        exclude_from_weight_decay: Regexes, searched in the paths of variables, of the variables
            without weight decay, such as `["bias", "gamma", "beta"]`. Defaults to None.
        devices: One device per worker, at least two to be useful. Defaults to all of
            `jax.devices()`.
        name: Name of the model. Defaults to "decentralized_" and the name of `model`.

    Raises:
        ValueError: For a backend other than JAX, a model that is not compiled with a plain SGD, a
            method that is incompatible with the momentum, rate or topology, an unknown topology, or
            a matrix for another number of devices. From `fit`, for a batch that the number of
            workers does not divide. `fit` raises before the first step if the batch sizes are known
            then, else at that batch.

    Example:

    >>> import keras, numpy as np
    >>> from tf_lamb_extras.decentralized import Decentralized
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    >>> model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    >>> workers = Decentralized(model, topology="symmetric_exponential")
    >>> x, y = np.random.normal(size=(128, 4)), np.random.normal(size=(128, 2))
    >>> history = workers.fit(x, y, batch_size=64, epochs=2, validation_data=(x, y), verbose=0)
    >>> sorted(history.history)
    ['consensus_distance', 'loss', 'val_loss']

    References:
        - Yuan et al., DecentLaM: Decentralized Momentum SGD for Large-batch Deep Training,
          https://arxiv.org/abs/2104.11981
    """

    def __init__(
        self, model: Any, method: str = "decentlam", topology: str = "ring", *,
        weight_decay: float = 0.0, exclude_from_weight_decay: Patterns = None, devices: Any = None,
        name: str | None = None,
    ):  # fmt: skip
        checks.check_backend()
        choice("method", method)
        decay = number("weight_decay", weight_decay)
        undecayed = patterns("exclude_from_weight_decay", exclude_from_weight_decay)
        devices = checks.devices_of(devices)
        matrices = rules.matrices(topology, len(devices))
        optimizer = checks.own_optimizer(model, method)
        checks.check_convergence(method, matrices, optimizer.momentum)
        rule = _RULES[method]
        if method != "dsgd":
            rule = functools.partial(rule, momentum=optimizer.momentum)
        super().__init__(name=name or f"decentralized_{model.name}")
        self.train_function: Any  # an attribute of Keras, which is None before the first `fit`
        self.built: bool
        self._plan_for = functools.partial(
            plan.plan_for, weight_decay=decay, exclude_from_weight_decay=undecayed,
            exclude_from_layer_adaptation=[""],
        )  # fmt: skip
        # If the model were an attribute of this model, Keras would count its weights as weights of
        # this model. In an attribute of `Workers` they do not count.
        self._workers = Workers(model, rule, matrices, devices)
        steps = model.steps_per_execution
        self.compile(optimizer, steps_per_execution=steps, auto_scale_loss=False)

    def compile(self, optimizer=None, loss=None, **options):
        """Compiles as `keras.Model.compile` does, but keeps the optimizer and the loss.

        The optimizer is a copy of the wrapped model's. The loss is that of the wrapped model.

        Args:
            optimizer: None, the default, or this model's present optimizer.
            loss: Must be None, the default.
            options: Further arguments of `keras.Model.compile`.

        Raises:
            ValueError: If the optimizer is another one, or a loss is given.
        """
        super().compile(checks.compiled_optimizer(self, optimizer, loss), **options)

    @property
    def metrics(self):
        """The metrics of the wrapped model."""
        return self._workers.model.metrics

    def average(self) -> Any:
        """Sets the wrapped model's variables to the mean over the workers; returns that model.

        A variable of integers is set to the value of the first worker.
        """
        model = self._workers.model
        if self.built:
            self.jax_state_sync()
            means = self._workers.means([v.value for v in self._trained + self._others])
            variables = model.trainable_variables + model.non_trainable_variables
            for variable, mean in zip(variables, means, strict=True):
                variable.assign(mean)
        return model

    def consensus_distance(self) -> float:
        """Returns the mean over workers of |x_i - mean x|^2, where x_i is all weights of worker i.

        Only trainable weights count.
        """
        self.jax_state_sync()
        return float(self._workers.consensus_distance([v.value for v in self._trained]))

    def describe(self, print_fn: Callable[[str], Any] = print) -> None:
        """Prints a table with the weight decay of each variable.

        Args:
            print_fn: A function that prints text. Defaults to `print`.

        Raises:
            ValueError: For a model that has no variables yet.
        """
        if not self._workers.model.built:
            raise ValueError(
                f"{self._workers.model.name} has no variables yet: build it or train it first."
            )
        print_fn(self._made_plan().table())

    def _made_plan(self):
        """Returns the `Plan` of `tf_lamb`, which has the weight decay of each trained variable."""
        trained = self._workers.model.trainable_variables
        paths, shapes = [v.path for v in trained], [v.shape for v in trained]
        return self._plan_for(paths, shapes, excluded_by_identity=[False] * len(paths))

    def fit(self, *arguments, callbacks=None, **options):
        """Trains as `keras.Model.fit`; each batch is divided among the workers.

        Args:
            arguments: Positional arguments of `keras.Model.fit`.
            callbacks: Callbacks. Defaults to None.
            options: Keyword arguments of `keras.Model.fit`.

        Returns:
            The history, with `consensus_distance` for each epoch.

        Raises:
            ValueError: If the number of workers does not divide a batch.
        """
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = [Consensus(), *keras.tree.flatten(callbacks or [])]
        history = super().fit(*arguments, callbacks=callbacks, **options)
        self.average()
        return history

    def evaluate(self, *arguments, _use_cached_eval_dataset=False, **options):
        """Sets the wrapped model to the mean of the workers' weights, and evaluates that model.

        Args:
            arguments: Positional arguments of `keras.Model.evaluate`.
            _use_cached_eval_dataset: Ignored; Keras's `fit` passes it.
            options: Keyword arguments of `keras.Model.evaluate`.
        """
        return self.average().evaluate(*arguments, **options)

    def predict(self, *arguments, **options):
        """Sets the wrapped model to the mean of the workers' weights, and predicts with that model.

        Args:
            arguments: Positional arguments of `keras.Model.predict`.
            options: Keyword arguments of `keras.Model.predict`.
        """
        return self.average().predict(*arguments, **options)

    def save(self, *arguments, **options):
        """Sets the wrapped model to the mean of the workers' weights, and saves that model.

        `save_weights` saves every worker's own weights.

        Args:
            arguments: Positional arguments of `keras.Model.save`.
            options: Keyword arguments of `keras.Model.save`.
        """
        return self.average().save(*arguments, **options)

    def lower(
        self, x: Any, y: Any = None, sample_weight: Any = None, *, devices: Any = None
    ) -> Any:
        """Lowers the training step for a batch, to compile it later; no step is run.

        It builds the wrapped model and the variables of all workers, if they are not built yet.

        Args:
            x: The inputs of a whole batch: arrays, or other objects with a shape and a dtype.
            y: The targets of the batch, in the same form. Defaults to None.
            sample_weight: The weights of the examples, in the same form. Defaults to None.
            devices: The devices to compile for, one per worker. Defaults to None: the devices on
                which this model trains.

        Returns:
            A `jax.stages.Lowered`.

        Raises:
            ValueError: If there are more or fewer devices than workers.
        """
        import jax

        def struct(spec):
            return None if spec is None else jax.ShapeDtypeStruct(spec.shape, spec.dtype)

        data = keras.tree.map_structure(struct, (x, y, sample_weight))
        self._symbolic_build(data_batch=data)
        parts = (self._trained, self._others, self.optimizer.variables, self.metrics_variables)
        state = tuple([struct(v) for v in part] for part in parts)
        workers = self._workers if devices is None else self._workers.on(devices)
        return self._jitted(workers).lower(state, data)

    def make_train_function(self, force=False):
        """Sets `train_function` to the jitted training step, split over the devices.

        The step checks that each batch divides among the workers, and raises ValueError if not.

        Args:
            force: Whether to make it again if it exists. Defaults to False.
        """
        if self.train_function is None or force:
            step = self._jitted(self._workers)

            def checked_step(state, data):
                for array in keras.tree.flatten(data):
                    if array is not None:
                        checks.check_batch(array.shape[0], self._workers.count)
                # After an evaluation or a reset, the metrics are on one device. `shared` puts them
                # on all devices again.
                *worker_state, metrics = state
                return self._workers.waited(
                    step((*worker_state, self._workers.shared(metrics)), data)
                )

            self.train_function = self._make_function(checked_step)

    def _jitted(self, workers):
        """Returns the training step of a `Workers` object, compiled by `jax.jit`."""
        return workers.jitted(functools.partial(self._train_step, workers), self.optimizer)

    def _train_step(self, workers, state, data):
        """Takes one training step of all workers, as a function that JAX can trace.

        Args:
            workers: The `Workers`.
            state: A tuple of the values of weights, non-trainable variables, optimizer variables
                and metrics.
            data: The batch.

        Returns:
            The pair (logs, new state).
        """
        weights, non_trainable, optimizer_variables, metrics = state
        optimizer = self.optimizer
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        mapping = zip(optimizer.variables, optimizer_variables, strict=True)
        with keras.StatelessScope(list(mapping)) as scope:
            rate = ops.convert_to_tensor(optimizer.learning_rate)
            turn = ops.convert_to_tensor(optimizer.iterations)
            slots: list = [(v.value,) for v in optimizer.momentums] or [()] * len(weights)
            decays = [treatment.decay for treatment in self._plan.treatments]
            loss, predictions, (weights, non_trainable, slots, metrics) = workers.step(
                decays, rate, turn, (weights, non_trainable, slots, metrics), (x, y, sample_weight)
            )
            for variable, (value,) in zip(optimizer.momentums, slots, strict=False):
                variable.assign(value)
            optimizer.iterations.assign_add(1)
        optimizer_variables = [scope.get_current_value(v) for v in optimizer.variables]
        logs, metrics = workers.model._update_metrics_variables(
            metrics, loss, x, y, predictions, sample_weight
        )
        return logs, (weights, non_trainable, optimizer_variables, metrics)

    def _symbolic_build(self, iterator=None, data_batch=None):
        """Checks the batch sizes, and builds the wrapped model and the variables of all workers.

        Args:
            iterator: Keras's iterator over the epoch, if `fit` calls this method. Defaults to None.
            data_batch: The shapes of a batch, if there is no iterator. Defaults to None.
        """
        adapter = getattr(iterator, "data_adapter", None)
        if adapter is not None and adapter.batch_size:  # the adapter of a generator has no size
            last_size = adapter.partial_batch_size if iterator.steps_per_epoch is None else None
            for size in (adapter.batch_size, last_size or 0):
                checks.check_batch(size, self._workers.count)
        model = self._workers.model
        model._symbolic_build(iterator=iterator, data_batch=data_batch)
        if not self.built:
            self._plan = self._made_plan()
            if message := self._plan.unmatched_warning():
                warn(message)
            self._trained, self._others = self._workers.copies()
            self.optimizer.build(self._trained)  # gives the velocities the weights' sharding
            self._workers.share(v for v in self.optimizer.variables if v._layout is None)
            self.built = True
