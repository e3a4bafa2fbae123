"""The declaration of a rule, from which optimizers, recipes and searches know it."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Rule:
    """Holds an update rule, and what follows from it elsewhere.

    Attributes:
        step: The mathematics, `step(xp, g, w, *slots, lr, t, decay, adapt, axes, ...)`, as
            `tf_lamb.core.rules` describes it.
        slots: The names of the arrays that are stored for each variable, in the order of `step`.
        hyper: Hyper-parameter -> kind, each an argument of the optimizer. A kind is what
            `core.checks.hyperparameter` takes: `float`, "[0, 1)", `bool`, a dataclass, ...
        start_rate: The learning rate at which a search begins.
        transfer_exponent: a of `recipes.transfer` with a noise scale; None where it is not known.
        takes_gain: Whether AdaScale's gain means anything. It does not where the rule ignores the
            length of a gradient.
        gains_by_xla: Whether XLA makes the update faster on TensorFlow, on one device. It does not
            where the update consists of decompositions of matrices.
        gains_by_dealing: Whether it pays to deal matrices out to devices that each keep all state.
            Where devices keep shares of the state, it pays for every rule.
        ratio_needs_bounds: Whether a layer has a trust ratio only where the user gives `bounds`.
    """

    step: Callable
    slots: tuple[str, ...]
    hyper: Mapping[str, Any]
    start_rate: float = 0.01
    transfer_exponent: float | None = None
    takes_gain: bool = True
    gains_by_xla: bool = True
    gains_by_dealing: bool = False
    ratio_needs_bounds: bool = False

    @property
    def name(self) -> str:
        """The name of the function, by which saved state refers to its rule."""
        return self.step.__name__

    @property
    def has_ratio(self) -> bool:
        """Whether the rule has a trust ratio and reports it: whether it takes `observe`."""
        return "observe" in inspect.signature(self.step).parameters

    @property
    def always_has_ratio(self) -> bool:
        """Whether every layer that is adapted has a trust ratio."""
        return self.has_ratio and not self.ratio_needs_bounds
