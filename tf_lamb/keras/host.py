"""The seams into Keras 3, and what differs between its versions and backends.

Seams into Keras 3 (3.12.0 to 3.15.1); the rest of the room uses what is here, and these:
    `_backend_apply_gradients`: clips after the aggregation over replicas, and averages weights
        once an optimizer step; Keras clips before, and averages at every micro-step.
    `variables`, with those of a wrapper: what a step on JAX is handed, and what is saved.
    `_model_variables_moving_average`: Keras's `build` makes it of zeros, and `SwapEMAWeights`
        reads it.
    `_overwrite_variables_directly_with_gradients`: it counts micro-steps by
        `iterations`.
    `Variable._value`: None while `fit` on JAX has the array, which a step donates.
    `_all_reduce_sum_gradients`, `_get_variable_index`, `_var_key`, `_iterations`,
    `_distribution_strategy`, `_accumulated_gradients`, `_variables`, `_trainable_variables`: used
        as Keras's own optimizers use them.
"""

import contextlib

import keras
from keras import ops

from tf_lamb.api.optimizers import named
from tf_lamb.api.variables import is_overwritten, path_of
from tf_lamb.core.rules.shared import within
from tf_lamb.keras import saved, sharding


def without_gradient(optimizer, variables):
    """The variables that have no gradient in a micro-batch, and what they have added up.

    The update takes those sums, too. A variable that is frozen waits.

    Args:
        optimizer: one of this package, built.
        variables: those that have a gradient.
    """
    known = {optimizer._var_key(v) for v in variables}
    pairs = zip(optimizer._trainable_variables, optimizer._accumulators, strict=False)
    missing = [
        (variable, total)
        for variable, total in pairs
        if variable.trainable
        and not optimizer.is_frozen(variable)
        and optimizer._var_key(variable) not in known
        and not is_overwritten(variable)
    ]
    return [variable for variable, _ in missing], [total for _, total in missing]


def overwrite_marked(optimizer, gradients, variables):
    """Overwrites what a float8 layer has marked for it: with the largest of an update, as in Keras.

    Returns:
        The other gradients, and their variables.
    """
    others = []
    for gradient, variable in zip(gradients, variables, strict=True):
        if not is_overwritten(variable):
            others.append((gradient, variable))
            continue
        if optimizer.gradient_accumulation_steps:
            total = optimizer._accumulated_gradients[optimizer._get_variable_index(variable)]
            largest, is_update = ops.maximum(gradient, total), optimizer._is_update()
            total.assign(ops.where(is_update, ops.zeros_like(largest), largest))
            gradient = ops.where(is_update, largest, variable.value)
        variable.assign(gradient)
    return [gradient for gradient, _ in others], [variable for _, variable in others]


def split_accumulators(optimizer):
    """Gives the sums of an optimizer that is built a part for each of its replicas.

    The first part is the sum so far.
    """
    for i, variable in enumerate(optimizer._trainable_variables if optimizer._accumulators else ()):
        old = optimizer._accumulated_gradients[i]
        new = optimizer.add_variable_from_reference(variable, "gradient_accumulator")
        rest = ops.zeros((new.shape[0] - 1, *old.shape), old.dtype)
        new.assign(ops.concatenate([ops.convert_to_tensor(old)[None], rest]))
        optimizer._accumulated_gradients[i] = new
        every = optimizer._variables
        every[next(at for at, v in enumerate(every) if v is old)] = every.pop()


def take(variable, value):
    """Has a variable take the value of another, in an array of its own.

    On JAX an assignment hands the array itself over, and so does a cast to the dtype that it has.
    The next step would donate it twice.
    """
    variable.assign(ops.copy(ops.cast(value, variable.dtype)))


def is_deleted(variable):
    """Whether a failed JAX step has donated this variable's buffer."""
    value = variable._value
    return value is None or (hasattr(value, "is_deleted") and value.is_deleted())


