"""The base class of every optimizer for Keras 3: all that it asks of one, but the rule.

Seam into Keras 3 (3.15.1): `_distribution_strategy`.
"""

import contextlib
import functools

import keras
from keras import ops

from tf_lamb.api.optimizers import named
from tf_lamb.api.optimizers import settings as settings_
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.optimizers.observation import UNSEEN
from tf_lamb.api.schedules import factor
from tf_lamb.api.variables import is_overwritten, path_of
from tf_lamb.core import accumulation
from tf_lamb.core.rules.shared import within
from tf_lamb.core.step import TAKEN
from tf_lamb.keras import (
    arrays,
    host,
    overwritten,
    processes,
    saved,
    schedules,
    seams,
    sharding,
    update,
)


class LayerwiseOptimizer(Layerwise, keras.optimizers.Optimizer):
    """Keras's base class, put right, and what an update takes from it and gives back."""

    _xp = ops
    _host = host
    _schedules = schedules
    _counts = "int32"
    _shares = None  # how `shard_update` lays out what accompanies variables
    _replicas = 1  # whose gradients are not summed yet, on JAX

    def __init__(self, learning_rate, **arguments):
        seams.install()
        settings = self._settings_of(arguments)
        schedule = keras.optimizers.schedules.LearningRateSchedule
        learning_rate = settings_.learning_rate(learning_rate, schedule)
        super().__init__(
            learning_rate,
            gradient_accumulation_steps=accumulation.largest(settings.gradient_accumulation_steps),
            loss_scale_factor=settings.loss_scale_factor,
            **settings.host(),
        )
        self._keep_settings(settings, learning_rate)

    @host.in_strategy
    def build(self, variables):
        """Makes the slots and the plan; warns of a pattern that matches no variable."""
        if not variables:
            return
        if self.built:
            self._check_built_for(variables, self._trainable_variables_indices)
            return
        processes.agree_on(self, variables)
        plan = self._make_plan(variables)
        if self._settings.shard_update and sharding.is_distributed():
            self._shares = sharding.Shares([v for v in variables if not is_overwritten(v)])
        super().build(variables)
        self._make_storage(variables, plan, self._moving_averages if self.use_ema else ())
        self._make_shown()
        self._update = self._make_update()
        saved.set_weights_of_files(self)

    def _make_accumulators(self, variables):
        return self._accumulated_gradients  # which Keras has made

    def add_variable(self, shape, initializer="zeros", dtype=None, **kwargs):
        """Adds one as in Keras, but a half-precision variable's slots are float32."""
        if dtype is not None and keras.backend.is_float_dtype(dtype):
            dtype = arrays.compute_dtype(dtype)
        return super().add_variable(shape, initializer, dtype, **kwargs)

    def add_variable_from_reference(self, reference_variable, name=None, initializer="zeros"):
        """As in Keras, but on TensorFlow each replica has gradients of its own to add up."""
        scope: contextlib.AbstractContextManager = contextlib.nullcontext()
        adds_up = name == "gradient_accumulator" and not is_overwritten(reference_variable)
        if adds_up and keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow import replicas

            scope = replicas.per_replica_variables()
        dtype = arrays.compute_dtype(reference_variable.dtype)
        with scope:
            return self.add_variable_like(reference_variable, name, dtype)

    def add_variable_like(self, variable, name, dtype, shape=None, initial="zeros"):
        """Adds a variable of that dtype where another lives; in its shape, laid out like it."""
        layout = getattr(variable, "_layout", None)
        if is_overwritten(variable):
            pass  # it has nothing but the largest of the micro-batches, whole on each device
        elif self._replicas > 1 and name == "gradient_accumulator":  # seam: as Keras names it
            shape = (self._replicas, *variable.shape)
            layout = sharding.per_replica_layout(variable)
        elif self._shares:
            layout = self._shares.layout(variable, shape)
        elif shape is not None:
            layout = sharding.replicated(len(shape))
        place = contextlib.nullcontext()
        if keras.backend.backend() == "tensorflow":
            extended = self._distribution_strategy.extended
            place = extended.colocate_vars_with(arrays.native(variable))
        with place:
            name = f"{path_of(variable).replace('/', '_')}_{name}"
            shape = variable.shape if shape is None else shape
            return super().add_variable(shape, initial, dtype, layout=layout, name=name)

    def _make_update(self):
        arguments = self._for_update() | {"assign": self.assign}
        if keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow.update import Update

            jit_compile, gains = self._settings.jit_compile, self.rule.gains_by_xla
            return Update(jit_compile=jit_compile, gains=gains, **arguments)
        is_shared = self._shares is not None
        # A stack of matrices that are split over devices in several ways would be gathered.
        may_stack = not sharding.is_split(self._trainable_variables)
        deals = may_stack and sharding.devices() > 1 and (is_shared or self.rule.gains_by_dealing)
        arguments["stacks"] = may_stack and (deals or (arguments["stacks"] and not is_shared))
        return update.Update(is_shared=is_shared, deals=deals, **arguments)

    def update_step(self, gradient, variable, learning_rate):
        """One step of the rule for one variable."""
        (layer,), state = self._work([variable])
        scalars = self._scalars()._replace(lr=factor(ops, learning_rate))
        self._update.step_layer(layer, [gradient], state, scalars)

    def apply(self, grads, trainable_variables=None):
        """See base class; a step that is taken overwrites what float8 layers have marked for it."""
        given = trainable_variables
        variables = self._trainable_variables if given is None else list(given)
        if len(grads) != len(variables) or not any(map(is_overwritten, variables)):
            return super().apply(grads, given)
        if not self.built:
            with keras.name_scope(self.name):
                self.build(variables)
        self._check_variables_are_known(variables)
        overwriting, others = overwritten.split(grads, variables)
        due, step = self._is_update(), self._iterations + 0
        if any(gradient is not None for gradient in others[0]):
            super().apply(*others)
        else:
            self._backend_apply_gradients([], [])
            self._iterations.assign_add(1)
        overwritten.overwrite(self, overwriting, due, self._iterations > step)

    def _overwrite_variables_directly_with_gradients(self, grads, vars):
        """Leaves out what is frozen, before its constraint; `apply` overwrites."""
        pairs = self.without_frozen(list(zip(grads, vars, strict=True)))
        return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]

    def _backend_apply_gradients(self, grads, trainable_variables):
        pairs = zip(grads, trainable_variables, strict=True)
        gradients = [ops.cast(arrays.dense(g, v), arrays.compute_dtype(v.dtype)) for g, v in pairs]
        unfrozen = host.unfrozen(self._trainable_variables)
        missing = self.without_gradient(trainable_variables, unfrozen)
        sums = (self._storage.accumulators[self._index_of(v)] for v in missing)
        gradients += [ops.zeros(each.shape, each.dtype) for each in sums]
        if self._settings.shard_update and not self._shares:
            sharding.data_axis(f"shard_update=True of {self.name}")  # says why it cannot be
        trained = [*trainable_variables, *missing]
        if not trained:
            self._count(trained, TAKEN)
            return
        plan, state = self._work(trained, missing)
        if keras.backend.backend() == "tensorflow":
            gradients = self._aggregated(gradients, state.accumulators)
        run = functools.partial(
            self._update, plan, state, self._scalars, functools.partial(self._count, trained)
        )
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            strategy, meet = tf.distribute.get_strategy(), tf.__internal__.distribute.interim
            meet.maybe_merge_call(run, strategy, tuple(gradients))
        else:
            with arrays.uncast():  # in `torch.autocast` its products would be in half precision
                run(gradients)
        for variable in (v for v in missing if v.constraint is not None):
            variable.assign(variable.constraint(variable))  # `apply` sees to the others

    def _aggregated(self, gradients, accumulators):
        """The sums over replicas on TensorFlow; none where the accumulators have taken them."""
        if self.gradient_accumulation_steps:
            if not self.gradients_are_gathered:
                self.gather(gradients, accumulators)
            return []
        if self.gradients_are_summed:
            return gradients
        pairs = self._all_reduce_sum_gradients([(g, None) for g in gradients])
        return [gradient for gradient, _ in pairs]

    def _add_iterations(self, stepped):
        iterations = arrays.native(self._iterations)
        iterations.assign_sub(1 - ops.cast(stepped, iterations.dtype))  # Keras adds 1, always

    def _averaged(self, variables):
        """The positions whose averages move with these: of all that is trainable, as in Keras."""
        frozen = self._storage.plan.frozen
        every = enumerate(self._trainable_variables)
        others = {i for i, v in every if v.trainable and i not in frozen}
        # torch's compiler takes an iterator that `union` is given for empty (torch 2.13).
        return others | {self._get_variable_index(v) for v in variables}

    @property
    def _widest(self):
        """The dtype that holds the averages of all variables."""
        dtypes = {arrays.compute_dtype(v.dtype) for v in self._trainable_variables}
        return "float64" if "float64" in dtypes else "float32"

    def finalize_variable_values(self, var_list):
        """See base class; a step of `fit` on JAX that has failed leaves nothing to finish."""
        if not host.is_deleted(self._iterations):
            super().finalize_variable_values(var_list)

    def _rate_in_config(self):
        return keras.optimizers.Optimizer.get_config(self)["learning_rate"]

    def _vector_like(self, variable, name):
        if keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow.summaries import vector_like

            with saved.outside_of_any_graph():
                return vector_like(arrays.native(variable), self._distribution_strategy, name)
        return keras.Variable(UNSEEN, dtype="float32", trainable=False, name=name)

    def _index_of(self, variable):
        return self._get_variable_index(variable)

    save_own_variables = saved.save_own_variables
    load_own_variables = saved.load_own_variables
    set_weights = saved.set_weights
    _trackable_children = saved.trackable_children
    _lookup_dependency = saved.lookup_dependency

    # -- what Keras does otherwise -----------------------------------------------------------------

    _hides_shown = False

    @property
    def variables(self):
        """As in Keras; followed by what is on show."""
        own = super().variables
        if self._hides_shown or not self._storage or keras.backend.backend() != "jax":
            return own  # a step on JAX alone can leave only what it was handed
        return [*own, *self._storage.vectors()]

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
        host.check_model(self)
        if not (self.built or trainable_variables):  # all is frozen; a build of nothing is none
            return trainable_variables, optimizer_variables
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)

    @property
    def _model_variables_moving_average(self):
        """The averages that Keras's `SwapEMAWeights` swaps in: none before the first update."""
        averages = self._moving_averages  # first: TensorFlow asks for it in a graph, in the build
        if not named.has_averages(self):
            return []
        for average, variable in zip(averages, self._trainable_variables, strict=True):
            if is_overwritten(variable):
                raise ValueError(
                    f"{self.name}: SwapEMAWeights swaps every variable, and {variable.path} of a "
                    "float8 layer has no average, in Keras's optimizers either. Leave the "
                    "callback out: at the end of fit the averages become the weights."
                )
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

    def _apply_weight_decay(self, variables):
        """No-op: the rule applies weight decay."""

    def _get_current_learning_rate(self):
        # Schedules read optimizer steps; Keras gives them micro-steps.
        if isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            return self._learning_rate(self.iterations)
        return super()._get_current_learning_rate()

    def gather(self, gradients, accumulators):
        """Has each replica add up gradients of its own; at an update accumulators get the sums."""
        from tf_lamb.tensorflow import replicas

        strategy, accumulators = self._distribution_strategy, list(map(arrays.native, accumulators))
        replicas.gather(strategy, accumulators, gradients, self._is_update)
