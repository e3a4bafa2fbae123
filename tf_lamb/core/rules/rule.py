"""Defines Rule: an update rule, with what optimizers, recipes and searches need to know of it."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Rule:
    """Holds an update rule, and what other parts of the package need to know of it.

    Attributes:
        step: The function of the update, `step(xp, g, w, *slots, lr, t, decay, adapt, axes, ...)`,
            as `tf_lamb.core.rules` describes it.
        slots: The names of the arrays that are stored for each variable, in the order of `step`.
        hyper: Hyper-parameter -> kind, each an argument of the optimizer. A kind is what
            `core.checks.hyperparameter` takes: `float`, "[0, 1)", `bool`, a dataclass, ...
        start_rate: The learning rate at which a search begins.
        transfer_exponent: The exponent a by which `recipes.transfer` scales the learning rate with
            a noise scale; None if it is not known.
        takes_gain: Whether `AdaScale` accepts the rule. Its gain means nothing for a rule that
            ignores the length of a gradient.
        gains_by_xla: Whether XLA makes the update faster on TensorFlow, on one device. It does not
            where the update consists of decompositions of matrices.
        gains_by_sharding: Whether it is faster to divide stacked matrices among the devices if each
            device keeps all slots. If each keeps a share of the slots (`shard_update`), it is done
            for every rule that stacks matrices.
        ratio_needs_bounds: Whether a layer has a trust ratio only where the user gives `bounds`.
    """

    step: Callable
    slots: tuple[str, ...]
    hyper: Mapping[str, Any]
    start_rate: float = 0.01
    transfer_exponent: float | None = None
    takes_gain: bool = True
    gains_by_xla: bool = True
    gains_by_sharding: bool = False
    ratio_needs_bounds: bool = False

    @property
    def name(self) -> str:
        """The name of the function, by which saved optimizer state refers to the rule."""
        return self.step.__name__

    @property
    def has_ratio(self) -> bool:
        """Whether the rule has a trust ratio and reports it: whether it takes `observe`."""
        return "observe" in inspect.signature(self.step).parameters

    @property
    def always_has_ratio(self) -> bool:
        """Whether every layer that is adapted has a trust ratio."""
        return self.has_ratio and not self.ratio_needs_bounds