def check_model(optimizer):
    """Raises where `fit` trains another model than the optimizer was built for.

    Keras hands over values, in the order of that model's variables. `fit` has taken the arrays of
    its own model and of the optimizer by then, but those of another model are still there.
    """
    if not is_deleted(optimizer._iterations):
        return
    for variable in optimizer._trainable_variables:
        if not is_deleted(variable):
            raise ValueError(
                f"{optimizer.name} was built for {path_of(variable)!r}, which is no trainable "
                "variable of the model that fit trains: its slots and its plan belong to the "
                "variables that it was built for. Make a new optimizer for a new model, for "
                f"instance {type(optimizer).__name__}.from_config(optimizer.get_config()); and the "
                "model, whose weights Keras drops with any error in a fit on JAX."
            )


def has_accelerator():
    """Whether the backend, JAX or torch, computes on something else than a CPU."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend() != "cpu"
    return ops.convert_to_tensor(0.0).device.type != "cpu"


def compute_dtype(dtype):
    """Rules compute, and slots are kept, in float32; in float64 for float64 variables."""
    return "float64" if keras.backend.standardize_dtype(dtype) == "float64" else "float32"


def native(variable):
    """The variable that an update works on: TensorFlow's own for a Keras variable on TensorFlow."""
    if variable is None or keras.backend.backend() != "tensorflow":
        return variable
    return variable.value if isinstance(variable, keras.Variable) else variable


def dense(gradient, variable):
    """The gradient as a tensor in the shape of its variable, an embedding's, too."""
    if keras.backend.backend() == "tensorflow":
        from tf_lamb.tensorflow.update import dense

        return dense(gradient, variable)  # `ops` leaves `IndexedSlices` as they are
    return ops.convert_to_tensor(gradient, sparse=False)


def cond(condition, yes, no):
    """Works as `keras.ops.cond`; where the condition is known, only its branch runs."""
    if (due := concrete_bool(condition)) is None:
        return ops.cond(condition, yes, no)
    return yes() if due else no()


def concrete_bool(condition):
    """True or False where the condition has a value by now; None in a program that is traced.

    A branch of JAX is compiled anew for each pair of functions: an eager loop would do so, and keep
    what it compiled, in every step. TensorFlow sees to that by itself.
    """
    if keras.backend.backend() == "tensorflow":
        return None
    if keras.backend.backend() == "jax":
        import jax

        if isinstance(condition, jax.core.Tracer):
            return None
    return bool(condition)


def bitcast(array, dtype):
    """The same bits in another dtype of the same size, on JAX and torch.

    Seam: Keras 3.15.1. `ops.view` would do it, which older versions have not.
    """
    array = ops.convert_to_tensor(array)
    if keras.backend.backend() == "jax":
        import jax

        return jax.lax.bitcast_convert_type(array, dtype)
    import torch

    return array.view(getattr(torch, dtype))


def refuse(skipped, finite, refusal, paths):
    """Raises where a step runs, if it was skipped, with the paths of what is not finite."""

    def check(skipped, finite):
        if skipped:
            nonfinite = (path for path, each in zip(paths, finite, strict=True) if not each)
            raise FloatingPointError(f"{refusal}{', '.join(nonfinite)}.")

    if concrete_bool(skipped) is None:
        import jax

        jax.debug.callback(check, skipped, finite)
    else:
        check(*(ops.convert_to_numpy(each) for each in (skipped, finite)))


