"""Defines `Rule`: an update rule, with what the rest of the package needs to know of it."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Rule:
    """Holds an update rule, and what other parts of the package need to know of it.

    Attributes:
        step: The function of the update, `step(xp, g, w, *slots, lr, t, decay, adapt, axes, ...)`,
            as `tf_lamb.core.rules` describes it.
        slots: The names of the arrays that are stored for each variable, in the order of `step`.
        hyper: Name of a hyper-parameter -> its kind. Each is an argument of the optimizer. The kind
            says which values are valid: `float`, "[0, 1)", `bool`, a dataclass, or another kind of
            `core.checks.hyperparameter`.
        start_rate: The learning rate at which a search for the best one begins.
        transfer_exponent: The exponent a in the rule by which `recipes.transfer` scales the
            learning rate if it knows the noise scale; None if the exponent is not known.
        takes_gain: Whether `AdaScale` accepts the rule. AdaScale multiplies the learning rate by a
            gain, which is not valid for a rule whose step ignores the length of the gradient.
        gains_by_xla: Whether XLA makes the update faster on TensorFlow, on one device. It does not
            for a rule that mainly decomposes matrices.
        gains_by_sharding: Whether an update on several devices is faster if each device computes
            only some of the stacked matrices, even though each device stores all slots. If each
            device stores only a share of the slots (`shard_update`), the matrices are divided for
            every rule that stacks them.
        stacks_if_adapt: The values of `adapt` with which small layers of one shape may be updated
            as one stacked array, whose slices are the layers: the step of an element then depends
            on other elements only through norms over `axes`. A rule's matrices are not meant,
            which `core.stacks` stacks as the rule yields them. Defaults to (), neither, which is
            valid for every rule.
        ratio_needs_bounds: Whether a layer has a trust ratio only if the user gives `bounds`.
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
    stacks_if_adapt: Sequence[bool] = ()

    @property
    def name(self) -> str:
        """The name of the function, by which saved optimizer state refers to the rule."""
        return self.step.__name__

    @property
    def has_ratio(self) -> bool:
        """Whether the rule has a trust ratio and reports it, that is, takes `observe`."""
        return "observe" in inspect.signature(self.step).parameters

    @property
    def always_has_ratio(self) -> bool:
        """Whether every adapted layer has a trust ratio, whatever the user's settings are."""
        return self.has_ratio and not self.ratio_needs_bounds
