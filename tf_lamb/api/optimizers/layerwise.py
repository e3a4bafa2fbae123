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
from tf_lamb.core.step import NONFINITE, TAKEN, Scalars, Slot

Own = TypeVar("Own", bound="Layerwise")
Recipe = recipes.Recipe | recipes.StagedRecipe


class Layerwise:
    """Between the class that a user types and the base class of each Keras.

    A class of optimizers names its `rule`; where slots are not all alike, it has its own
    `slots_of`. The frontend gives its modules, what is typed below, and
    of a variable a vector of `UNSEEN` beside it, `_vector_like(variable, name)`.
    """

    rule: Rule
    settings_class: type[Settings] = Settings
    gradients_are_summed = False  # over replicas, by what measures them on their way here
    gradients_are_gathered = False  # into the accumulators, likewise
    _xp: Any  # the frontend's array namespace,
    _host: Any  # what it does with variables,
    _schedules: Any  # its schedules,
    _counts: Any  # and the dtype of its counters
    _settings: Settings
    _guard: Guard  # plain objects, both: no framework tracks what they hold
    _observes = False
    _plan: plans.Plan | None = None
    _storage: Any = None  # its `Storage`, once it is built
    _is_from_config = False
    _given_rate: float | None = None
    _recipe: Recipe | None = None
    _undecayed: tuple[tuple[object, str], ...] = ()  # keys and paths with numbers

    if TYPE_CHECKING:  # the framework's, and the frontend's
        name: str
        build: Callable
        learning_rate: Any
        iterations: Any
        gradient_accumulation_steps: int | None
        use_ema: bool
        ema_momentum: float
        ema_overwrite_frequency: int | None
        _widest: Any  # the dtype that holds the averages of all variables
        _var_key: Callable
        _index_of: Callable
        _vector_like: Callable
        _averaged: Callable  # variables of a step -> positions whose averages move with them
        _add_iterations: Callable  # counts a step where the scalar that it is given is true
        _make_accumulators: Callable
        _rate_in_config: Callable
        add_variable: Callable
        add_variable_like: Callable
        clip_aggregated: Callable

        def __init__(self, learning_rate, **arguments): ...

    @classmethod
    def _settings_of(cls, arguments) -> Settings:
        """The arguments of the constructor, checked; hyper-parameters of the rule by themselves."""
        own = {
            name: checks.hyperparameter(name, arguments.pop(name), kind)
            for name, kind in cls.rule.hyper.items()
        }
        decay = settings_.weight_decay(
            arguments.pop("weight_decay"), cls._schedules._Schedule._host
        )
        return cls.settings_class(hyperparameters=own, weight_decay=decay, **arguments)

    def _keep_settings(self, settings: Settings, rate):
        """Keeps the settings; hyper-parameters are attributes, as in Keras."""
        self._given_rate = None if callable(rate) else rate
        for name, value in settings.hyperparameters.items():
            setattr(self, name, value)
        self._settings = dataclasses.replace(settings, name=self.name)
        self._guard = Guard(self.name, settings.on_nonfinite, settings.on_spike)

    def slots_of(self, treatment: plans.Treatment, shape: tuple[int, ...]) -> list[Slot]:
        """The slots of a variable, in the order of the rule; the first has the variable's shape."""
        return list(map(Slot, self.rule.slots))

    def declared_by(self, plan: plans.Plan) -> list[list[Slot]]:
        """The slots of each variable of a plan; none where its layer overwrites it."""
        pairs = enumerate(zip(plan.treatments, plan.shapes, strict=True))
        return [[] if i in plan.overwritten else self.slots_of(*each) for i, each in pairs]

    @property
    def _growing(self) -> Stages | None:
        """The micro-batches of an update by optimizer step, if they become more; else None."""
        # Asked of the settings: TensorFlow would track a dict of the optimizer, into checkpoints.
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
        """The optimizer again."""
        config = dict(config)  # in which Keras puts the schedule that it makes
        if isinstance(decay := config.get("weight_decay"), dict):
            config["weight_decay"] = cls._schedules._Schedule._deserialize(decay, custom_objects)
        try:
            made = super().from_config(config, custom_objects)  # type: ignore[misc]
        except TypeError as error:
            raise TypeError(
                f"{error} If the config is of another version, make the optimizer with the "
                "arguments of today, which CHANGELOG lists, and load the weights."
            ) from error
        made._is_from_config = True
        return made

    @classmethod
    def from_recipe(cls: type[Own], recipe: Recipe, **arguments: Any) -> Own:
        """The optimizer of a recipe, with its schedule, exclusions and hyper-parameters.

        It averages weights (`use_ema`) where the recipe has an `ema_momentum`.

        Args:
            recipe: A `Recipe`, or a `StagedRecipe` whose stages differ in the learning rate alone.
            **arguments: Arguments of the constructor, which win over the recipe's.

        Raises:
            TypeError: for what is no recipe.
            ValueError: for the recipe of another optimizer, or one with an argument that this
                one does not have.

        Example:

        >>> import tf_lamb
        >>> recipe = tf_lamb.recipes.published("untuned_lamb_bert", 32768)
        >>> optimizer = tf_lamb.LAMB.from_recipe(recipe)
        """
        rate = check_recipe(recipe).schedule(cls._schedules)
        given = {"learning_rate": rate, **recipe.arguments(cls.__name__)}
        takes = inspect.signature(cls).parameters
        lost = given.keys() - takes
        if lost and not any(each.kind is each.VAR_KEYWORD for each in takes.values()):
            raise ValueError(
                f"{cls.__name__} has no {' or '.join(sorted(lost))}, which the recipe "
                f"{recipe.title} sets: make the recipe without it."
            )
        given["use_ema"] = "ema_momentum" in given
        optimizer = cls(**{**given, **arguments})
        optimizer._recipe = recipe
        return optimizer

    def exclude_from_weight_decay(
        self, var_list: Iterable | None = None, var_names: settings_.Patterns = None
    ) -> None:
        """Excludes variables from weight decay, besides the constructor argument of this name.

        Args:
            var_list: Variables to exclude.
            var_names: Regexes, searched in the variables' paths.

        Raises:
            ValueError, TypeError: after the optimizer was built; for names that are no regexes.
        """
        names = checks.patterns("var_names", var_names) or ()
        if self._plan is not None:
            raise ValueError(
                "exclude_from_weight_decay() was called on an optimizer that is built already. "
                "Call it before the first step, or make a new optimizer."
            )
        # The only one of its path, until the build knows of others.
        self._undecayed += tuple((self._var_key(v), f"{path_of(v)}#1of1") for v in var_list or ())
        patterns = (*(self._settings.exclude_from_weight_decay or ()), *names)
        self._settings = dataclasses.replace(self._settings, exclude_from_weight_decay=patterns)

    @property
    def plan(self) -> plans.Plan | None:
        """One `Treatment` for each variable, in build order; None until the build. Read-only.

        `names` and `shapes` are of the variables; of its `treatments` each has a `decay`, and
        whether its layer is adapted in `adapt`; `multipliers` are of their learning rates, empty if
        all are 1; `table()` is what `describe` prints.

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
        """Prints the plan once it is built, as `tf_lamb.describe` does of a model at any time."""
        if self._plan is None:
            raise ValueError(
                f"{self.name} has no plan before it is built: train a step, call "
                "optimizer.build(model.trainable_variables), or ask tf_lamb.describe(model)."
            )
        self.print_plan(self.plan_now(), print_fn)

    def has_trust_ratios(self) -> bool:
        """Whether its rule has any."""
        return self.rule.has_ratio

    def observe_trust_ratios(self) -> bool:
        """Has every step from now on leave its trust ratios where `trust_ratios` reads them.

        Call it before the step is traced; `TrustRatios` does so for `fit`. It costs a vector of
        four numbers for each variable, which no checkpoint holds.

        Returns:
            Whether this is new, so that a step traced before has to be traced anew.

        Raises:
            TypeError: for an optimizer without trust ratios.

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
        fresh, self._observes = not self._observes, True
        if self._storage:
            if fresh:
                self._make_shown()
            for vector in self._storage.vectors():  # of what is frozen now, old ones would stay
                vector.assign(observation.UNSEEN)
        return fresh

    def trust_ratios(self) -> list[observation.Observation]:
        """Reads each variable's `Observation` of the latest step: waits for the device.

        Raises:
            ValueError: before the optimizer observes and is built.
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
        if self._observes:
            self._storage.shown = observation.vectors(self._storage, self._vector_like)

    @property
    def skipped_steps(self) -> int:
        """The number of steps skipped since the first, for a gradient that was not finite."""
        return self._guard.skipped

    @property
    def spiked_steps(self) -> int:
        """The number of steps skipped since the first, because their gradient was a spike."""
        return self._guard.spikes_so_far

    @property
    def gradient_norm(self) -> float | None:
        """The norm of all gradients of the latest finite step, or None; needs `on_spike`."""
        norms = self._guard.norms
        return None if norms is None else float(value_of(norms)[-1]) or None

    def nonfinite_weights(self, model: Any = None) -> list[str]:
        """The paths of the weights of a model that are not finite: waits for the device.

        Without a model it looks at what this optimizer trains, and not at moving averages.
        """
        weights = None if model is None else model.weights
        return self._guard.nonfinite(self._host.which_are_finite, self._var_key, weights)

    def plan_for(self, variables) -> plans.Plan:
        """The plan that a build for these variables makes; nothing of it is kept."""
        plan = plans.plan_for(
            [path_of(v) for v in variables],
            [tuple(v.shape) for v in variables],
            **self._settings.planning(),
            excluded_by_identity=[self._var_key(v) in dict(self._undecayed) for v in variables],
            overwritten=list(map(is_overwritten, variables)),
        )
        plan = self._settings.planned(plan)
        return self._with_sizes(plan, variables)

    def _with_sizes(self, plan, variables):
        """The plan that knows what is near zero now, if a step is as long as its weights are."""
        bounds = self._settings.hyperparameters.get("bounds")
        lifted = bounds and any(each and each[0] > 0 for each in vars(bounds).values())
        if lifted or not self.has_trust_ratios():
            return plan
        arrays = {
            i: self._host.array_of(variable)
            for i, variable in enumerate(variables)
            if plan.treatments[i].adapt and i not in plan.frozen
        }
        known = {i: array for i, array in arrays.items() if array is not None and array.size}
        return plan.holding({i: root_mean_square(array) for i, array in known.items()})

    def plan_now(self) -> plans.Plan:
        """The plan of the build, and what is near zero now."""
        return self._with_sizes(self._plan, self._guard.weights)

    def print_plan(self, plan: plans.Plan, print_fn: Callable[[str], Any]) -> None:
        """Prints the plan as a table, and what to do about layers near zero."""
        print_fn(plan.table())
        if message := self._warning_near_zero(plan):
            print_fn(message)

    def _warning_near_zero(self, plan):
        excluded = self._settings.exclude_from_layer_adaptation
        if excluded is None:
            objects = map(exact, dict(self._undecayed).values())
            excluded = (*(self._settings.exclude_from_weight_decay or ()), *objects)
        return plan.warning_near_zero(excluded)

    def _make_plan(self, variables):
        for variable in variables:
            checks.float_dtype(path_of(variable), variable.dtype)
        self._plan = self.plan_for(variables)
        self._guard.weights = tuple(variables)
        numbers = numbered(self._plan.paths)
        names = dict(zip(map(self._var_key, variables), numbers, strict=True))
        self._undecayed = tuple((key, names.get(key, name)) for key, name in self._undecayed)
        if message := self._plan.warning():
            warn(message)
        # Of what a file holds the weights come after the build.
        if not self._is_from_config and (message := self._warning_near_zero(self._plan)):
            warn(message)
        return self._plan

    def _check_built_for(self, variables, known):
        """An optimizer belongs to the variables it was built for."""
        for variable in variables:
            if self._var_key(variable) not in known:
                raise ValueError(
                    f"{self.name} was built for other variables than {path_of(variable)!r}: its "
                    "slots and its plan belong to them. Make a new optimizer for a new model, "
                    f"for instance {type(self).__name__}.from_config(optimizer.get_config())."
                )

    def is_frozen(self, variable: Any) -> bool:
        """Whether the plan freezes a variable of the build."""
        frozen = self._plan.frozen if self._plan else ()
        return bool(frozen) and self._index_of(variable) in frozen

    def without_frozen(self, pairs: Sequence) -> list:
        """The pairs of a gradient and its variable that the plan does not freeze."""
        kept = [pair for pair in pairs if not self.is_frozen(pair[1])]
        given, left = ([v for g, v in each if g is not None] for each in (pairs, kept))
        if given and not left:
            raise ValueError(
                f"{self.name} was given gradients of frozen variables alone: "
                f"treatments gives {path_of(given[0])}, for instance, the rate 0. Leave the step "
                "out, or narrow the pattern."
            )
        return kept

    def without_gradient(self, variables: Sequence, unfrozen: Iterable) -> list:
        """The other unfrozen variables that accumulate: the update takes their sums, too."""
        if not self._storage.accumulators:
            return []
        # torch's compiler takes an iterator that `union` is given for empty (torch 2.13).
        given = self._storage.plan.frozen | {self._index_of(v) for v in variables}
        return [variable for variable in unfrozen if self._index_of(variable) not in given]

    # -- what both frontends build, and count ------------------------------------------------------

    def _make_storage(self, variables, plan, averages):
        """Makes all that there is beside the variables; the host has made their averages."""
        declared = self.declared_by(plan)
        every = zip(variables, declared, strict=True)
        made = [(self._add_slots(*each), self._add_master(each[0])) for each in every]
        slots, masters = map(list, zip(*made, strict=True))
        storage = Storage(plan, declared, variables, slots, masters, native=self._host.native)
        if self.use_ema:
            storage.averages = averages
            storage.has_averages = self._add_counter("has_averages")
        if steps := self.gradient_accumulation_steps:
            storage.steps = "growing" if self._growing else steps  # sums go on under other stages
            storage.micro_step = self._add_counter("micro_step")
            storage.accumulators = self._make_accumulators(variables)
        self._storage = storage
        self._count_skipped()
        if window := self._guard.window:
            self._guard.norms = self.add_variable((window,), dtype="float32", name="gradient_norms")
            self._guard.spiked = self._add_counter("spiked_steps")

    def _add_counter(self, name):
        return self.add_variable((), dtype=self._counts, name=name)

    def _add_slots(self, variable, declared):
        is_double, chosen = self._dtype_of(variable) == "float64", self._settings.dtypes.slots
        return tuple(
            self.add_variable_like(
                variable,
                slot.name,
                "float64" if is_double else slot.dtype or chosen,
                slot.shape,
                slot.initial,
            )
            for slot in declared
        )

    def _add_master(self, variable):
        """The float32 master of a half-precision variable; None where there is to be none."""
        is_half = self._dtype_of(variable) in ("float16", "bfloat16")
        if self._settings.dtypes.masters and is_half and not is_overwritten(variable):
            return self.add_variable_like(variable, "master", "float32")
        return None

    def _dtype_of(self, variable):
        return self._host.native(variable).dtype

    def _count_skipped(self):
        if self._guard.is_on and self._guard.counter is None:
            self._guard.counter = self._add_counter("skipped_steps")

    def _follow_loss_scale(self, move: Callable, scale: Callable) -> None:
        """Has a dynamic loss scale move once an update, which is skipped where it is too large."""
        self._guard.scaled(move, scale)
        if self._storage:
            self._count_skipped()

    def _for_update(self) -> dict[str, Any]:
        """What the update is made with, in each framework."""
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
        """The layers and the state that an update takes besides gradients and scalars."""
        storage, guard, native = self._storage, self._guard, self._host.native
        indices = list(map(self._index_of, variables))
        state = storage.state(indices, variables, self._averaged(variables))._replace(
            skipped=list(map(native, guard.counters)), spikes=list(map(native, guard.spikes))
        )
        return storage.plan.layers(indices, map(self._index_of, missing)), state

    def _is_update(self):
        """Whether this micro-batch ends an update."""
        steps = self._growing or self.gradient_accumulation_steps
        if not steps:
            return self._xp.convert_to_tensor(True)
        done = self._host.native(self._storage.micro_step) + 1
        return accumulation.is_due(self._xp, steps, self.iterations, done)

    def _count(self, trained, became):
        """Only updates are counted: neither a micro-step before one, nor a step that is skipped."""
        xp, storage, native = self._xp, self._storage, self._host.native
        due = self._is_update()
        stepped = due & xp.equal(became, TAKEN)
        if move_scale := self._guard.move_scale:
            move_scale(due, xp.equal(became, NONFINITE))
        if storage.steps:
            micro_step = native(storage.micro_step)
            done = micro_step + 1
            micro_step.assign(xp.where(due, xp.zeros_like(done), done))
        if self.use_ema:
            made, frozen = native(storage.has_averages), storage.plan.frozen
            waiting = set(range(len(storage.weights))) - frozen - self._averaged(trained)
            for average, stored in storage.averaged(waiting):  # theirs, too, begin with the first
                own, begun = map(xp.convert_to_tensor, (average, native(stored.weight)))
                average.assign(xp.where(made > 0, own, xp.cast(begun, own.dtype)))
            for average, stored in storage.averaged(frozen):
                self._host.put(average, stored.weight)
            made.assign(xp.maximum(made, xp.cast(stepped, made.dtype)))
        return self._add_iterations(stepped)

    def _named_state(self) -> named.State:
        return named.of(self)

    def _scalars(self) -> Scalars:
        """The inputs of a step besides gradients and state."""
        xp, t, frequency = self._xp, self.iterations + 1, self.ema_overwrite_frequency
        decay = self._settings.weight_decay
        return Scalars(
            lr=factor(xp, self.learning_rate),
            t=t,
            is_update=self._is_update(),
            # As in Keras 3, the averages begin with the weights of the first step. tf_keras has
            # those of the build, which may be random ones that pretrained weights have replaced.
            ema_momentum=xp.cast(self.use_ema and self._storage.has_averages > 0, self._widest)
            * self.ema_momentum,
            ema_overwrites=xp.equal(t % frequency, 0) if frequency else xp.convert_to_tensor(False),
            decay=factor(xp, decay(self.iterations)) if callable(decay) else None,
            micro_batches=self._storage.micro_step + 1 if self._storage.steps else None,
            is_searching=self._guard.is_searching(),
        )

    def finalize_variable_values(self, var_list: Any) -> None:
        """At the end of training, the averages replace the weights if `use_ema` has made any."""
        warn_if_past_schedule_end(self, lambda: step_of(self))
        if named.has_averages(self):
            wanted = {self._var_key(variable) for variable in var_list}
            for average, stored in self._storage.averaged():
                if self._var_key(stored.weight) in wanted:
                    for each in stored.copies:
                        self._host.put(each, average)
        step, each = step_of(self), self.gradient_accumulation_steps or 1
        if stages := self._growing:
            each = accumulation.batches(stages, step, 1)
        self._guard.warn_at_end(step, waiting_in(self), each, self.nonfinite_weights)
        self._warn_at_end()

    def _warn_at_end(self):
        """Warns, at the end of training, of what only a class knows."""

    def state_of(self, index: int) -> dict[str, Any]:
        """By name the slots of a variable of the build, and its "average" if there is one."""
        return self._storage.of(index)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, exclusions and all; identities have become paths."""
        with with_base_rate(self):
            rate = undo_float32_rounding(self._rate_in_config(), self._given_rate)
        config = {"learning_rate": rate, **self._settings.config()}
        config |= {name: getattr(self, name, config[name]) for name in settings_.OF_HOST}
        if callable(config["weight_decay"]):
            serialize = self._schedules._Schedule._serialize
            config["weight_decay"] = serialize(config["weight_decay"])
        if names := dict(self._undecayed).values():
            before = config["exclude_from_weight_decay"] or ()
            config["exclude_from_weight_decay"] = [*before, *map(exact, names)]
        return config


@contextlib.contextmanager
def with_base_rate(optimizer):
    """Inside it, an optimizer within an AdaScale has the rate that it was given."""
    rate = optimizer._learning_rate
    if not hasattr(rate, "outer"):  # AdaScale's alone has
        yield
        return
    seams.use_rate(optimizer, rate.base)
    try:
        yield
    finally:
        seams.use_rate(optimizer, rate)


def warn_if_past_schedule_end(optimizer, steps: Callable[[], int]) -> None:
    """Warns, at the end of `fit`, if the last steps were taken at a learning rate of 0."""
    end = schedules.zero_from(optimizer._learning_rate)
    if end is None or (taken := steps()) <= end:
        return
    recipe = optimizer._recipe
    made = "" if recipe is None else f", as {recipe.title} at {batch(recipe)} has it"
    what = "schedule" if recipe is None else "recipe"
    warn(
        f"{optimizer.name}: the learning rate was 0 in the last {taken - end:,} of {taken:,} "
        f"steps, because its schedule ends after {end:,}{made}. Train with the batch and the "
        f"epochs that the {what} was made for, or make the {what} for those of this run."
    )
