"""What every optimizer of door 1 shares: all that Keras 3 asks of one, but the rule itself."""

import keras
from keras import ops

from tf_lamb.core import settings as settings_
from tf_lamb.core.layerwise import Layerwise, path_of
from tf_lamb.core.nonfinite import Guarded
from tf_lamb.core.reading import step_of
from tf_lamb.core.recipes import overrun
from tf_lamb.keras import host, observing, schedules, update


class LayerwiseOptimizer(
    Layerwise, Guarded, update.Updating, observing.Observing, host.HostOptimizer
):
    """Owns variables, casting, clipping, accumulation, averaging, distribution and config."""

    _schedules = schedules

    def __init__(self, learning_rate, **arguments):
        settings = self.settings_class(**arguments)
        steps = settings.gradient_accumulation_steps
        schedule = keras.optimizers.schedules.LearningRateSchedule
        learning_rate = settings_.learning_rate(learning_rate, schedule)
        super().__init__(
            learning_rate,
            gradient_accumulation_steps=None if steps == 1 else steps,
            loss_scale_factor=settings.loss_scale_factor,
            **settings.host(),
        )
        self._take(settings, learning_rate)

    def build(self, variables):
        """Makes the slots and the plan; warns of a pattern that matches no variable."""
        if not variables:
            return
        if self.built:
            self._refuse_strangers(variables, self._trainable_variables_indices)
            return
        self._make_plan(variables)
        super().build(variables)
        self._slots = [self._add_slots(v) for v in variables]
        if self._is_guarded:
            count = self.add_variable((), dtype="int32", name="skipped_steps")
            self._skipped = lambda: count
        self._make_observed()
        if keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow.update import Update

            self._update = Update(
                self._bound_rule,
                len(self.slot_names),
                self.clip_aggregated,
                self.gradient_accumulation_steps,
                self._settings.jit_compile,
                self._refusal(),
                self.assign,
                self._tell_row,
            )
        elif self._settings.slot_dtype == "bfloat16":
            self._noise = keras.random.SeedGenerator(0)
            self._track_variable(self._noise.state)
        self._set_early_weights()

    def _add_slots(self, variable):
        """The slots of the rule, then the float32 master if there is one."""
        if getattr(variable, "overwrite_with_gradient", False):
            return ()
        exact = host.compute_dtype(variable.dtype)
        slots = dict.fromkeys(self.slot_names, exact)
        if exact == "float32":
            slots = dict.fromkeys(self.slot_names, self._settings.slot_dtype)
        if self._settings.master_weights and host.is_half(variable.dtype):
            slots["master"] = "float32"
        prefix = path_of(variable).replace("/", "_")
        return tuple(
            self.add_beside(variable, f"{prefix}_{name}", dtype) for name, dtype in slots.items()
        )

    def update_step(self, gradient, variable, learning_rate):
        """One step of the rule for one variable."""
        (layer,) = self._plan.layers([self._get_variable_index(variable)])
        self._step(layer, [gradient], [variable], learning_rate, self.iterations + 1)

    def _backend_apply_gradients(self, grads, trainable_variables):
        gradients = [
            ops.cast(host.dense(g, v), host.compute_dtype(v.dtype))
            for g, v in zip(grads, trainable_variables, strict=True)
        ]
        if keras.backend.backend() == "tensorflow":
            self._apply_on_tensorflow(gradients, trainable_variables)
        elif self.gradient_accumulation_steps or self._is_guarded:
            self._apply_if_due(gradients, trainable_variables)
        else:
            self._apply_once(gradients, trainable_variables, self._scalars())
        if host.VERSION < (3, 10):  # later, `apply` itself counts
            self._iterations.assign_add(1)

    def _scalars(self):
        """What the step depends on besides gradients and state."""
        iterations = self.iterations
        t = iterations + 1
        micro_step = self._iterations + 1
        return {
            "lr": ops.convert_to_tensor(self.learning_rate),
            "t": t,
            "is_update": ops.equal(micro_step % self._micro_steps, 0),
            # As in Keras, the averages begin with the weights of the first step.
            "ema_momentum": ops.where(iterations > 0, self.ema_momentum, 0.0),
            "ema_overwrites": ops.equal(t % self.ema_overwrite_frequency, 0)
            if self.ema_overwrite_frequency
            else ops.convert_to_tensor(False),
        }

    @property
    def _micro_steps(self):
        return self.gradient_accumulation_steps or 1

    def _averages(self):
        """Pairs of an average and its variable."""
        if not self.use_ema:
            return []
        pairs = zip(self._model_variables_moving_average, self._trainable_variables, strict=True)
        return [(average, variable) for average, variable in pairs if average is not None]

    def _apply_on_tensorflow(self, gradients, variables):
        import tensorflow as tf

        from tf_lamb.tensorflow.update import Scalars, State, update_replicas

        indices = [self._get_variable_index(v) for v in variables]
        accumulators = self._accumulated_gradients if self.gradient_accumulation_steps else None
        state = State(
            weights=[host.native(v) for v in variables],
            slots=[[host.native(slot) for slot in self._slots[i]] for i in indices],
            accumulators=[host.native(accumulators[i]) for i in indices] if accumulators else [],
            averages=[(host.native(average), host.native(v)) for average, v in self._averages()],
            observed=self._observed_of(indices),
            skipped=[host.native(self._skipped())] if self._is_guarded else [],
        )
        plan = self._plan.layers(indices)

        def everywhere(strategy, gradients):
            scalars = Scalars(**{k: tf.convert_to_tensor(v) for k, v in self._scalars().items()})
            skipped = update_replicas(strategy, self._update, plan, gradients, state, scalars)
            if self._is_guarded:
                iterations = host.native(self._iterations)
                iterations.assign_sub(tf.cast(skipped, iterations.dtype) * self._micro_steps)

        pairs = self._all_reduce_sum_gradients(zip(gradients, state.weights, strict=True))
        tf.__internal__.distribute.interim.maybe_merge_call(
            everywhere, self._distribution_strategy, [gradient for gradient, _ in pairs]
        )

    def finalize_variable_values(self, var_list):
        """At the end of training, the averages replace the weights if `use_ema`."""
        overrun.warn_if_over(self, lambda: step_of(self))
        known = {self._var_key(v) for v in var_list}
        for average, variable in self._averages():
            if self._var_key(variable) in known:
                variable.assign(ops.cast(average, variable.dtype))
        self._tell_skipped()

    def _are_finite(self):
        return self._which_are_finite(self._trainable_variables)

    def get_config(self):
        """The constructor's arguments, exclusions and all."""
        return self._config(super().get_config()["learning_rate"])
