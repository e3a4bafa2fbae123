"""The half of an optimizer that needs no host: its settings, its plan, and what it tells."""

import ctypes
import dataclasses
import functools
import numbers
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from tf_lamb.core import checks, recipes
from tf_lamb.core import plan as plans
from tf_lamb.core.settings import Settings
from tf_lamb.core.warn import warn


class Layerwise:
    """Mixed into the base class of each door, which owns all that touches an array.

    A class of optimizers names its `rule` and its `slot_names`. The host gives `_var_key`.
    """

    rule: Callable
    slot_names: tuple[str, ...]
    settings_class: type[Settings] = Settings
    name: str
    get_config: Callable
    _var_key: Callable
    _schedules: ModuleType  # of the door
    _settings: Settings
    _plan: plans.Plan | None = None
    _given_rate: float | None = None
    _recipe: recipes.Recipe | recipes.StagedRecipe | None = None
    _undecayed: tuple[tuple[object, str], ...] = ()  # keys and paths excluded by identity

    if TYPE_CHECKING:  # the door's

        def __init__(self, learning_rate, **arguments): ...

    def _take(self, settings: Settings, rate):
        """Keeps the settings; hyper-parameters are attributes, as in Keras."""
        self._given_rate = None if callable(rate) else rate
        for name, value in settings.hyperparameters.items():
            setattr(self, name, value)
        self._settings = dataclasses.replace(settings, name=self.name)
        self._bound_rule = functools.partial(type(self).rule, **settings.hyperparameters)

    def __setattr__(self, name, value):
        settings = self.__dict__.get("_settings")
        if settings and (name == "weight_decay" or name in settings.hyperparameters):
            raise AttributeError(
                f"{name} of {self.name} was read when it was made, and setting it to {value!r} "
                f"would change nothing. Make another: {type(self).__name__}.from_config("
                f"{{**optimizer.get_config(), {name!r}: {value!r}}})."
            )
        if name == "learning_rate":
            self._given_rate = float(value) if isinstance(value, numbers.Real) else None
        super().__setattr__(name, value)

    @classmethod
    def from_recipe(cls, recipe, **arguments):
        """The optimizer of a recipe, with its schedule, exclusions and hyper-parameters.

        Args:
            recipe: A `Recipe`, or a `StagedRecipe` whose stages differ in the learning rate alone.
            **arguments: Arguments of the constructor, which win over the recipe's.

        Raises:
            TypeError: for what is no recipe.
            ValueError: for the recipe of another optimizer.

        Example:

        >>> import tf_lamb
        >>> recipe = tf_lamb.recipes.untuned_lamb_bert(32768)
        >>> optimizer = tf_lamb.LAMB.from_recipe(recipe)
        """
        given = {
            "learning_rate": recipes.schedule(recipe, cls._schedules),
            **recipes.arguments(recipe, cls.__name__),
        }
        optimizer = cls(**{**given, **arguments})
        optimizer._recipe = recipe
        return optimizer

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Excludes variables from weight decay, beside the constructor argument of this name.

        Args:
            var_list: Variables to exclude.
            var_names: Regexes, searched in the variables' paths.

        Raises:
            ValueError: after the optimizer was built, when its plan is made.
            ValueError, TypeError: for names that are no list of regexes.
        """
        names = checks.patterns("var_names", var_names) or ()
        if self._plan is not None:
            raise ValueError(
                "exclude_from_weight_decay() was called on an optimizer that is built already. "
                "Call it before the first step, or make a new optimizer."
            )
        self._undecayed += tuple((self._var_key(v), path_of(v)) for v in var_list or ())
        patterns = (*(self._settings.exclude_from_weight_decay or ()), *names)
        self._settings = dataclasses.replace(self._settings, exclude_from_weight_decay=patterns)

    def describe(self, print_fn=print):
        """Prints the plan: each variable's weight decay, and whether it has a trust ratio."""
        if self._plan is None:
            raise ValueError(
                f"{self.name} has no plan before it is built: train a step, or call "
                "optimizer.build(model.trainable_variables)."
            )
        print_fn(self._plan.table())

    def _make_plan(self, variables):
        for variable in variables:
            checks.float_dtype(path_of(variable), variable.dtype)
        undecayed = {key for key, _ in self._undecayed}
        self._plan = plans.plan_for(
            [path_of(v) for v in variables],
            [tuple(v.shape) for v in variables],
            **self._settings.planning(),
            excluded_by_identity=[self._var_key(v) in undecayed for v in variables],
        )
        if message := self._plan.warning():
            warn(message)

    def _refuse_strangers(self, variables, known):
        """An optimizer belongs to the variables it was built for."""
        for variable in variables:
            if self._var_key(variable) not in known:
                raise ValueError(
                    f"{self.name} was built for other variables than {path_of(variable)!r}: its "
                    "slots and its plan belong to them. Make a new optimizer for a new model, "
                    f"for instance {type(self).__name__}.from_config(optimizer.get_config())."
                )

    def _config(self, rate):
        """The constructor's arguments; identities have become paths.

        Args:
            rate: Of the host's config. Of what a variable holds, it is the number that was given,
                as long as the variable holds its rounding to float32.
        """
        given = self._given_rate
        if given is not None and ctypes.c_float(given).value == rate:
            rate = given
        config = {"learning_rate": rate, **self._settings.config()}
        if self._undecayed:
            paths = [plans.exact(path) for _, path in self._undecayed]
            config["exclude_from_weight_decay"] = [
                *(config["exclude_from_weight_decay"] or ()), *paths
            ]  # fmt: skip
        return config


def path_of(variable) -> str:
    """`variable.path` in Keras 3; of a TensorFlow variable, its name without what varies."""
    if path := getattr(variable, "path", None):
        return path
    name = variable.name
    if hasattr(variable, "_sharded_container"):  # a part, on one of several parameter servers
        name = name.rpartition("/part_")[0]
    return plans.stable_path(name)
