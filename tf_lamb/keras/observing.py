"""Trust ratios on show: what door 1 adds to `tf_lamb.api.optimizers.observation`, on any backend.

Seams into Keras 3 (3.15.1): `_distribution_strategy`; an optimizer's state is what its `variables`
and those of its wrapper list.
"""

import contextlib

import keras
from keras import ops

from tf_lamb.api.optimizers import observation as observing
from tf_lamb.keras import host


class Observing(observing.Observing):
    """Mixed into the optimizers of this door."""

    _hidden = False

    @property
    def variables(self):
        """As in Keras; while trust ratios are observed on JAX, followed by what shows them.

        A step on JAX is a pure function: it can only leave what it was handed.
        """
        own = super().variables
        if self._hidden or keras.backend.backend() != "jax":
            return own
        return [*own, *self._observed_variables]

    def save_own_variables(self, store):
        """As in Keras: what is on show is not saved."""
        with self._unobserved():
            super().save_own_variables(store)

    def load_own_variables(self, store):
        """As in Keras: what is on show is not loaded."""
        with self._unobserved():
            super().load_own_variables(store)

    @contextlib.contextmanager
    def _unobserved(self):
        self._hidden = True
        try:
            yield
        finally:
            self._hidden = False

    def hide_from(self, wrapper):
        """Has a wrapper of this optimizer, which lists its variables, not save them either."""
        for name in ("save_own_variables", "load_own_variables"):
            if name not in vars(wrapper):
                setattr(wrapper, name, self._without_observed(getattr(wrapper, name)))

    def _without_observed(self, method):
        def wrapped(store):
            with self._unobserved():
                method(store)

        return wrapped

    def _vector_beside(self, variable, name):
        if keras.backend.backend() == "tensorflow":
            from tf_lamb.tensorflow.observing import vector_beside

            with host.outside_of_any_graph():
                strategy = self._distribution_strategy
                return vector_beside(host.native(variable), strategy, name)
        return keras.Variable(ops.full((4,), -1.0), dtype="float32", trainable=False, name=name)

    def _recorder(self, variables):
        """What a rule calls to leave its ratio in the vectors of a layer's variables, or None."""
        indices = [self._get_variable_index(v) for v in variables]
        vectors = [vector for own in self._observed_of(indices) for vector in own]
        if not vectors:
            return None

        def observe(*seen):
            scalars = observing.summary(ops, *seen)
            values = ops.stack([ops.cast(scalar, "float32") for scalar in scalars])
            for vector in vectors:
                self.assign(vector, values)

        return observe

    @staticmethod
    def _which_are_finite(variables):
        return ops.convert_to_numpy(ops.stack([ops.all(ops.isfinite(v)) for v in variables]))

    def _fetch(self, vectors):
        if not vectors:
            return []
        values = ops.stack([ops.convert_to_tensor(vector) for vector in vectors])
        return ops.convert_to_numpy(values).tolist()
