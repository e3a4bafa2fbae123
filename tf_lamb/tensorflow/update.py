"""Updates many variables by one update rule; XLA compiles the update where that is faster.

The gradients are aggregated, that is summed over replicas. A layer is a group of variables that
share a trust ratio, often a single variable. A spike is a gradient norm far above those of the last
steps. A master is a float32 copy of a half-precision weight. `core/stored.py` defines `Scalars`,
the numbers of a step such as the learning rate; `Stored`, the arrays that belong to one variable;
and `State`, all variables that a step changes.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tf_lamb.core import spikes, stacks, step
from tf_lamb.core.plan import paths_of
from tf_lamb.core.stored import SPIKE, TAKEN, Scalars, assign_stored
from tf_lamb.tensorflow import namespace
from tf_lamb.tensorflow.replicas import on_server_of, replica_state, uses_servers


def dense(gradient, variable):
    """Returns a gradient as a tensor in the shape of its variable.

    The sparse gradient of an embedding is made dense. That costs no extra work, because an update
    changes every row of the slots anyway. The shape is set, because TensorFlow does not know it if
    the dataset does not tell its shapes.

    Args:
        gradient: The gradient, perhaps `IndexedSlices`.
        variable: Its variable.
    """
    gradient = tf.convert_to_tensor(gradient)
    gradient.set_shape(variable.shape)
    return gradient


def which_gradients_are_finite(gradients):
    """Returns, for each gradient, whether the sum of its squares is finite.

    The sum is computed in the precision of the update. If it is finite, then each element is
    finite, and so is its square, which becomes part of second moments such as Adam's v.
    """
    return tf.stack([tf.math.is_finite(tf.nn.l2_loss(gradient)) for gradient in gradients])


def which_variables_are_finite(variables):
    """Returns, for each variable, whether every element is finite.

    It waits for the device.
    """
    return tf.stack([tf.reduce_all(tf.math.is_finite(variable)) for variable in variables]).numpy()


def array_of(variable):
    """Returns a variable's value as a NumPy array; None if TensorFlow 1 graph code is running."""
    with tf.init_scope():
        return tf.convert_to_tensor(variable).numpy() if tf.executing_eagerly() else None


def refuse_nonfinite(is_finite, refusal, paths, is_tolerated):
    """Returns an operation that raises an error unless all gradients are finite.

    In a step that XLA compiles as a whole, it does nothing.

    Args:
        is_finite: Whether each gradient is finite, a boolean vector.
        refusal: The beginning of the message. The paths of variables whose gradients are not finite
            are added to it.
        paths: The paths of the variables, in the order of `is_finite`.
        is_tolerated: A boolean scalar; if it is true, no error is raised.
    """
    if _is_compiled_whole():
        return tf.no_op()
    nonfinite = tf.boolean_mask(tf.constant(paths), tf.logical_not(is_finite))
    is_accepted = tf.reduce_all(is_finite) | is_tolerated
    return tf.debugging.Assert(is_accepted, [refusal, nonfinite], summarize=10)


