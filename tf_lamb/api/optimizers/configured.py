"""The settings of an optimizer: its constructor's arguments, its recipe, and its config."""

import contextlib
import dataclasses
import inspect
import numbers
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tf_lamb.api import seams
from tf_lamb.api.elsewhere import Elsewhere
from tf_lamb.api.keras_schedules import arrays_to_numbers
from tf_lamb.api.optimizers import settings as settings_
from tf_lamb.api.optimizers.guard import Guard, advice_for
from tf_lamb.api.optimizers.planner import Planner
from tf_lamb.api.optimizers.settings import Settings, undo_float32_rounding
from tf_lamb.core import checks, recipes
from tf_lamb.core.accumulation import Stages
from tf_lamb.core.recipes.recipe import check_recipe
from tf_lamb.core.rules import Rule

if TYPE_CHECKING:
    from tf_lamb.api.optimizers.frontend import FrontendMembers, KerasOptimizer

    class _Host(FrontendMembers, KerasOptimizer): ...
else:
    # At run time the optimizer classes for each Keras define the members of `_Host`. It is not a
    # Protocol then, because every optimizer would get the metaclass of Protocol.
    _Host = object


OptimizerT = TypeVar("OptimizerT", bound="Configured")
Recipe = recipes.Recipe | recipes.StagedRecipe