class HostOptimizer(saved.Saved, keras.optimizers.Optimizer):
    """Keras's base class, with its versions evened out and its timing put right."""

    _hides_shown = False

    def _on_show(self):
        """Variables that only show what a step did; a step on JAX can leave what it was handed."""
        return []

    @property
    def variables(self):
        """As in Keras; followed by what is on show."""
        own = super().variables
        return own if self._hides_shown else [*own, *self._on_show()]

    @contextlib.contextmanager
    def without_shown(self):
        """Inside it, what is on show is not among the variables: for whatever saves them."""
        self._hides_shown = True
        try:
            yield
        finally:
            self._hides_shown = False

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        """As in Keras; a second model, of which only values come, is refused."""
        check_model(self)
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)

    @property
    def _model_variables_moving_average(self):
        """The averages that Keras's `SwapEMAWeights` swaps in: none before the first update."""
        averages = self._moving_averages  # first: TensorFlow asks for it in a graph, in the build
        if not named.has_averages(self):
            return []
        for average, variable in zip(averages, self._trainable_variables, strict=True):
            if average is not None and average.dtype != variable.dtype:
                raise ValueError(
                    f"{self.name}: SwapEMAWeights would round the averages, which are "
                    f"{average.dtype}, to {variable.dtype}, as {variable.path} is. Take a dtype "
                    f"policy with float32 weights, mixed_{variable.dtype} say, or leave the "
                    "callback out: at the end of fit the averages become the weights."
                )
        return averages

    @_model_variables_moving_average.setter
    def _model_variables_moving_average(self, averages):
        self.__dict__["_moving_averages"] = averages  # TensorFlow tracks them under Keras's name

    @property
    def iterations(self):
        """Optimizer steps, not micro-steps as in Keras."""
        return self._iterations

    @iterations.setter
    def iterations(self, variable):
        self._iterations = variable

    @staticmethod
    def _which_are_finite(variables):
        return ops.convert_to_numpy(ops.stack([ops.all(ops.isfinite(v)) for v in variables]))

    @staticmethod
    def _array_of(variable):
        if keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow.update import array_of

            return array_of(native(variable))
        value = variable.value
        if hasattr(value, "addressable_data"):  # a part, where other processes have the rest
            value = value.addressable_data(0)
        return ops.convert_to_numpy(value)

    def _fetch(self, vectors):
        return ops.convert_to_numpy(ops.stack(list(map(ops.convert_to_tensor, vectors)))).tolist()

    def _clip_gradients(self, grads):
        """No-op: the update clips, once replicas are summed."""
        return grads

    def clip_aggregated(self, gradients):
        """Clips the aggregated gradients as Keras does, in their own precision."""
        most = self.global_clipnorm
        if not most:
            return super()._clip_gradients(gradients)
        # seam: Keras 3.15.1. The `minimum` in its own function is float32 on torch.
        norm = ops.sqrt(ops.sum(ops.stack([ops.sum(ops.square(g)) for g in gradients])))
        scale = most * within(ops, 1.0 / norm, (0.0, 1.0 / most)) + (norm - norm)
        return [gradient * scale for gradient in gradients]

    def _overwrite_variables_directly_with_gradients(self, grads, vars):
        """As in Keras, which takes `iterations` for micro-steps; ours are updates."""
        return overwrite_marked(self, grads, vars)

    def _apply_weight_decay(self, variables):
        """No-op: the rule applies weight decay."""

    def _get_current_learning_rate(self):
        # Schedules read optimizer steps; Keras gives them micro-steps.
        if isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            return self._learning_rate(self.iterations)
        return super()._get_current_learning_rate()

    def add_variable(self, shape, initializer="zeros", dtype=None, **kwargs):
        """Adds one as in Keras, but a half-precision variable's slots are float32."""
        if dtype is not None and keras.backend.is_float_dtype(dtype):
            dtype = compute_dtype(dtype)
        return super().add_variable(shape, initializer, dtype, **kwargs)

    def add_variable_from_reference(self, reference_variable, name=None, initializer="zeros"):
        """As in Keras, but on TensorFlow each replica has gradients of its own to add up."""
        scope: contextlib.AbstractContextManager = contextlib.nullcontext()
        if name == "gradient_accumulator" and keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow import replicas

            scope = replicas.per_replica_variables()
        dtype = compute_dtype(reference_variable.dtype)
        with scope:
            return self.add_variable_like(reference_variable, name, dtype)

    def gather(self, gradients, accumulators):
        """Has each replica add up gradients of its own; at an update accumulators get the sums."""
        from tf_lamb.tensorflow import replicas

        strategy, accumulators = self._distribution_strategy, list(map(native, accumulators))
        replicas.gather(strategy, accumulators, gradients, self._is_update)

    def add_variable_like(self, variable, name, dtype, shape=None, initial="zeros", layout=None):
        """Adds a variable of that dtype where the given one lives.

        Without a layout it is laid out like the given one; of another shape, on each device whole.
        """
        if shape is None:
            shape, own = variable.shape, getattr(variable, "_layout", None)
        else:
            own = sharding.replicated(len(shape))
        place = contextlib.nullcontext()
        if keras.backend.backend() == "tensorflow":
            place = self._distribution_strategy.extended.colocate_vars_with(native(variable))
        with place:
            name = f"{path_of(variable).replace('/', '_')}_{name}"
            layout = own if layout is None else layout
            return super().add_variable(shape, initial, dtype, layout=layout, name=name)
