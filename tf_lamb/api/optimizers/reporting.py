"""Reports on an optimizer: its plan, its trust ratios, the steps that it skipped."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tf_lamb.api.optimizers import observation
from tf_lamb.api.optimizers.configured import Configured
from tf_lamb.api.optimizers.guard import nonfinite_names
from tf_lamb.api.variables import value_of
from tf_lamb.core import plan as plans


class Reporting(Configured):
    """Reports what an optimizer does.

    No report changes what a training step computes, except `observe_trust_ratios`, which makes
    steps record more.
    """

    _storage: Any = None  # the `Storage`; None until the build
    _observes = False  # whether steps record their trust ratios

    @property
    def plan(self) -> plans.Plan | None:
        """The plan: one `Treatment` for each variable, in build order; None until the build.

        It is read-only. `names` and `shapes` are those of the variables. In each entry of
        `treatments`, `decay` is the weight decay, and `adapt` is False for a variable that is
        excluded from layer adaptation or, with Muon and SOAP, is no matrix. `multipliers` are
        factors of the learning rate, and empty if all are 1. `table()` returns the text that
        `describe` prints.

        Example:

        >>> import tensorflow as tf, tf_lamb
        >>> layer = tf.keras.layers.Dense(2, name="dense")
        >>> layer.build((None, 4))
        >>> optimizer = tf_lamb.LAMB(0.1, weight_decay=0.01, exclude_from_weight_decay=["bias"])
        >>> optimizer.build(layer.trainable_variables)
        >>> [(treatment.decay, treatment.adapt) for treatment in optimizer.plan.treatments]
        [(0.01, True), (0.0, False)]
        """
        return self._planner.plan

    def plan_for(self, variables: Sequence) -> plans.Plan:
        """Returns the plan that a build for these variables would make, without storing it.

        Args:
            variables: The variables.
        """
        return self._planner.plan_for(variables)

    def describe(self, print_fn: Callable[[str], Any] = print) -> None:
        """Prints the plan of a built optimizer; `tf_lamb.describe` prints that of a model.

        Args:
            print_fn: The function that is called with each text. Defaults to `print`.

        Raises:
            ValueError: if the optimizer is not built.
        """
        if self.plan is None:
            raise ValueError(
                f"{self.name} has no plan before it is built: train a step, call "
                "optimizer.build(model.trainable_variables), or ask tf_lamb.describe(model)."
            )
        self._planner.print_plan(self._planner.current_plan(), print_fn)

    def observe_trust_ratios(self) -> bool:
        """Makes every later step record its trust ratios, for `trust_ratios` to read.

        Call it before the training step is traced; in `fit` the callback `TrustRatios` calls it.
        For each variable it takes the memory of four numbers, which checkpoints do not contain.

        Returns:
            True if trust ratios were not recorded before: then a training step that is already
            traced has to be traced again.

        Raises:
            TypeError: if the optimizer has no trust ratios.

        Example:

        >>> import tensorflow as tf, tf_lamb
        >>> variable = tf.Variable([3.0, 4.0])
        >>> optimizer = tf_lamb.LAMB(0.1)
        >>> optimizer.observe_trust_ratios()
        True
        >>> _ = optimizer.apply_gradients([(tf.constant([0.0, 2.0]), variable)])
        >>> (seen,) = optimizer.trust_ratios()
        >>> print(f"|w| = {seen.weight_norm:.1f}, ratio = {seen.trust_ratio:.3f}")
        |w| = 5.0, ratio = 5.000
        """
        if not self.has_trust_ratios():
            remedy = "give it bounds, such as {'trust_ratio': (None, None)}"
            if not self.rule.has_ratio:
                remedy = f"train with {observation.optimizers_with_ratios()}"
            raise TypeError(
                f"{self.name} has no trust ratios to show: {remedy}, or leave TrustRatios out."
            )
        is_new, self._observes = not self._observes, True
        if self._storage:
            if is_new:
                self._storage.ratio_vectors = self._make_ratio_vectors()
            # Steps record nothing for variables that are frozen now. Without this reset, numbers
            # from before the freezing would be shown for them.
            for vector in self._storage.vectors():
                vector.assign(observation.UNSEEN)
        return is_new

    def _make_ratio_vectors(self):
        """Makes the variables in which steps record the norms and trust ratios of the weights.

        Returns the result of `observation.make_vectors`. The optimizer must be built.
        """
        make_vector = functools.partial(self._host.observation_vector, self)
        return observation.make_vectors(self._storage, make_vector)

    def trust_ratios(self) -> list[observation.Observation]:
        """Returns the norms and trust ratios of the latest step: an `Observation` per variable.

        It waits for the device.

        Raises:
            ValueError: if the optimizer is not built or does not observe its trust ratios.
        """
        if not (self._storage and self._storage.ratio_vectors):
            raise ValueError(
                f"{self.name} has no trust ratios on show: call observe_trust_ratios() before the "
                "first step, and train a step."
            )
        vectors = self._storage.vectors()
        values = self._host.fetch(vectors) if vectors else []
        return observation.read(self._planner.plan, self._storage.ratio_vectors, values)

    @property
    def skipped_steps(self) -> int:
        """The number of steps skipped so far because a gradient was not finite."""
        return self._guard.skip_count

    @property
    def spiked_steps(self) -> int:
        """The number of steps skipped so far because the gradient norm was a spike (`on_spike`)."""
        return self._guard.spike_count

    @property
    def gradient_norm(self) -> float | None:
        """The norm of all gradients together in the latest step in which it was finite.

        It is None before such a step, and without `on_spike`, which records the norms.
        """
        norms = self._guard.norms
        return None if norms is None else float(value_of(norms)[-1]) or None

    def nonfinite_weights(self, model: Any = None) -> list[str]:
        """Returns the paths of the weights that are not finite. It waits for the device.

        Args:
            model: A model. All of its weights are checked, including the moving averages of batch
                normalization. Defaults to None: only the variables that this optimizer trains are
                checked.
        """
        trained_variables = self._planner.variables
        weights = trained_variables if model is None else model.weights
        return nonfinite_names(
            self._host.which_are_finite, self._var_key, weights, trained_variables
        )

    def state_of(self, index: int) -> dict[str, Any]:
        """Returns a dict of the slots of a variable by name, with its "average" if there is one.

        Args:
            index: The position of the variable in the build.
        """
        return self._storage.slots_of(index)