class Configured(Elsewhere, _Host):
    """Holds the settings of an optimizer, which it gets from arguments, a recipe or a config.

    Attributes:
        rule: The update rule, with its slots and its hyper-parameters.
        settings_class: The class that checks and holds the arguments of the constructor.
    """

    rule: Rule
    settings_class: type[Settings] = Settings
    # `Settings`, `Planner` and `Guard` are plain classes, so that Keras and TensorFlow do not track
    # the objects that their instances hold, and do not save them.
    _settings: Settings
    _planner: Planner
    _guard: Guard
    _is_from_config = False
    _user_rate: float | None = None  # the learning rate before it was rounded to float32
    _recipe: Recipe | None = None

    if TYPE_CHECKING:

        def __init__(self, learning_rate, **arguments): ...

    @classmethod
    def _settings_of(cls, arguments) -> Settings:
        """Returns the constructor's arguments as `Settings`, which checks them.

        The hyper-parameters of the rule, such as beta_1, become one of its fields. They and
        `weight_decay` are removed from the dict `arguments`.
        """
        rule_values = {
            name: checks.hyperparameter(name, arguments.pop(name), kind)
            for name, kind in cls.rule.hyper.items()
        }
        decay = settings_.weight_decay(
            arguments.pop("weight_decay"), cls._schedules._Schedule._base_schedule
        )
        return cls.settings_class(hyperparameters=rule_values, weight_decay=decay, **arguments)

    def _store_settings(self, settings: Settings, rate):
        """Stores the settings, and makes the `Planner` and the `Guard` from them.

        The `Planner` decides which variables have weight decay, are adapted, or are frozen. The
        `Guard` counts the steps that are skipped, and warns of them. Each hyper-parameter, such as
        beta_1, also becomes an attribute, as in Keras's optimizers.
        """
        self._user_rate = None if callable(rate) else rate
        for name, value in settings.hyperparameters.items():
            setattr(self, name, value)
        self._settings = dataclasses.replace(settings, name=self.name)
        self._planner = Planner(
            self._settings, self._host.array_of, self._var_key, self.has_trust_ratios()
        )
        self._guard = Guard(
            self.name, advice_for(self.rule), settings.on_nonfinite, settings.on_spike
        )

    def has_trust_ratios(self) -> bool:
        """Returns whether the optimizer has trust ratios; Muon and SOAP only do with `bounds`."""
        return self.rule.has_ratio and self._settings.has_ratio

    @property
    def _accumulation_stages(self) -> Stages | None:
        """Dict from an optimizer step to the number of micro-batches per update from that step on.

        It is None if this number does not change during training. The dict is read from the
        settings, because TensorFlow would track a dict that is an attribute of the optimizer, and
        write it into checkpoints.
        """
        steps = self._settings.gradient_accumulation_steps
        return steps if isinstance(steps, Mapping) else None

    def __setattr__(self, name, value):
        settings = self.__dict__.get("_settings")
        if settings and name in settings.fixed_arguments():
            raise AttributeError(
                f"{name} of {self.name} was read when it was made, and setting it to {value!r} "
                f"would change nothing. Make another: {type(self).__name__}.from_config("
                f"{{**optimizer.get_config(), {name!r}: {value!r}}})."
            )
        if name == "learning_rate":
            self._user_rate = float(value) if isinstance(value, numbers.Real) else None
        super().__setattr__(name, value)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Makes an optimizer from the result of `get_config`.

        Args:
            config: The constructor's arguments by name.
            custom_objects: Dict from a name to a class that a serialized schedule may need.

        Returns:
            The optimizer, not built.

        Raises:
            TypeError: if the config has an argument that the constructor does not have.
        """
        config = dict(config)  # copied, because Keras replaces a serialized schedule in it
        if isinstance(rate := config.get("learning_rate"), dict):
            config["learning_rate"] = arrays_to_numbers(rate)
        if isinstance(decay := arrays_to_numbers(config.get("weight_decay")), dict):
            config["weight_decay"] = cls._schedules._Schedule._deserialize(decay, custom_objects)
        try:
            optimizer = super().from_config(config, custom_objects)  # type: ignore[misc]
        except TypeError as error:
            raise TypeError(
                f"{error} If the config is of another version, make the optimizer with the "
                f"arguments of today, which help({cls.__name__}) lists, and load the weights."
            ) from error
        optimizer._is_from_config = True
        return optimizer

    @classmethod
    def from_recipe(cls: type[OptimizerT], recipe: Recipe, **arguments: Any) -> OptimizerT:
        """Makes an optimizer with the schedule, exclusions and hyper-parameters of a recipe.

        The optimizer averages weights (`use_ema`) if the recipe has an `ema_momentum`.

        Args:
            recipe: A `Recipe`, or a `StagedRecipe` whose stages differ in the learning rate alone.
            **arguments: Arguments of the constructor. They override those of the recipe.

        Raises:
            TypeError: if `recipe` is not a recipe.
            ValueError: if the recipe is for another optimizer, or sets an argument that this one
                does not have.

        Example:

        >>> import tf_lamb
        >>> recipe = tf_lamb.recipes.published("untuned_lamb_bert", 32768)
        >>> optimizer = tf_lamb.LAMB.from_recipe(recipe)
        """
        rate = check_recipe(recipe).schedule(cls._schedules)
        recipe_arguments = {"learning_rate": rate, **recipe.arguments(cls.__name__)}
        parameters = inspect.signature(cls).parameters
        unknown = recipe_arguments.keys() - parameters
        if unknown and not any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
        ):
            raise ValueError(
                f"{cls.__name__} has no {' or '.join(sorted(unknown))}, which the recipe "
                f"{recipe.title} sets: make the recipe without it."
            )
        recipe_arguments["use_ema"] = "ema_momentum" in recipe_arguments
        optimizer = cls(**{**recipe_arguments, **arguments})
        optimizer._recipe = recipe
        return optimizer

    def exclude_from_weight_decay(
        self, var_list: Iterable | None = None, var_names: settings_.Patterns = None
    ) -> None:
        """Excludes variables from weight decay, in addition to the constructor's argument.

        Args:
            var_list: Variables to exclude.
            var_names: Regexes, searched in the variables' paths.

        Raises:
            ValueError: if the optimizer is already built, or if a name is not a valid regex.
            TypeError: if `var_names` is not a list of strings, or `var_list` holds strings.
        """
        variables = [var_list] if isinstance(var_list, str) else list(var_list or ())
        if any(isinstance(variable, str) for variable in variables):
            raise TypeError(
                "The first argument of exclude_from_weight_decay() is a list of variables: write "
                f"exclude_from_weight_decay(var_names={variables!r:.200})."
            )
        names = checks.patterns("var_names", var_names) or ()
        if self._planner.plan is not None:
            raise ValueError(
                "exclude_from_weight_decay() was called on an optimizer that is built already. "
                "Call it before the first step, or make a new optimizer."
            )
        self._planner.exclude_from_decay(variables)
        patterns = (*(self._settings.exclude_from_weight_decay or ()), *names)
        settings = dataclasses.replace(self._settings, exclude_from_weight_decay=patterns)
        self._settings = self._planner.settings = settings

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments by name.

        For a variable that was excluded from weight decay as an object, `exclude_from_weight_decay`
        has a regex of its path.
        """
        with with_base_rate(self):
            rate = arrays_to_numbers(self._rate_in_config())
            rate = undo_float32_rounding(rate, self._user_rate)
        config = {"learning_rate": rate, **self._settings.config()}
        config |= {name: getattr(self, name, config[name]) for name in settings_.HOST_ARGUMENTS}
        if callable(config["weight_decay"]):
            serialize = self._schedules._Schedule._serialize
            config["weight_decay"] = arrays_to_numbers(serialize(config["weight_decay"]))
        if paths := self._planner.excluded_paths():
            patterns = config["exclude_from_weight_decay"] or ()
            config["exclude_from_weight_decay"] = [*patterns, *paths]
        return config


@contextlib.contextmanager
def with_base_rate(optimizer):
    """Takes AdaScale's gain out of an optimizer's learning rate, in a `with` block.

    AdaScale replaces the learning rate of the optimizer that it wraps by that rate times a gain.
    Any other optimizer is left as it is.
    """
    rate = optimizer._learning_rate
    if not hasattr(rate, "outer"):  # only the learning rate that AdaScale sets has this attribute
        yield
        return
    seams.use_rate(optimizer, rate.base)
    try:
        yield
    finally:
        seams.use_rate(optimizer, rate)
