"""The XLA-compiled update of many variables: what one replica does with aggregated gradients."""

import dataclasses
import functools
import inspect
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tf_lamb.core import spikes, stacks, step
from tf_lamb.core.plan import paths_of
from tf_lamb.core.stored import SPIKE, TAKEN, Scalars, assign_stored
from tf_lamb.tensorflow import namespace
from tf_lamb.tensorflow.replicas import of_replica, on_server_of, uses_servers


def dense(gradient, variable):
    """Returns a gradient as a tensor in the shape of its variable.

    Every row of the moments decays, so the gradient of an embedding may as well be dense. A data
    set that does not say its shapes hides those of gradients from TensorFlow, too.

    Args:
        gradient: The gradient, perhaps `IndexedSlices`.
        variable: Its variable.
    """
    gradient = tf.convert_to_tensor(gradient)
    gradient.set_shape(variable.shape)
    return gradient


def are_finite(gradients):
    """Returns, for each gradient, whether the sum of its squares is finite.

    The sum is in the precision of the update. If it is finite, so is each element, and its square
    as well, which a second moment has to hold.
    """
    return tf.stack([tf.math.is_finite(tf.nn.l2_loss(gradient)) for gradient in gradients])


def finite_variables(variables):
    """Returns, for each variable, whether every element is finite, however large.

    It waits for the device.
    """
    return tf.stack([tf.reduce_all(tf.math.is_finite(variable)) for variable in variables]).numpy()


def array_of(variable):
    """Returns a variable's value in NumPy; None in a graph that nothing eager surrounds."""
    with tf.init_scope():
        return tf.convert_to_tensor(variable).numpy() if tf.executing_eagerly() else None


def refuse_nonfinite(finite, refusal, paths, unless):
    """Returns an operation that raises unless all is finite.

    In a step that XLA compiles whole, it does nothing.

    Args:
        finite: Whether each gradient is finite, a boolean vector.
        refusal: The beginning of the message, to which the paths that are not finite are added.
        paths: The paths of the variables, in the order of `finite`.
        unless: A boolean scalar: True raises nothing.
    """
    if _is_compiled_whole():
        return tf.no_op()
    nonfinite = tf.boolean_mask(tf.constant(paths), tf.logical_not(finite))
    is_right = tf.reduce_all(finite) | unless
    return tf.debugging.Assert(is_right, [refusal, nonfinite], summarize=10)


def _is_compiled_whole():
    """Returns whether XLA compiles what is being traced."""
    # seam: TensorFlow 2.20.
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def _assign(variable, value):
    """Gives a variable a value."""
    variable.assign(value)


def _add_one(counter):
    """Adds 1 to a counter."""
    counter.assign_add(1)


