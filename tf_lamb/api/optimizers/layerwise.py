"""The framework-independent half of an optimizer: its settings, plan and reports."""

import contextlib
import dataclasses
import functools
import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tf_lamb.api import seams
from tf_lamb.api.optimizers import named, observation
from tf_lamb.api.optimizers import settings as settings_
from tf_lamb.api.optimizers.guard import Guard
from tf_lamb.api.optimizers.settings import Settings, undo_float32_rounding
from tf_lamb.api.optimizers.storage import Storage
from tf_lamb.api.schedules import factor
from tf_lamb.api.variables import (
    is_overwritten,
    path_of,
    root_mean_square,
    step_of,
    value_of,
    waiting_in,
)
from tf_lamb.core import accumulation, checks, recipes, schedules
from tf_lamb.core import plan as plans
from tf_lamb.core.accumulation import Stages
from tf_lamb.core.messages import warn
from tf_lamb.core.patterns import exact, numbered
from tf_lamb.core.recipes.recipe import batch, check_recipe
from tf_lamb.core.rules import Rule
from tf_lamb.core.stored import NONFINITE, TAKEN, Scalars, Slot

Own = TypeVar("Own", bound="Layerwise")
Recipe = recipes.Recipe | recipes.StagedRecipe


class Layerwise:
    """A mixin between the class that a user constructs and the optimizer base class of each Keras.

    A class of optimizers sets its `rule`. It overrides `slots_of` where its slots differ from
    variable to variable. The frontend provides its modules (`_xp`, `_host`, `_schedules`,
    `_counts`), the members that are typed under `TYPE_CHECKING`, and `_vector_like(variable,
    name)`, which makes a vector of `UNSEEN` beside a variable.

    Attributes:
        rule: The update rule, with its slots and its hyper-parameters.
        settings_class: The class that checks and holds the arguments of the constructor.
        gradients_are_summed: Whether a wrapper that measures the gradients has already summed them
            over replicas.
        gradients_are_gathered: Whether such a wrapper has already added them to the accumulators.
    """

    rule: Rule
    settings_class: type[Settings] = Settings
    gradients_are_summed = False
    gradients_are_gathered = False
    _xp: Any  # the array namespace of the frontend
    _host: Any  # the frontend's functions on variables
    _schedules: Any  # the frontend's module of schedules
    _counts: Any  # the dtype of the frontend's counters
    # The settings and the guard are plain objects, so that no framework tracks what they hold.
    _settings: Settings
    _guard: Guard
    _observes = False  # whether steps record their trust ratios
    _plan: plans.Plan | None = None  # None until the build
    _storage: Any = None  # the `Storage`; None until the build
    _is_from_config = False
    _given_rate: float | None = None  # the learning rate before it was rounded to float32
    _recipe: Recipe | None = None
    _undecayed: tuple[tuple[object, str], ...] = ()  # pairs (variable key, numbered path)

    if TYPE_CHECKING:  # members of the framework's base class and of the frontend
        name: str
        build: Callable
        learning_rate: Any
        iterations: Any
        gradient_accumulation_steps: int | None
        use_ema: bool
        ema_momentum: float
        ema_overwrite_frequency: int | None
        _widest: Any  # the dtype that can hold the averages of all variables
        _var_key: Callable
        _index_of: Callable
        _vector_like: Callable
        _averaged: Callable  # variables of a step -> positions whose averages move in that step
        _add_iterations: Callable  # counts a step where its scalar argument is true
        _make_accumulators: Callable
        _rate_in_config: Callable
        add_variable: Callable
        add_variable_like: Callable
        clip_aggregated: Callable

        def __init__(self, learning_rate, **arguments): ...

    @classmethod
    def _settings_of(cls, arguments) -> Settings:
        """Checks the constructor's arguments and separates the rule's hyper-parameters."""
        rule_values = {
            name: checks.hyperparameter(name, arguments.pop(name), kind)
            for name, kind in cls.rule.hyper.items()
        }
        decay = settings_.weight_decay(
            arguments.pop("weight_decay"), cls._schedules._Schedule._host
        )
        return cls.settings_class(hyperparameters=rule_values, weight_decay=decay, **arguments)

    def _keep_settings(self, settings: Settings, rate):
        """Stores the settings, and sets each hyper-parameter as an attribute, as Keras does."""
        self._given_rate = None if callable(rate) else rate
        for name, value in settings.hyperparameters.items():
            setattr(self, name, value)
        self._settings = dataclasses.replace(settings, name=self.name)
        self._guard = Guard(self.name, settings.on_nonfinite, settings.on_spike)

    def slots_of(self, treatment: plans.Treatment, shape: tuple[int, ...]) -> list[Slot]:
        """Returns the slots of a variable, in the order in which the rule takes them.

        Args:
            treatment: The plan's decision on the variable.
            shape: The shape of the variable.

        Returns:
            The slots; the first has the shape of the variable.
        """
        return list(map(Slot, self.rule.slots))

    def declared_by(self, plan: plans.Plan) -> list[list[Slot]]:
        """Returns the slots of each variable of a plan; none where its layer overwrites it."""
        pairs = enumerate(zip(plan.treatments, plan.shapes, strict=True))
        return [
            [] if index in plan.overwritten else self.slots_of(*treatment_and_shape)
            for index, treatment_and_shape in pairs
        ]

    @property
    def _growing(self) -> Stages | None:
        """The dict from optimizer step to micro-batches per update; None if their number is fixed.

        It is read from the settings, because TensorFlow would track a dict that is an attribute
        of the optimizer, and write it into checkpoints.
        """
        steps = self._settings.gradient_accumulation_steps
        return steps if isinstance(steps, Mapping) else None

    def __setattr__(self, name, value):
        settings = self.__dict__.get("_settings")
        if settings and name in settings.read_once():
            raise AttributeError(
                f"{name} of {self.name} was read when it was made, and setting it to {value!r} "
                f"would change nothing. Make another: {type(self).__name__}.from_config("
                f"{{**optimizer.get_config(), {name!r}: {value!r}}})."
            )
        if name == "learning_rate":
            self._given_rate = float(value) if isinstance(value, numbers.Real) else None
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
        config = dict(config)  # a copy, because Keras writes the schedule that it makes into it
        if isinstance(decay := config.get("weight_decay"), dict):
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
    def from_recipe(cls: type[Own], recipe: Recipe, **arguments: Any) -> Own:
        """Makes the optimizer of a recipe, with its schedule, exclusions and hyper-parameters.

        It averages weights (`use_ema`) if the recipe has an `ema_momentum`.

        Args:
            recipe: A `Recipe`, or a `StagedRecipe` whose stages differ in the learning rate alone.
            **arguments: Arguments of the constructor, which win over the recipe's.

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
            TypeError: if `var_names` is not a list of strings.
        """
        names = checks.patterns("var_names", var_names) or ()
        if self._plan is not None:
            raise ValueError(
                "exclude_from_weight_decay() was called on an optimizer that is built already. "
                "Call it before the first step, or make a new optimizer."
            )
        # Each counts as the only variable of its path until the build knows all variables.
        self._undecayed += tuple(
            (self._var_key(variable), f"{path_of(variable)}#1of1") for variable in var_list or ()
        )
        patterns = (*(self._settings.exclude_from_weight_decay or ()), *names)
        self._settings = dataclasses.replace(self._settings, exclude_from_weight_decay=patterns)

    @property
    def plan(self) -> plans.Plan | None:
        """The plan: one `Treatment` for each variable, in build order; None until the build.

        It is read-only. `names` and `shapes` are those of the variables. Each entry of
        `treatments` has the weight decay in `decay` and whether the layer is adapted in `adapt`.
        `multipliers` are factors of the learning rate, and empty if all are 1. `table()` returns
        the text that `describe` prints.

        Example:

        >>> import tensorflow as tf, tf_lamb
        >>> layer = tf.keras.layers.Dense(2, name="dense")
        >>> layer.build((None, 4))
        >>> optimizer = tf_lamb.LAMB(0.1, weight_decay=0.01, exclude_from_weight_decay=["bias"])
        >>> optimizer.build(layer.trainable_variables)
        >>> [(each.decay, each.adapt) for each in optimizer.plan.treatments]
        [(0.01, True), (0.0, False)]
        """
        return self._plan

    def describe(self, print_fn: Callable[[str], Any] = print) -> None:
        """Prints the plan of a built optimizer; `tf_lamb.describe` prints that of a model.

        Args:
            print_fn: The function that is called with each text. Defaults to `print`.

        Raises:
            ValueError: if the optimizer is not built.
        """
        if self._plan is None:
            raise ValueError(
                f"{self.name} has no plan before it is built: train a step, call "
                "optimizer.build(model.trainable_variables), or ask tf_lamb.describe(model)."
            )
        self.print_plan(self.plan_now(), print_fn)

    def has_trust_ratios(self) -> bool:
        """Returns whether the rule has trust ratios."""
        return self.rule.has_ratio

    def observe_trust_ratios(self) -> bool:
        """Makes every later step record its trust ratios, for `trust_ratios` to read.

        Call it before the step is traced; `TrustRatios` does so for `fit`. It costs a vector of
        four numbers for each variable. Checkpoints do not hold these vectors.

        Returns:
            True if the optimizer did not observe before: a step that is already traced then has
            to be traced again.

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
            raise TypeError(
                f"{self.name} has no trust ratios to show: train with LAMB or LARS, or leave "
                "TrustRatios out."
            )
        is_new, self._observes = not self._observes, True
        if self._storage:
            if is_new:
                self._make_shown()
            # Otherwise variables that are frozen now would keep their old numbers.
            for vector in self._storage.vectors():
                vector.assign(observation.UNSEEN)
        return is_new

    def trust_ratios(self) -> list[observation.Observation]:
        """Reads the `Observation` of each variable in the latest step. It waits for the device.

        Raises:
            ValueError: if the optimizer is not built or does not observe its trust ratios.
        """
        if not (self._storage and self._storage.shown):
            raise ValueError(
                f"{self.name} has no trust ratios on show: call observe_trust_ratios() before the "
                "first step, and train a step."
            )
        vectors = self._storage.vectors()
        values = self._host.fetch(vectors) if vectors else []
        return observation.read(self._plan, self._storage.shown, values)

    def _make_shown(self):
        """Makes the vectors that record trust ratios, if the optimizer observes them."""
        if self._observes:
            self._storage.shown = observation.vectors(self._storage, self._vector_like)

    @property
    def skipped_steps(self) -> int:
        """The number of steps skipped so far because a gradient was not finite."""
        return self._guard.skipped

    @property
    def spiked_steps(self) -> int:
        """The number of steps skipped so far because their gradient was a spike."""
        return self._guard.spikes_so_far

    @property
    def gradient_norm(self) -> float | None:
        """The norm of all gradients of the latest finite step; None without `on_spike`."""
        norms = self._guard.norms
        return None if norms is None else float(value_of(norms)[-1]) or None

    def nonfinite_weights(self, model: Any = None) -> list[str]:
        """Returns the paths of the weights that are not finite. It waits for the device.

        Args:
            model: The model whose weights are checked. Defaults to None: the variables that this
                optimizer trains, without moving averages.
        """
        weights = None if model is None else model.weights
        return self._guard.nonfinite(self._host.which_are_finite, self._var_key, weights)

    def plan_for(self, variables) -> plans.Plan:
        """Returns the plan that a build for these variables would make, without storing it."""
        plan = plans.plan_for(
            [path_of(variable) for variable in variables],
            [tuple(variable.shape) for variable in variables],
            **self._settings.planning(),
            excluded_by_identity=[
                self._var_key(variable) in dict(self._undecayed) for variable in variables
            ],
            overwritten=list(map(is_overwritten, variables)),
        )
        plan = self._settings.planned(plan)
        return self._with_sizes(plan, variables)

    def _with_sizes(self, plan, variables):
        """Adds to a plan which variables are near zero now, if trust ratios scale their steps."""
        bounds = self._settings.hyperparameters.get("bounds")
        has_lower_bound = bounds and any(
            interval and interval[0] > 0 for interval in vars(bounds).values()
        )
        if has_lower_bound or not self.has_trust_ratios():
            return plan
        arrays = {
            i: self._host.array_of(variable)
            for i, variable in enumerate(variables)
            if plan.treatments[i].adapt and i not in plan.frozen
        }
        available = {i: array for i, array in arrays.items() if array is not None and array.size}
        return plan.holding({i: root_mean_square(array) for i, array in available.items()})

    def plan_now(self) -> plans.Plan:
        """Returns the plan of the build, with the variables that are near zero now."""
        return self._with_sizes(self._plan, self._guard.weights)

    def print_plan(self, plan: plans.Plan, print_fn: Callable[[str], Any]) -> None:
        """Prints a plan as a table, and a warning if there are layers near zero.

        Args:
            plan: The plan.
            print_fn: The function that is called with each text.
        """
        print_fn(plan.table())
        if message := self._warning_near_zero(plan):
            print_fn(message)

    def _warning_near_zero(self, plan):
        """Returns the warning for layers near zero, or None."""
        excluded = self._settings.exclude_from_layer_adaptation
        if excluded is None:
            exact_paths = map(exact, dict(self._undecayed).values())
            excluded = (*(self._settings.exclude_from_weight_decay or ()), *exact_paths)
        return plan.warning_near_zero(excluded)

    def _make_plan(self, variables):
        """Makes and stores the plan of a build, and warns of what looks wrong in it."""
        for variable in variables:
            checks.float_dtype(path_of(variable), variable.dtype)
        self._plan = self.plan_for(variables)
        self._guard.weights = tuple(variables)
        numbered_paths = numbered(self._plan.paths)
        path_by_key = dict(zip(map(self._var_key, variables), numbered_paths, strict=True))
        self._undecayed = tuple((key, path_by_key.get(key, path)) for key, path in self._undecayed)
        if message := self._plan.warning():
            warn(message)
        # An optimizer from a config is built before the weights are loaded from the file.
        if not self._is_from_config and (message := self._warning_near_zero(self._plan)):
            warn(message)
        return self._plan

    def _check_built_for(self, variables, known):
        """Raises ValueError if the optimizer was not built for one of the variables."""
        for variable in variables:
            if self._var_key(variable) not in known:
                raise ValueError(
                    f"{self.name} was built for other variables than {path_of(variable)!r}: its "
                    "slots and its plan belong to them. Make a new optimizer for a new model, "
                    f"for instance {type(self).__name__}.from_config(optimizer.get_config())."
                )

    def is_frozen(self, variable: Any) -> bool:
        """Returns whether the plan freezes a variable of the build."""
        frozen = self._plan.frozen if self._plan else ()
        return bool(frozen) and self._index_of(variable) in frozen

    def without_frozen(self, pairs: Sequence) -> list:
        """Returns the pairs (gradient, variable) whose variable the plan does not freeze.

        Raises:
            ValueError: if there are gradients, but of frozen variables alone.
        """
        unfrozen = [pair for pair in pairs if not self.is_frozen(pair[1])]
        with_gradient, trained = (
            [variable for gradient, variable in group if gradient is not None]
            for group in (pairs, unfrozen)
        )
        if with_gradient and not trained:
            raise ValueError(
                f"{self.name} was given gradients of frozen variables alone: "
                f"treatments gives {path_of(with_gradient[0])}, for instance, the rate 0. Leave "
                "the step out, or narrow the pattern."
            )
        return unfrozen

    def without_gradient(self, variables: Sequence, unfrozen: Iterable) -> list:
        """Returns the variables that have no gradient in this step but a sum of earlier ones.

        An update takes their accumulated gradients, too.

        Args:
            variables: The variables that have a gradient in this step.
            unfrozen: All variables that are trainable now.

        Returns:
            The variables of `unfrozen` that are not in `variables` and that the plan does not
            freeze; none if the optimizer does not accumulate.
        """
        if not self._storage.accumulators:
            return []
        # torch's compiler takes an iterator that is passed to `union` for empty (torch 2.13).
        excluded = self._storage.plan.frozen | {
            self._index_of(with_gradient) for with_gradient in variables
        }
        return [variable for variable in unfrozen if self._index_of(variable) not in excluded]

    # -- what both frontends build and count -------------------------------------------------------

    def _make_storage(self, variables, plan, averages):
        """Makes the slots, masters, sums and counters; the host has made the averages."""
        declared = self.declared_by(plan)
        pairs = zip(variables, declared, strict=True)
        slots_and_masters = [(self._add_slots(*pair), self._add_master(pair[0])) for pair in pairs]
        slots, masters = map(list, zip(*slots_and_masters, strict=True))
        storage = Storage(plan, declared, variables, slots, masters, native=self._host.native)
        if self.use_ema:
            storage.averages = averages
            storage.has_averages = self._add_counter("has_averages")
        if steps := self.gradient_accumulation_steps:
            # The sums of a growing batch continue if its stages change.
            storage.steps = "growing" if self._growing else steps
            storage.micro_step = self._add_counter("micro_step")
            storage.accumulators = self._make_accumulators(variables)
        self._storage = storage
        self._count_skipped()
        if window := self._guard.window:
            self._guard.norms = self.add_variable((window,), dtype="float32", name="gradient_norms")
            self._guard.spiked = self._add_counter("spiked_steps")

    def _add_counter(self, name):
        """Adds a scalar variable that counts."""
        return self.add_variable((), dtype=self._counts, name=name)

    def _add_slots(self, variable, declared):
        """Adds the slots of a variable in their dtypes, and returns them as a tuple."""
        is_double, chosen_dtype = self._dtype_of(variable) == "float64", self._settings.dtypes.slots
        return tuple(
            self.add_variable_like(
                variable,
                slot.name,
                "float64" if is_double else slot.dtype or chosen_dtype,
                slot.shape,
                slot.initial,
            )
            for slot in declared
        )

    def _add_master(self, variable):
        """Makes the float32 master of a half-precision variable; returns None where none is due."""
        is_half = self._dtype_of(variable) in ("float16", "bfloat16")
        if self._settings.dtypes.masters and is_half and not is_overwritten(variable):
            return self.add_variable_like(variable, "master", "float32")
        return None

    def _dtype_of(self, variable):
        """Returns the dtype of the framework's variable of a variable of Keras."""
        return self._host.native(variable).dtype

    def _count_skipped(self):
        """Adds the counter of skipped steps, if the guard is on and has none."""
        if self._guard.is_on and self._guard.counter is None:
            self._guard.counter = self._add_counter("skipped_steps")

    def _follow_loss_scale(self, move: Callable, scale: Callable) -> None:
        """Registers a dynamic loss scale, which moves once an update.

        An update whose gradients overflow under the scale is skipped.
        """
        self._guard.scaled(move, scale)
        if self._storage:
            self._count_skipped()

    def _for_update(self) -> dict[str, Any]:
        """Returns the keyword arguments of the `Update` of each framework."""
        accelerated = self._host.has_accelerator()
        return {
            "rule": functools.partial(self.rule.step, **self._settings.for_rule(accelerated)),
            "stacks": accelerated,
            "clip": self.clip_aggregated,
            "accumulation_steps": self.gradient_accumulation_steps,
            "refusal": self._guard.refusal,
            "deviations": self._guard.deviations,
        }

    def _work(self, variables, missing=()):
        """Returns the layers and the state that an update takes besides gradients and scalars."""
        storage, guard, native = self._storage, self._guard, self._host.native
        indices = list(map(self._index_of, variables))
        state = storage.state(indices, variables, self._averaged(variables))._replace(
            skipped=list(map(native, guard.counters)), spikes=list(map(native, guard.spikes))
        )
        return storage.plan.layers(indices, map(self._index_of, missing)), state

    def _is_update(self):
        """Returns whether this micro-batch ends an update, as a boolean tensor."""
        steps = self._growing or self.gradient_accumulation_steps
        if not steps:
            return self._xp.convert_to_tensor(True)
        micro_batches = self._host.native(self._storage.micro_step) + 1
        return accumulation.is_due(self._xp, steps, self.iterations, micro_batches)

    def _count(self, trained, became):
        """Counts the micro-step, and the step if it was an update that was not skipped."""
        xp, storage, native = self._xp, self._storage, self._host.native
        is_due = self._is_update()
        stepped = is_due & xp.equal(became, TAKEN)
        if move_scale := self._guard.move_scale:
            move_scale(is_due, xp.equal(became, NONFINITE))
        if storage.steps:
            micro_step = native(storage.micro_step)
            micro_batches = micro_step + 1
            micro_step.assign(xp.where(is_due, xp.zeros_like(micro_batches), micro_batches))
        if self.use_ema:
            has_averages, frozen = native(storage.has_averages), storage.plan.frozen
            unstepped = set(range(len(storage.weights))) - frozen - self._averaged(trained)
            # The averages of these variables begin with the first update, too.
            for average, stored in storage.averaged(unstepped):
                current, initial = map(xp.convert_to_tensor, (average, native(stored.weight)))
                average.assign(xp.where(has_averages > 0, current, xp.cast(initial, current.dtype)))
            for average, stored in storage.averaged(frozen):
                self._host.put(average, stored.weight)
            has_averages.assign(xp.maximum(has_averages, xp.cast(stepped, has_averages.dtype)))
        return self._add_iterations(stepped)

    def _named_state(self) -> named.State:
        """Returns the state by name, which is saved and loaded."""
        return named.of(self)

    def _scalars(self) -> Scalars:
        """Returns the inputs of a step besides gradients and state."""
        xp, t, frequency = self._xp, self.iterations + 1, self.ema_overwrite_frequency
        decay = self._settings.weight_decay
        return Scalars(
            lr=factor(xp, self.learning_rate),
            t=t,
            is_update=self._is_update(),
            # The averages begin with the weights of the first step, as in Keras 3. tf_keras begins
            # with the weights of the build, which may be random ones that pretrained weights have
            # replaced since.
            ema_momentum=xp.cast(self.use_ema and self._storage.has_averages > 0, self._widest)
            * self.ema_momentum,
            ema_overwrites=xp.equal(t % frequency, 0) if frequency else xp.convert_to_tensor(False),
            decay=factor(xp, decay(self.iterations)) if callable(decay) else None,
            micro_batches=self._storage.micro_step + 1 if self._storage.steps else None,
            is_searching=self._guard.is_searching(),
        )

    def finalize_variable_values(self, var_list: Any) -> None:
        """Ends a training: replaces weights by their averages, and warns of skipped steps.

        Args:
            var_list: The variables whose averages, if `use_ema` has made any, replace them.
        """
        warn_if_past_schedule_end(self, lambda: step_of(self))
        if named.has_averages(self):
            keys = {self._var_key(variable) for variable in var_list}
            for average, stored in self._storage.averaged():
                if self._var_key(stored.weight) in keys:
                    for each in stored.copies:
                        self._host.put(each, average)
        step, each = step_of(self), self.gradient_accumulation_steps or 1
        if stages := self._growing:
            each = accumulation.batches(stages, step, 1)
        self._guard.warn_at_end(step, waiting_in(self), each, self.nonfinite_weights)
        self._warn_at_end()

    def _warn_at_end(self):
        """Warns, at the end of training, of what only a subclass knows; nothing by default."""

    def state_of(self, index: int) -> dict[str, Any]:
        """Returns a dict of the slots of a variable by name, with its "average" if there is one.

        Args:
            index: The position of the variable in the build.
        """
        return self._storage.of(index)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments by name.

        Variables that were excluded from weight decay as objects are in it as patterns of their
        paths.
        """
        with with_base_rate(self):
            rate = undo_float32_rounding(self._rate_in_config(), self._given_rate)
        config = {"learning_rate": rate, **self._settings.config()}
        config |= {name: getattr(self, name, config[name]) for name in settings_.OF_HOST}
        if callable(config["weight_decay"]):
            serialize = self._schedules._Schedule._serialize
            config["weight_decay"] = serialize(config["weight_decay"])
        if paths := dict(self._undecayed).values():
            patterns = config["exclude_from_weight_decay"] or ()
            config["exclude_from_weight_decay"] = [*patterns, *map(exact, paths)]
        return config


@contextlib.contextmanager
def with_base_rate(optimizer):
    """Gives an optimizer its base learning rate in the `with` block, if AdaScale wraps it."""
    rate = optimizer._learning_rate
    if not hasattr(rate, "outer"):  # only the rate that AdaScale sets has this attribute
        yield
        return
    seams.use_rate(optimizer, rate.base)
    try:
        yield
    finally:
        seams.use_rate(optimizer, rate)


def warn_if_past_schedule_end(optimizer, steps: Callable[[], int]) -> None:
    """Warns, at the end of `fit`, if the last steps were taken at a learning rate of 0.

    Args:
        optimizer: The optimizer.
        steps: A function that returns the number of steps taken. It is called only where the
            schedule ends at 0, because it waits for the device.
    """
    end = schedules.zero_from(optimizer._learning_rate)
    if end is None or (step_count := steps()) <= end:
        return
    recipe = optimizer._recipe
    origin = "" if recipe is None else f", as {recipe.title} at {batch(recipe)} has it"
    noun = "schedule" if recipe is None else "recipe"
    warn(
        f"{optimizer.name}: the learning rate was 0 in the last {step_count - end:,} of "
        f"{step_count:,} steps, because its schedule ends after {end:,}{origin}. Train with the "
        "batch and the "
        f"epochs that the {noun} was made for, or make the {noun} for those of this run."
    )
