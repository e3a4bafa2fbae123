"""Makes a class of optimizers from an update rule that a user writes."""

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping

from tf_lamb.api.optimizers import settings
from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.core import checks, rules
from tf_lamb.core.rules import Rule

# The keyword arguments that a rule gets at each step.
_STEP_ARGUMENTS = ("lr", "t", "decay", "adapt", "axes")
_ANY_NUMBER = "(-inf, inf)"
# Argument of every optimizer class that `settings.Shared` does not have -> default and annotation.
_EXCLUSIONS = {
    "weight_decay": (0.0, settings.WeightDecay),
    "exclude_from_weight_decay": (None, settings.Patterns),
    "exclude_from_layer_adaptation": (None, settings.Patterns),
}


def make_rule(
    step: Callable, ranges: Mapping[str, str], start_rate: float, transfer_exponent: float | None
) -> Rule:
    """Makes a `Rule` from a function, whose signature gives its slots and hyper-parameters.

    Args:
        step: The function.
        ranges: Dict from a hyper-parameter to the interval that it has to lie in.
        start_rate: The default of the learning rate.
        transfer_exponent: As for `optimizer_of`.

    Returns:
        The rule.

    Raises:
        TypeError: for a signature that an update cannot call, a default that is no number, or a
            hyper-parameter with the name of an argument that every optimizer has.
        ValueError: if `ranges` has a name that is no hyper-parameter, or a text that is no
            interval; or if a default is outside of its interval.
    """
    parameters = inspect.signature(step).parameters
    arrays = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    by_keyword = {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    missing = [name for name in _STEP_ARGUMENTS if name not in by_keyword]
    has_star_argument = any(
        p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values()
    )
    if arrays[:3] != ["xp", "g", "w"] or missing or has_star_argument:
        raise TypeError(
            f"{step.__name__}{inspect.signature(step)} is no rule: it has to be "
            f"{step.__name__}(xp, g, w, SLOTS, *, {', '.join(_STEP_ARGUMENTS)}, HYPERPARAMETERS), "
            "where SLOTS are the arrays that it keeps, such as m, and each of the HYPERPARAMETERS "
            "has a default. With observe=None it may show trust ratios, too."
        )
    defaults = {
        name: parameter.default
        for name, parameter in by_keyword.items()
        if name not in (*_STEP_ARGUMENTS, "observe")
    }
    if unknown := [name for name in ranges if name not in defaults]:
        raise ValueError(f"{step.__name__} has no {unknown[0]!r}, of which ranges has an interval.")
    if taken := [name for name in defaults if name in _arguments_of_all()]:
        raise TypeError(
            f"{taken[0]!r} of {step.__name__} is an argument that every optimizer has: give the "
            "hyper-parameter another name."
        )
    hyper = {name: _kind_of(step, name, default, ranges) for name, default in defaults.items()}
    for name, kind in hyper.items():
        try:
            checks.hyperparameter(name, defaults[name], kind)
        except ValueError as error:
            raise ValueError(f"The default of {name} in {step.__name__}: {error}") from error
    slots = tuple(arrays[3:])
    return Rule(_with_checked_result(step, slots), slots, hyper, start_rate, transfer_exponent)


def _arguments_of_all():
    """Returns the names of the arguments that the class of every rule has."""
    shared = [parameter.name for parameter in settings.shared_parameters()]
    return {"self", "learning_rate", "name", *_EXCLUSIONS, *shared}


def _with_checked_result(step, slots):
    """Wraps the function of a rule, so that each call checks the arrays that it returns.

    They have to be the weight and the slots, each of the weight's shape. Otherwise the wrapped
    function raises TypeError or ValueError. JAX would broadcast an array of another shape.
    """

    @functools.wraps(step)
    def checked(*arrays, **settings):
        result = step(*arrays, **settings)
        values = result if isinstance(result, (tuple, list)) else (result,)
        if len(values) != 1 + len(slots):
            raise TypeError(
                f"{step.__name__} has to return {', '.join(('w', *slots))}, and it returned "
                f"{len(values)} instead of {1 + len(slots)}."
            )
        shape = _known_shape(arrays[2])
        for name, value in zip(("w", *slots), values, strict=True):
            if None not in (shape, _known_shape(value)) and _known_shape(value) != shape:
                raise ValueError(
                    f"{step.__name__} has to return {name} in the shape of w, {shape}, and it "
                    f"returned the shape {_known_shape(value)}."
                )
        return values

    return checked


def _known_shape(value):
    """Returns the shape of an array or number as a tuple; None where TensorFlow does not know it.

    A part of TensorFlow's shapes may be unknown while a step is traced.
    """
    shape = getattr(value, "shape", ())
    if getattr(shape, "rank", 0) is None or None in tuple(shape):
        return None
    return tuple(shape)


def _kind_of(step, name, default, ranges):
    """Returns how values of a hyper-parameter are checked: a type, or an interval such as "[0, 1)".

    A number has the interval that `ranges` gives it, or else that of its name; without either it
    may be any number. Where the default is an int and the name is none that this package knows, so
    are the values: whole numbers in the interval, or from 0 on. Raises TypeError if the default is
    no number and no bool, and ValueError if the text in `ranges` is no interval.
    """
    if isinstance(default, bool):
        return bool
    if isinstance(default, (int, float)):
        if name in ranges:
            interval = _checked_interval(name, ranges[name])
            return _whole_numbers(interval) if isinstance(default, int) else interval
        if name in checks.RANGES:
            return float
        if re.fullmatch(r"beta_\d+", name):
            return "[0, 1)"
        if isinstance(default, int):
            return range(min(default, 0), checks.MAX_STEPS + 1)
        return _ANY_NUMBER
    suffix = "" if default is inspect.Parameter.empty else f", not {default!r}"
    raise TypeError(
        f"{name} of {step.__name__} needs a default that is a number, True or False{suffix}: write "
        f"{name}=0.9, for instance."
    )


def _checked_interval(name, text):
    """Returns the text of an interval, such as "[0, 1)". Raises ValueError if it is none."""
    try:
        ends = re.fullmatch(r"[\[(]([^,]+),([^,]+)[\])]", text)
        if ends is not None and float(ends[1]) < float(ends[2]):
            return text
    except (TypeError, ValueError):
        pass
    raise ValueError(
        f"ranges[{name!r}] is {text!r}, and an interval is written as '[0, 1)' or '(0, inf)'."
    )


def _whole_numbers(interval):
    """Returns the `range` of the whole numbers in an interval."""
    low, high = (
        max(-checks.MAX_STEPS, min(checks.MAX_STEPS, float(end)))
        for end in interval[1:-1].split(",")
    )
    first = math.floor(low) + 1 if interval[0] == "(" else math.ceil(low)
    last = math.ceil(high) - 1 if interval[-1] == ")" else math.floor(high)
    return range(first, last + 1)


def make_optimizer_of(
    frontend: type[Layerwise], register: Callable[[type], type]
) -> Callable[..., type]:
    """Makes the function `optimizer_of` for Keras 3 or for tf_keras.

    Args:
        frontend: The base class of the optimizers for this Keras.
        register: A function that registers a class for the loading of models, and returns it.

    Returns:
        The function `optimizer_of`.
    """

    def optimizer_of(
        rule: Callable, *, name: str | None = None, learning_rate: float = 0.001,
        ranges: Mapping[str, str] | None = None, transfer_exponent: float | None = None,
    ) -> type:  # fmt: skip
        """Makes a class of optimizers from an update rule of yours.

        The class is a `keras.optimizers.Optimizer` with all that the optimizers of this package
        have: exclusions, treatments, clipping, accumulation, averages, half precision, replicas,
        saved state, `describe`.

        A rule is a function of arrays:

            rule(xp, g, w, *slots, *, lr, t, decay, adapt, axes, **hyperparameters) -> w, *slots

            xp      array functions of the framework that trains, named as in NumPy: xp.sign, ...
            g, w    gradient and weight of one layer, in float32 or float64
            slots   the arrays that the rule keeps for a weight from step to step, at first zeros of
                    its shape: an argument that you call m is the slot "m"
            lr, t   learning rate, and number of the step, from 1
            decay   weight decay, 0.0 for a weight that is excluded from it
            adapt   False for a weight that is excluded from layer adaptation, else True
            axes    the axes to sum over in a norm; None means all axes

        The other keyword arguments are hyper-parameters, which the class takes as arguments. A rule
        that takes `observe=None` and hands it to `tf_lamb.rules.trust_ratio` has trust ratios,
        which `TrustRatios` shows. `tf_lamb.rules` has the parts that this package's rules share.

        Args:
            rule: The function.
            name: The name of the class. Defaults to None: `layerwise_lion` makes `LayerwiseLion`.
            learning_rate: The default of the class, at which `find_rate` begins. Defaults to 0.001.
            ranges: Dict from a hyper-parameter to the interval that it has to lie in, such as
                {"gamma": "[0, 1)"}. Defaults to None. A hyper-parameter that is not in the dict
                has the interval of this package's argument of the same name, such as momentum or
                epsilon; beta_3 and the like have that of beta_1; any other may be any number.
                A default that is an int, as in steps=5, takes whole numbers alone, from 0 on or
                in that interval.
            transfer_exponent: The exponent a in [0, 1] by which `recipes.transfer`, with a noise
                scale, raises the learning rate at a larger batch. Defaults to None: it is not
                known, and `transfer` refuses optimizer="LayerwiseLion".

        Returns:
            The class. Assign it to a name in a module, and import that module before you load a
            model that was saved with the optimizer.

        Raises:
            TypeError, ValueError: for a function that is no such rule, and for a name that an
                optimizer of this package has.

        Example:

        >>> import tf_lamb
        >>> def layerwise_sign(xp, g, w, m, *, lr, t, decay, adapt, axes, beta_1=0.9):
        ...     m = beta_1 * m + (1 - beta_1) * g
        ...     u = tf_lamb.rules.decayed(xp.sign(m), decay, w)
        ...     ratio = tf_lamb.rules.trust_ratio(xp, w, u, adapt=adapt, axes=axes)
        ...     return w - lr * ratio * u, m
        >>> LayerwiseSign = tf_lamb.optimizer_of(layerwise_sign)
        >>> LayerwiseSign(0.01, weight_decay=0.1, exclude_from_weight_decay="norm_and_bias").beta_1
        0.9
        """
        return register(make_class(rule, frontend, name, learning_rate, ranges, transfer_exponent))

    return optimizer_of


def make_class(
    step: Callable, frontend: type[Layerwise], name: str | None, learning_rate: float,
    ranges: Mapping[str, str] | None, transfer_exponent: float | None,
) -> type:  # fmt: skip
    """Makes a class of optimizers from a rule; see `optimizer_of`, which registers it.

    Args:
        step: The function of the rule.
        frontend: The base class of the optimizers for this Keras.
        name: The name of the class; None makes it from the name of `step`.
        learning_rate: The default of the learning rate.
        ranges, transfer_exponent: As for `optimizer_of`.

    Returns:
        The class.

    Raises:
        TypeError, ValueError: in the cases in which `optimizer_of` raises them.
    """
    name = name or "".join(word.capitalize() for word in step.__name__.split("_"))
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ValueError(f"name must be that of a class, such as 'LayerwiseLion', not {name!r}.")
    if name in rules.OURS:
        raise ValueError(f"{name} is an optimizer of this package: pass another name=.")
    rule = make_rule(
        step, ranges or {}, checks.number("learning_rate", learning_rate),
        None if transfer_exponent is None
        else checks.number("transfer_exponent", transfer_exponent, "[0, 1]"),
    )  # fmt: skip
    signature = _signature(rule, name)

    def __init__(self, *args, **arguments):
        if len(args) > 1:
            raise TypeError(
                f"{name} takes the learning rate alone by position: write the others by name."
            )
        bound = signature.bind(self, *args, **arguments)
        bound.apply_defaults()
        _, *values = bound.arguments.items()  # without self
        frontend.__init__(self, **dict(values))  # type: ignore[misc]

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    settings_class = settings.RatioSettings if rule.has_ratio else settings.Settings
    members = {
        "rule": rule, "settings_class": settings_class, "__init__": __init__,
        "__doc__": _class_docstring(rule), "__module__": step.__module__, "__qualname__": name,
    }  # fmt: skip
    optimizer_class = type(name, (frontend,), members)
    rules.ALL[name] = rule
    return settings.documented(optimizer_class)


def _signature(rule, name):
    """Returns the signature of the constructor of an optimizer class for a rule.

    It has the learning rate, the rule's hyper-parameters, the arguments that all optimizers share,
    and `name` as the default of the argument `name`.
    """
    defaults = inspect.signature(rule.step).parameters
    by_keyword = inspect.Parameter.KEYWORD_ONLY
    positional_or_keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    hyperparameters = [
        inspect.Parameter(hyperparameter, by_keyword, default=defaults[hyperparameter].default)
        for hyperparameter in rule.hyper
    ]
    exclusions = [
        inspect.Parameter(argument, by_keyword, default=default, annotation=annotation)
        for argument, (default, annotation) in _EXCLUSIONS.items()
    ]
    name_parameter = inspect.Parameter("name", by_keyword, default=name, annotation=str | None)
    return inspect.Signature([
        inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY),
        inspect.Parameter("learning_rate", positional_or_keyword, default=rule.start_rate),
        *hyperparameters, *exclusions, *settings.shared_parameters(), name_parameter,
    ])  # fmt: skip


def _class_docstring(rule):
    """Returns the docstring of an optimizer class: the rule's docstring, and its arguments."""
    text = inspect.getdoc(rule.step) or f"The rule {rule.name}."
    defaults = inspect.signature(rule.step).parameters
    entries = [f"    {name}: Defaults to {defaults[name].default!r}." for name in rule.hyper]
    return "\n".join([
        text, "", "Args:",
        "    learning_rate: A float, a `LearningRateSchedule` or a callable without arguments.",
        f"        Defaults to {rule.start_rate:g}.", *entries,
        "    weight_decay: A float or a schedule, which the rule is given as decay; None is 0.",
        "        Defaults to 0.0.", "    {{shared_arguments}}",
    ])  # fmt: skip
