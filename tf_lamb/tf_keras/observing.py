"""Trust ratios on show: what door 2 adds to `tf_lamb.api.optimizers.observation`."""

from tf_lamb.api.optimizers import observation as observing
from tf_lamb.tensorflow import nonfinite
from tf_lamb.tensorflow.observing import fetch, vector_beside


class Observing(observing.Observing):
    """Mixed into the optimizers of this door."""

    def _vector_beside(self, variable, name):
        return vector_beside(variable, self._distribution_strategy, name)

    _fetch = staticmethod(fetch)
    _which_are_finite = staticmethod(nonfinite.which)

    def has_traced_a_step(self) -> bool:
        """Whether some step has been traced, which does not learn what it was not traced with."""
        update = getattr(self, "_update", None)
        return update is not None and update.is_traced
