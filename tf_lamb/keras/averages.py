"""The moving averages of the weights, which Keras 3 makes and `SwapEMAWeights` swaps in.

Seam (private API) of Keras 3 (3.15.1): `_model_variables_moving_average`, a list which Keras's
`build` sets and `SwapEMAWeights` reads. In `LayerwiseOptimizer` this attribute is the property
`swappable_averages`, which stores the list as `_moving_averages`.
"""

from tf_lamb.api.optimizers import named
from tf_lamb.api.variables import is_overwritten
from tf_lamb.keras import arrays


def average_dtype(variables):
    """Returns the widest dtype among the averages of variables: "float64" or "float32"."""
    dtypes = {arrays.compute_dtype(variable.dtype) for variable in variables}
    return "float64" if "float64" in dtypes else "float32"


def _read_averages(self):
    """Returns the moving averages that `SwapEMAWeights` swaps in; [] before the first update.

    Raises:
        ValueError: If a variable has no average, or its average has another dtype.
    """
    # This line has to come first: before the build has set the list, it raises AttributeError.
    # TensorFlow may read the property at that time, while it traces a graph, in which the variable
    # that `has_averages` reads would have no value.
    averages = self._moving_averages
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


def _set_averages(self, averages):
    """Stores the averages that Keras's `build` has made."""
    # Written into `__dict__`, because `__setattr__` would make TensorFlow track the list a second
    # time: it already tracks it under the name `_model_variables_moving_average`.
    self.__dict__["_moving_averages"] = averages


swappable_averages = property(_read_averages, _set_averages)  # for `LayerwiseOptimizer`
