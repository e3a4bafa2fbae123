"""Makes an optimizer's plan: which variables have weight decay, are adapted, or are frozen."""

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from tf_lamb.api.optimizers.frontend import KeyedOptimizer
from tf_lamb.api.optimizers.settings import Settings
from tf_lamb.api.variables import is_overwritten, path_of, root_mean_square
from tf_lamb.core import checks
from tf_lamb.core import plan as plans
from tf_lamb.core.messages import warn
from tf_lamb.core.patterns import exact_pattern, numbered_paths


class Planner:
    """Makes the plan of an optimizer from its settings, and holds it after the build.

    Args:
        settings: The settings of the optimizer.
        array_of: A function that returns the value of a variable as a NumPy array, or None.
        key: A function that returns a key that identifies a variable.
        has_ratio: Whether the optimizer has trust ratios, which make the steps of weights near
            zero too short.

    Attributes:
        settings: The settings. `exclude_from_weight_decay()` of the optimizer adds patterns.
        plan: The plan; None before the build.
        variables: The variables that the optimizer was built for; empty before the build.
    """

    def __init__(self, settings: Settings, array_of: Callable, key: Callable, has_ratio: bool):
        self.settings = settings
        self.plan: plans.Plan | None = None
        self.variables: tuple = ()
        self._array_of, self._key_of, self._has_ratio = array_of, key, has_ratio
        self._excluded_from_decay: tuple[
            tuple[object, str], ...
        ] = ()  # pairs (key of a variable, its path with its number among equal paths)

    def exclude_from_decay(self, variables: Iterable) -> None:
        """Excludes variables from weight decay by identity, not by a pattern of their paths.

        Args:
            variables: The variables.
        """
        # `path#1of2` is the first of two variables with one path. Before the build the other
        # variables are not known, so each counts as the only one with its path: "#1of1".
        self._excluded_from_decay += tuple(
            (self._key_of(variable), f"{path_of(variable)}#1of1") for variable in variables
        )

    def excluded_paths(self) -> list[str]:
        """Returns, for each variable that `exclude_from_decay` got, a regex of its path."""
        return [exact_pattern(path) for path in dict(self._excluded_from_decay).values()]

    def plan_for(self, variables: Sequence) -> plans.Plan:
        """Returns the plan that a build for these variables would make, without storing it.

        Args:
            variables: The variables.
        """
        excluded_keys = dict(self._excluded_from_decay)
        plan = plans.plan_for(
            [path_of(variable) for variable in variables],
            [tuple(variable.shape) for variable in variables],
            **self.settings.plan_arguments(),
            excluded_by_identity=[
                self._key_of(variable) in excluded_keys for variable in variables
            ],
            overwritten=list(map(is_overwritten, variables)),
        )
        return self._with_near_zero(self.settings.checked_plan(plan), variables)

    def build(self, variables: Sequence, will_load: bool) -> plans.Plan:
        """Makes and stores the plan, and warns of what is probably a mistake.

        It warns of patterns that match no variable, and of layers whose weights are near zero.

        Args:
            variables: The variables that the optimizer trains.
            will_load: Whether a file may replace the present weights later. If so, there is no
                warning about layers whose weights are near zero.

        Returns:
            The plan.
        """
        for variable in variables:
            checks.float_dtype(path_of(variable), variable.dtype)
        self.plan = self.plan_for(variables)
        self.variables = tuple(variables)
        path_by_key = dict(
            zip(map(self._key_of, variables), numbered_paths(self.plan.paths), strict=True)
        )
        self._excluded_from_decay = tuple(
            (key, path_by_key.get(key, path)) for key, path in self._excluded_from_decay
        )
        if message := self.plan.unmatched_warning():
            warn(message)
        if not will_load and (message := self._warning_near_zero(self.plan)):
            warn(message)
        return self.plan

    @property
    def frozen(self) -> frozenset[int]:
        """The positions of the variables that the plan freezes; empty before the build."""
        return self.plan.frozen if self.plan else frozenset()

    def current_plan(self) -> plans.Plan:
        """Returns the plan, updated with the variables whose weights are near zero now."""
        return self._with_near_zero(self.plan, self.variables)

    def print_plan(self, plan: plans.Plan, print_fn: Callable[[str], Any]) -> None:
        """Prints a plan as a table, and a warning if the weights of a layer are at or near zero.

        Args:
            plan: The plan.
            print_fn: The function that is called with each text.
        """
        print_fn(plan.table())
        if message := self._warning_near_zero(plan):
            print_fn(message)

    def _with_near_zero(self, plan, variables):
        """Returns a plan with the positions of the variables whose weights are near zero now.

        Such weights may stay near zero in two kinds of optimizers: those that keep the norms of
        matrices, and those that have trust ratios and no lower bound in `bounds`, whose steps are
        proportional to the norm of the weight. For any other optimizer the plan is returned as it
        is.
        """
        bounds = self.settings.hyperparameters.get("bounds")
        has_lower_bound = bounds and any(
            interval and (interval[0] or 0) > 0 for interval in vars(bounds).values()
        )
        follows_norm = self._has_ratio and not has_lower_bound
        if not (follows_norm or self.settings.keeps_norm):
            return plan
        arrays = {
            i: self._array_of(variable)
            for i, variable in enumerate(variables)
            if plan.treatments[i].adapt and i not in plan.frozen
        }
        known_arrays = {i: array for i, array in arrays.items() if array is not None and array.size}
        return plan.with_near_zero(
            {i: root_mean_square(array) for i, array in known_arrays.items()}
        )

    def _warning_near_zero(self, plan):
        """Returns the warning for layers whose weights are at or near zero; None if there are none.

        A trust ratio makes a step proportional to the norm of the weights, so the steps of these
        layers stay tiny. An optimizer that keeps the norms of matrices leaves these weights near
        zero. The warning names an `exclude_from_layer_adaptation` with which the layers can grow.
        """
        settings, exclusions = self.settings, self.settings.exclude_from_layer_adaptation
        if exclusions is None and settings.default_exclusions is not None:
            # Only those that match: the user may copy this list from the warning, and a pattern in
            # the user's list that matches nothing causes another warning.
            exclusions = tuple(
                name
                for name in settings.default_exclusions
                if any(name in path for path in plan.paths)
            )
        elif exclusions is None:
            patterns = settings.exclude_from_weight_decay or ()
            exclusions = (*patterns, *self.excluded_paths())
        return plan.near_zero_warning(exclusions, settings.keeps_norm)


def check_built_for(optimizer: KeyedOptimizer, variables: Iterable, known_keys: Container) -> None:
    """Raises ValueError if an optimizer was not built for one of the variables.

    Args:
        optimizer: The optimizer.
        variables: The variables.
        known_keys: The keys of the variables that it was built for.
    """
    for variable in variables:
        if optimizer._var_key(variable) not in known_keys:
            raise ValueError(
                f"{optimizer.name} was built for other variables than {path_of(variable)!r}: its "
                "slots and its plan belong to them. Make a new optimizer for a new model, "
                f"for instance {type(optimizer).__name__}.from_config(optimizer.get_config())."
            )