def _is_compiled_whole():
    """Returns whether XLA compiles the whole program that is being traced."""
    # seam: TensorFlow 2.20, a private module.
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def _replica_count():
    """Returns the number of replicas that update their copies of each variable."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def _assign(variable, value):
    """Gives a variable a value."""
    variable.assign(value)


def _add_one(counter):
    """Adds 1 to a counter."""
    counter.assign_add(1)


@dataclasses.dataclass(eq=False, kw_only=True)
class TensorFlowUpdate(step.Update):
    """Applies one update rule to many variables, on one replica.

    A program, a `tf.function`, is traced for each combination of shape, dtype and treatment, and is
    used for all variables with this combination. The treatment says how a variable is updated, for
    example its weight decay. A network has hundreds of variables but only a dozen shapes, and the
    time of the first step grows with the number of programs. XLA compiles the programs of large
    layers. If the rule works on matrices that can be stacked, one program updates all layers of one
    shape and treatment. So it is for small layers of one shape, if XLA does not compile them.

    Attributes:
        jit_compile: Whether XLA may compile programs.
        gains_by_xla: Whether the update of a large layer on one device is faster with XLA.
        stacks_if_adapt: As in `Rule`: which small layers can be updated as one stack.
        assign: A function that gives a weight or a slot its new value.
    """

    jit_compile: bool
    gains_by_xla: bool
    stacks_if_adapt: Sequence[bool]
    assign: Callable = _assign

    def __post_init__(self):
        self._programs: dict = {}
        self._steps: dict = {}  # plan -> step; an equal plan is not traced again

    @property
    def is_traced(self) -> bool:
        """Whether any step has been traced."""
        return bool(self._programs)

    # In the order in which they run:
    #   __call__            runs once for all replicas: reads the scalars, and counts at the end
    #   _on_each_replica    finds the copies of all variables on one replica
    #   _finish_micro_step  computes the mean over the micro-batches, if an update is due
    #   _apply_if_finite    skips the step if a gradient is not finite, or the norm spikes
    #   _apply              clips, and runs the program of each layer or stack of layers
    #   _step, _step_stack  are the code of such a program: they run the update rule

    def __call__(self, plan, state, scalars, count, strategy, gradients):
        """Processes a micro-batch; if it ends an update, takes a step of the optimizer.

        It is called in cross-replica context, with gradients that are aggregated over replicas. The
        strategy calls `_on_each_replica` for each replica. All replicas have the same treatments,
        because they were decided when the optimizer was built, and come to the same decision
        whether to skip the step. A skipped step changes only counters and the norms of past steps,
        and sets the accumulators to zero.

        Args:
            plan: The layers to update.
            state: The `State` of the update.
            scalars: A function that returns the `Scalars`.
            count: A function of the step's outcome, `TAKEN`, `NONFINITE` or `SPIKE`.
            strategy: The strategy of the optimizer.
            gradients: The gradients, in the order of `state.stored`. Empty if gradients accumulate:
                the accumulators have them, summed over replicas if this micro-batch ends an update.

        Returns:
            The result of `count`.
        """
        scalar_tensors = Scalars(
            *(value if value is None else tf.convert_to_tensor(value) for value in scalars())
        )
        # AutoGraph would rewrite the code of this package, which does not need it. That would take
        # half of the time of the first step.
        run_on_replica = tf.autograph.experimental.do_not_convert(
            functools.partial(self._on_each_replica, strategy, plan, state)
        )
        outcomes = strategy.extended.update(
            state.stored[0].weight, run_on_replica, args=(gradients, scalar_tensors), group=False
        )
        return count(tf.nest.flatten(outcomes)[0])  # a single one if XLA compiles the whole step

    def _on_each_replica(self, strategy, plan, state, weight, gradients, scalars):
        """Takes the step on one replica, if an update is due; returns the step's outcome.

        The strategy calls this once for each replica.

        Args:
            strategy: The strategy of the optimizer.
            plan: The layers to update.
            state: The `State` of the mirrored variables.
            weight: This replica's copy of the first weight, by which its copies of all other
                variables are found.
            gradients: The aggregated gradients; empty if gradients accumulate.
            scalars: The `Scalars`, as tensors.
        """
        finish_step = self._finish_micro_step if self.accumulation_steps else self._apply_if_finite
        finish_step = functools.partial(finish_step, plan)
        # If the user's training loop is eager, the step becomes a `tf.function` here. If the user's
        # own `tf.function` is being traced, the step becomes a part of it.
        if tf.executing_eagerly():
            if plan not in self._steps:
                self._steps[plan] = tf.function(finish_step, autograph=False)
            finish_step = self._steps[plan]
        return finish_step(gradients, replica_state(strategy, state, weight), scalars)

    def _finish_micro_step(self, plan, _, state, scalars):
        """Takes one step with the mean gradients of the micro-batches, if an update is due.

        Args:
            plan: The layers to update.
            _: Ignored, because the accumulators hold the gradients.
            state: The `State` of this replica's copies.
            scalars: The `Scalars`.

        Returns:
            The outcome: `TAKEN`, `NONFINITE` or `SPIKE`; `TAKEN` if no update is due.
        """

        def apply():
            mean = [self.mean(namespace, total, scalars) for total in state.accumulators]
            accumulators = [*state.accumulators, *state.dropped_accumulators]
            cleared = [total.assign(tf.zeros_like(total)) for total in accumulators]
            with tf.control_dependencies(cleared):
                return self._apply_if_finite(plan, mean, state, scalars)

        return tf.cond(scalars.is_update, apply, lambda: tf.constant(TAKEN))

    def _apply_if_finite(self, plan, gradients, state, scalars):
        """Takes one step if no gradient is NaN or infinite and their global norm is no spike.

        Returns TAKEN, NONFINITE or SPIKE. If `state` has no counter of skipped steps, because the
        optimizer does not skip any, every step is taken.
        """
        if not state.skipped:
            self._apply(plan, gradients, state, scalars)
            return tf.constant(TAKEN)
        is_finite = which_gradients_are_finite(gradients)
        assertions = []
        if self.nonfinite_message:
            paths, is_tolerated = paths_of(plan), scalars.may_overflow
            assertions = [refuse_nonfinite(is_finite, self.nonfinite_message, paths, is_tolerated)]
        apply = functools.partial(self._apply, plan, gradients, state, scalars)
        skip = functools.partial(_add_one, state.skipped[0])
        with tf.control_dependencies(assertions):
            all_finite = tf.reduce_all(is_finite)
            outcome = tf.cast(tf.logical_not(all_finite), tf.int32)  # TAKEN or NONFINITE
            if not state.spikes:
                tf.cond(all_finite, apply, skip)
                return outcome
            is_spike = all_finite & self._watch(gradients, state.spikes[0])
            count = functools.partial(_add_one, state.spikes[1])
            tf.cond(all_finite & ~is_spike, apply, lambda: tf.cond(is_spike, count, skip))
            return tf.where(is_spike, SPIKE, outcome)

    def _watch(self, gradients, window):
        """Returns whether the global norm of the gradients is a spike, and adds it to the window.

        Args:
            gradients: The gradients of all variables.
            window: The variable with the norms of the latest steps (`core/spikes.py`).
        """
        global_norm = functools.partial(spikes.global_norm, namespace)
        if self._is_compiled_on_replicas():
            global_norm = tf.function(global_norm, jit_compile=True, autograph=False)
        norm, old_window = global_norm(gradients), tf.convert_to_tensor(window)
        is_spike, new_window = spikes.detect_spike(
            namespace, old_window, norm, deviations=self.deviations
        )
        window.assign(new_window)
        return is_spike

    def _is_compiled_on_replicas(self):
        """Returns whether XLA has to compile the norm that decides whether a step is skipped.

        All replicas must come to the same decision. TensorFlow's own kernels may add numbers in
        another order on each replica, so that the norms would differ in the last bit.
        """
        return (
            _replica_count() > 1
            and self.jit_compile
            and not namespace.compiles_for_tpu()
            and not uses_servers()
        )

    def _apply(self, plan, gradients, state, scalars):
        """Clips gradients, updates each group of layers, and updates averages of the weights."""
        gradients = self.clip(list(gradients))
        for layers in self._layer_groups(plan, state):
            with on_server_of(state.stored[layers[0].members[0]].weight):
                self._bound_program(layers, gradients, state, scalars)()
        if state.averages:
            self._average(state, scalars)

    def step_layer(self, layer, gradients, state, scalars):
        """Takes one step of the rule for one layer.

        Args:
            layer: The layer.
            gradients: The gradients of its variables.
            state: The `State`, in the order of the layer's variables.
            scalars: The `Scalars`.
        """
        self._bound_program([layer], gradients, state, scalars)()

    def _layer_groups(self, plan, state):
        """Divides the layers into groups that are updated together.

        With `stacks_matrices`, matrices of the same shapes, dtypes and treatments are a group, so
        that one program can stack them. So are small layers, if the rule allows it. Any other
        layer is a group of its own.
        """
        # A program that XLA compiles takes variables of one device only, and the variables of a
        # group may be on several parameter servers.
        if uses_servers():
            return [[layer] for layer in plan]
        groups: dict = {}
        for layer in plan:
            stored, observed = state.of_layer(layer)
            can_be_grouped = not layer.may_rest and (
                (self.stacks_matrices and self._is_matrix(layer))
                or self._is_small(layer, stored[0])
            )
            separate_number = None if can_be_grouped else layer.number
            key = self._program_key(layer, (stored, observed)), layer.multiplier, separate_number
            groups.setdefault(key, []).append(layer)
        return list(groups.values())

    def _is_matrix(self, layer):
        """Returns whether the rule yields the layer's arrays to be stacked with those of others."""
        return layer.treatments[0].adapt and inspect.isgeneratorfunction(self.rule)

    def _is_small(self, layer, stored):
        """Returns whether the layer is better updated in a stack with others of its shape.

        Args:
            layer: The layer.
            stored: The `Stored` of its first variable.
        """
        shape = stored.weight.shape
        return (
            len(layer.members) == 1
            and layer.treatments[0].adapt in self.stacks_if_adapt
            and 0 < shape.num_elements() < namespace.STACK_MAX_ELEMENTS
            # XLA takes longer to compile a stack than to compile the update of one layer for all.
            and not (namespace.compiles_for_tpu() or _is_compiled_whole())
            and not (self.jit_compile and _replica_count() > 1)
            and all(slot.shape == shape and slot.dtype != tf.bfloat16 for slot in stored.slots)
        )

    def _bound_program(self, layers, gradients, state, scalars):
        """Returns a function without arguments that takes one step of the rule for some layers.

        Args:
            layers: Layers that share a program.
            gradients: The gradients of all variables.
            state: The `State` of all variables.
            scalars: The `Scalars`.
        """
        first_layer, states = layers[0], [state.of_layer(layer) for layer in layers]
        stored, observed = map(list, zip(*states, strict=True))
        layer_gradients = [[gradients[i] for i in layer.members] for layer in layers]
        numbers = [tf.constant(layer.number) for layer in layers]
        present = [
            step.which_have_gradients(namespace, *pair)
            for pair in zip(layers, layer_gradients, strict=True)
        ]
        run = functools.partial(
            self._program(layers, states[0]), numbers, layer_gradients, stored, observed, present,
            first_layer.rate(scalars.lr), scalars.t, scalars.decay,
        )  # fmt: skip
        if not first_layer.may_rest:
            return run
        return functools.partial(tf.cond, tf.reduce_any(present[0]), run, lambda: None)

    @staticmethod
    def _program_key(layer, state):
        """Returns the key of a layer's program: the treatments, shapes and dtypes.

        Layers with the same key share a program.
        """
        variables = tf.nest.flatten(state)
        shapes = (
            variable if variable is None else (tuple(variable.shape), variable.dtype)
            for variable in variables
        )
        return layer.treatments, *shapes

    def _program(self, layers, state):
        """Returns the function that updates the given layers, which are a group of `_layer_groups`.

        It is taken from a cache if one was made for as many layers of the same shapes and dtypes.
        """
        key = len(layers), *self._program_key(layers[0], state)
        if key not in self._programs:
            is_stack = len(layers) > 1 and not self._is_matrix(layers[0])
            code = self._step_stack if is_stack else self._step
            program = functools.partial(code, layers[0].treatments)
            # A stack holds all layers that could share a `tf.function`. On a TPU, XLA compiles the
            # whole step as one program, and no `tf.function` is needed.
            if not is_stack and not namespace.compiles_for_tpu() and not uses_servers():
                size = len(layers) * sum(stored.weight.shape.num_elements() for stored in state[0])
                # With several replicas, XLA compiles small layers, too: TensorFlow's own kernels
                # may add numbers in another order on each replica, and the copies of a variable
                # would differ in the last bit.
                is_large = self.gains_by_xla and size >= namespace.XLA_MIN_ELEMENTS
                is_compiled = self.jit_compile and (is_large or _replica_count() > 1)
                program = tf.function(program, jit_compile=is_compiled or None, autograph=False)
            self._programs[key] = program
        return self._programs[key]

    def _step(self, treatments, numbers, gradients, stored, observed, present, lr, t, decay):
        """Takes one step of the rule for layers of the same treatments.

        Args:
            treatments: The treatment of each variable of a layer.
            numbers: For each layer a number that no other layer has.
            gradients: For each layer a list of its gradients.
            stored: For each layer a list of its `Stored`.
            observed: For each layer and each of its variables a tuple of the vector in which the
                trust ratio is recorded, or an empty tuple.
            present: For each layer which of its variables have a gradient, as computed by
                `core.step.which_have_gradients`.
            lr: The learning rate.
            t: The number of the step, from 1.
            decay: The scalar by which the weight decay of each treatment is multiplied, or None.
        """
        steps = [
            step.step(
                namespace, self.rule, treatments, layer_gradients, layer_stored,
                lr=lr, t=t, layer_number=number, bitcast=namespace.bitcast, decay=decay,
                observe=step.make_recorder(namespace, vectors, _assign), has_gradient=has_gradient,
            )
            for number, layer_gradients, layer_stored, vectors, has_gradient in zip(
                numbers, gradients, stored, observed, present, strict=True
            )
        ]  # fmt: skip
        new_stored = stacks.run_batched(namespace, steps)
        for old_layer, new_layer in zip(stored, new_stored, strict=True):
            for old, new in zip(old_layer, new_layer, strict=True):
                assign_stored(self.assign, old, new)

    def _step_stack(
        self, treatments, numbers, gradients, stored, observed, present, lr, t, decay
    ):  # fmt: skip
        """Takes one step of the rule for small layers of one variable each, as one stack.

        The arguments are those of `_step`. `numbers` is not used, because no slot is rounded, and
        `present` is not, because each layer has a gradient.
        """
        old_stored = [variables[0] for variables in stored]
        layers_step = step.step_stack(
            namespace, self.rule, treatments[0], [layer[0] for layer in gradients], old_stored,
            lr=lr, t=t, bitcast=namespace.bitcast, decay=decay,
            observers=[step.make_recorder(namespace, vectors, _assign) for vectors in observed],
        )  # fmt: skip
        new_stored = stacks.run_single(namespace, layers_step)
        for old, new in zip(old_stored, new_stored, strict=True):
            assign_stored(self.assign, old, new)

    def _average(self, state, scalars):
        """Updates the moving averages of the weights.

        If `scalars.ema_overwrites` is true, the averages are then assigned to the weights and their
        masters.
        """
        for average, stored in state.averages:
            momentum, bitcast = scalars.ema_momentum, namespace.bitcast
            average.assign(step.moving_average(namespace, average, stored, momentum, bitcast))

        def overwrite():
            for average, stored in state.averages:
                for copy in stored.weight_and_master:
                    copy.assign(tf.cast(average, copy.dtype))

        tf.cond(scalars.ema_overwrites, overwrite, lambda: None)