@dataclasses.dataclass(eq=False, kw_only=True)
class Update(step.Update):
    """Applies one rule to many variables, on one replica.

    One program is traced for each (shape, dtype, treatment), not one for the whole list: a network
    has hundreds of variables and a dozen shapes, and the time of the first step grows with the
    number of programs. XLA compiles those that are large enough to gain by it. Where the rule works
    on matrices that can be stacked, one program has all layers that are treated alike.

    Attributes:
        jit_compile: Whether XLA compiles the programs of large layers.
        gains: Whether the rule gains by that, on one device.
        assign: A function that gives a weight or a slot its new value.
    """

    jit_compile: bool
    gains: bool
    assign: Callable = _assign

    def __post_init__(self):
        self._programs: dict = {}
        self._steps: dict = {}  # by plan: as an argument, each equal tuple would be traced anew

    @property
    def is_traced(self) -> bool:
        """Whether any step has been traced."""
        return bool(self._programs)

    # In the order in which they run:
    #   __call__            once, where replicas meet: reads the scalars, and counts at the end
    #   _on_each_replica    has its copies of all variables
    #   _finish_micro_step  takes the mean of micro-batches where an update is due
    #   _apply_if_finite    looks at the gradients first
    #   _apply              clips, and runs the program of each layer or stack of layers,
    #   _step               which is all that such a program does.

    def __call__(self, plan, state, scalars, count, strategy, gradients):
        """Takes one micro-step, see the base class.

        It is called where the replicas meet that have come with these gradients, which are
        aggregated by now. One call hands each replica its own copy of every variable. The
        treatments were decided once, so they cannot differ between replicas, and neither can
        whether the step is skipped. A skipped step changes nothing but its counter and the
        accumulators, which begin anew.

        Args:
            plan: The layers.
            state: The `State` of the update.
            scalars: A function that returns the `Scalars`.
            count: A function that takes what became of the step; its result is returned.
            strategy: The strategy of the optimizer.
            gradients: The gradients, in the order of the state. Empty where they accumulate: the
                accumulators have them, summed over replicas where this is an update.
        """
        scalar_tensors = Scalars(*(x if x is None else tf.convert_to_tensor(x) for x in scalars()))
        # Rewriting this package's own code for AutoGraph would be half of the first step.
        on_each = tf.autograph.experimental.do_not_convert(
            functools.partial(self._on_each_replica, strategy, plan, state)
        )
        of_replicas = strategy.extended.update(
            state.stored[0].weight, on_each, args=(gradients, scalar_tensors), group=False
        )
        return count(tf.nest.flatten(of_replicas)[0])  # a step that XLA compiles returns one alone

    def _on_each_replica(self, strategy, plan, state, weight, gradients, scalars):
        """Ends the micro-step of the replica that has this copy of the first weight."""
        finish = self._finish_micro_step if self.accumulation_steps else self._apply_if_finite
        finish = functools.partial(finish, plan)
        # One call in a user's eager loop; a graph of the user has the step as a part.
        if tf.executing_eagerly():
            if plan not in self._steps:
                self._steps[plan] = tf.function(finish, autograph=False)
            finish = self._steps[plan]
        return finish(gradients, of_replica(strategy, state, weight), scalars)

    def _finish_micro_step(self, plan, _, state, scalars):
        """Takes one step, if an update is due; returns what became of it."""

        def apply():
            mean = [self.mean(namespace, total, scalars) for total in state.accumulators]
            accumulators = [*state.accumulators, *state.dropped]
            cleared = [total.assign(tf.zeros_like(total)) for total in accumulators]
            with tf.control_dependencies(cleared):
                return self._apply_if_finite(plan, mean, state, scalars)

        return tf.cond(scalars.is_update, apply, lambda: tf.constant(TAKEN))

    def _apply_if_finite(self, plan, gradients, state, scalars):
        """Takes one step if no gradient is NaN or infinite and their norm is no spike.

        Returns TAKEN, NONFINITE or SPIKE. Without a counter of skipped steps it takes every step.
        """
        if not state.skipped:
            self._apply(plan, gradients, state, scalars)
            return tf.constant(TAKEN)
        finite = are_finite(gradients)
        assertions = []
        if self.refusal:
            paths, unless = paths_of(plan), scalars.is_searching
            assertions = [refuse_nonfinite(finite, self.refusal, paths, unless)]
        apply = functools.partial(self._apply, plan, gradients, state, scalars)
        skip = functools.partial(_add_one, state.skipped[0])
        with tf.control_dependencies(assertions):
            finite = tf.reduce_all(finite)
            outcome = tf.cast(tf.logical_not(finite), tf.int32)  # TAKEN or NONFINITE
            if not state.spikes:
                tf.cond(finite, apply, skip)
                return outcome
            spike = finite & self._watch(gradients, state.spikes[0])
            count = functools.partial(_add_one, state.spikes[1])
            tf.cond(finite & ~spike, apply, lambda: tf.cond(spike, count, skip))
            return tf.where(spike, SPIKE, outcome)

    def _watch(self, gradients, window):
        """Returns whether the norm of the gradients is a spike, and adds it to the window.

        Args:
            gradients: The gradients of all variables.
            window: The variable of the latest norms.
        """
        norm_of = functools.partial(spikes.norm_of, namespace)
        if self._is_compiled_on_replicas():
            norm_of = tf.function(norm_of, jit_compile=True, autograph=False)
        norm, old_window = norm_of(gradients), tf.convert_to_tensor(window)
        spike, new_window = spikes.watched(namespace, old_window, norm, deviations=self.deviations)
        window.assign(new_window)
        return spike

    def _is_compiled_on_replicas(self):
        """Returns whether XLA has to compile the norms that decide whether a step is skipped.

        All replicas must come to the same decision, and TensorFlow's own kernels may add in another
        order on each of them, so that norms differ in the last bit.
        """
        several = tf.distribute.get_strategy().num_replicas_in_sync > 1
        return several and self.jit_compile and not namespace.is_tpu() and not uses_servers()

    def _apply(self, plan, gradients, state, scalars):
        """Clips, runs the program of each group of layers, and moves the averages."""
        gradients = self.clip(list(gradients))
        for layers in self._worked_on_together(plan, state):
            with on_server_of(state.stored[layers[0].members[0]].weight):
                self._prepared(layers, gradients, state, scalars)()
        if state.averages:
            self._average(state, scalars)

    def step_layer(self, layer, gradients, state, scalars):
        """Takes one step of the rule for one layer.

        Args:
            layer: The layer.
            gradients: The gradients of its variables.
            state: The `State`, in the order of the layer.
            scalars: The `Scalars`.
        """
        self._prepared([layer], gradients, state, scalars)()

    def _worked_on_together(self, plan, state):
        """Returns the layers in groups, each of which one program steps."""
        # XLA takes the variables of one device, and those of a step may lie on several servers.
        if not self.stacks or uses_servers():
            return [[layer] for layer in plan]
        groups: dict = {}
        for layer in plan:
            is_matrix = layer.treatments[0].adapt and inspect.isgeneratorfunction(self.rule)
            separate_number = None if is_matrix and not layer.may_rest else layer.number
            key = self._key(layer, state.of(layer)), layer.multiplier, separate_number
            groups.setdefault(key, []).append(layer)
        return groups.values()

    def _prepared(self, layers, gradients, state, scalars):
        """Returns one step of the rule for layers that are treated alike, ready to be called."""
        first, states = layers[0], [state.of(layer) for layer in layers]
        stored, observed = map(list, zip(*states, strict=True))
        layer_gradients = [[gradients[i] for i in layer.members] for layer in layers]
        numbers = [tf.constant(layer.number) for layer in layers]
        present = [
            step.present_in(namespace, *pair) for pair in zip(layers, layer_gradients, strict=True)
        ]
        run = functools.partial(
            self._program(layers, states[0]), numbers, layer_gradients, stored, observed, present,
            first.rate(scalars.lr), scalars.t, scalars.decay,
        )  # fmt: skip
        if not first.may_rest:
            return run
        return functools.partial(tf.cond, tf.reduce_any(present[0]), run, lambda: None)

    @staticmethod
    def _key(layer, state):
        """Returns the key of a layer's program.

        Layers that are treated alike, of the same shapes, share a program.
        """
        variables = tf.nest.flatten(state)
        shapes = (
            variable if variable is None else (tuple(variable.shape), variable.dtype)
            for variable in variables
        )
        return layer.treatments, *shapes

    def _program(self, layers, state):
        """Returns the program for layers that are treated alike, traced once for their kind."""
        key = len(layers), *self._key(layers[0], state)
        if key not in self._programs:
            program = functools.partial(self._step, layers[0].treatments)
            # On a TPU the step is one program already, and its variables are no arguments.
            if not namespace.is_tpu() and not uses_servers():
                size = len(layers) * sum(stored.weight.shape.num_elements() for stored in state[0])
                # TensorFlow's own kernels may add in another order on each replica, whose copies
                # would then differ by a last bit.
                replicas = tf.distribute.get_strategy().num_replicas_in_sync
                large = self.gains and size >= namespace.LARGE
                compiled = self.jit_compile and (large or replicas > 1)
                program = tf.function(program, jit_compile=compiled or None, autograph=False)
            self._programs[key] = program
        return self._programs[key]

    def _step(self, treatments, numbers, gradients, stored, observed, present, lr, t, decay):
        """Takes one step of the rule for layers, each of which has these treatments."""
        steps = [
            step.step(
                namespace, self.rule, treatments, layer_gradients, old, lr=lr, t=t, number=number,
                bitcast=namespace.bitcast, decay=decay,
                observe=step.recorder(namespace, vectors, _assign), present=has_gradient,
            )
            for number, layer_gradients, old, vectors, has_gradient in zip(
                numbers, gradients, stored, observed, present, strict=True
            )
        ]  # fmt: skip
        for old_layer, new in zip(stored, stacks.together(namespace, steps), strict=True):
            for old, new_stored in zip(old_layer, new, strict=True):
                assign_stored(self.assign, old, new_stored)

    def _average(self, state, scalars):
        """Moves the averages; overwrites the weights and their masters where that is due."""
        for average, stored in state.averages:
            momentum, bitcast = scalars.ema_momentum, namespace.bitcast
            average.assign(step.averaged(namespace, average, stored, momentum, bitcast))

        def overwrite():
            for average, stored in state.averages:
                for copy in stored.copies:
                    copy.assign(tf.cast(average, copy.dtype))

        tf.cond(scalars.ema_overwrites, overwrite, lambda: None)
