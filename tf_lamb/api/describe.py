"""Prints how an optimizer treats each variable; makes layer-wise learning rates (`layer_decay`)."""

import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import path_of, unwrapped
from tf_lamb.core import checks
from tf_lamb.core.depth import blocks_in_order
from tf_lamb.core.messages import warn
from tf_lamb.core.patterns import model_name

# Patterns of the paths of the variables before the first block of an encoder.
_EMBEDDING_PATTERNS = "embed", "(^|[_/])stem[_/]"


def describe(model: Any, print_fn: Callable[[str], Any] = print) -> None:
    """Prints each variable's weight decay, and whether it has a trust ratio.

    It works before the first step, too. It warns of patterns that match no variable, and if most
    weights are in no block that `layer_decay` knows. The optimizer may be inside a wrapper:
    `AdaScale`, `MeasureNoise`, or the `LossScaleOptimizer` that mixed precision puts around it.

    Args:
        model: A model of either Keras, compiled with an optimizer of this package.
        print_fn: The function that prints the table. Defaults to `print`.

    Raises:
        TypeError: for an optimizer of another package, and if `model` is no model.
        ValueError: for a model that is not compiled, or has no variables yet, and for an optimizer
            that was built for other variables than the model trains.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> inputs = tf.keras.Input((4,))
    >>> model = tf.keras.Model(inputs, tf.keras.layers.Dense(2, name="last")(inputs))
    >>> optimizer = tf_lamb.LAMB(weight_decay=0.01, exclude_from_weight_decay=["bias"])
    >>> model.compile(optimizer=optimizer, loss="mse")
    >>> tf_lamb.describe(model, lambda table: print(*table.splitlines()[:3], sep="\\n"))
    variable       parameters       decay  adapted  layer
    last/kernel             8        0.01      yes
    last/bias               2           -       no
    """
    if not hasattr(model, "compile"):
        raise TypeError(f"describe takes a compiled model, not {model!r}.")
    optimizer = unwrapped(getattr(model, "optimizer", None))
    if optimizer is None:
        raise ValueError(
            f"{model.name} has no optimizer: call model.compile(optimizer=tf_lamb.LAMB(...)) first."
        )
    if not isinstance(optimizer, Layerwise):
        name = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        advice = "; after the first step, ask describe() of each in model.optimizer.optimizers"
        hint = advice if hasattr(optimizer, "optimizers") else ""  # a MultiOptimizer has it
        raise TypeError(
            f"describe shows the plan of tf_lamb's optimizers, and {name} has none{hint}."
        )
    plan = optimizer.plan
    if plan is None:
        if not (model.built and model.trainable_variables):
            raise ValueError(
                f"{model.name} has no variables yet: call model.build(input_shape), or the model "
                "on a batch, first."
            )
        plan = optimizer.plan_for(model.trainable_variables)
        if message := plan.unmatched_warning():
            warn(message)
    else:
        optimizer.build(model.trainable_variables)  # raises if it was built for other variables
        trained_positions = set(map(optimizer._index_of, model.trainable_variables))
        if frozen := [name for i, name in enumerate(plan.names) if i not in trained_positions]:
            print_fn(f"Not trained now: {', '.join(frozen)}.")
        plan = optimizer._planner.current_plan()
    optimizer._planner.print_plan(plan, print_fn)


def layer_decay(model: Any, decay: float) -> dict[str, dict[str, float]]:
    """Returns layer-wise learning rates, which fall from the head to the embeddings.

    The result is for the argument `treatments` of an optimizer of this package.

    The learning rate of each variable is multiplied by a factor, called rate. It depends on the
    place of the variable in an encoder of N blocks, which are counted from the embeddings:

        rate = decay^(N + 1)          embeddings, stem
               decay^(N - i)          block i = 0, ..., N - 1
               1                      all else: pooler, head

    Blocks are layers whose name ends with a number, as in `transformer_layer_3` and
    `transformer_block_3` (KerasHub), `transformer/layer_3` (Model Garden), `encoder_layer_3`. If
    there are stages, as in ConvNeXt's `stage_2_block_3`, the blocks of all stages are numbered in
    one sequence. The downsampling layer before a stage counts as a block, so ConvNeXtTiny has 21
    blocks. Its authors count three blocks as one, so for their `decay` pass about
    `decay ** (1 / 3)`. Embeddings are the variables with "embed" in their path, a stem those with
    "stem". The result is a plain dict, which you may change; `tf_lamb.describe` shows its effect.
    The function warns if most weights keep the full rate.

    Args:
        model: A model of either Keras that has its variables.
        decay: The factor from one block to the block before it, in [0, 1]; ELECTRA has 0.8 and 0.9,
            BEiT 0.65 to 0.95. 0 trains the head alone.

    Returns:
        Regex of a path -> {"rate": factor on the learning rate}.

    Raises:
        ValueError: for a `decay` outside [0, 1], and for a model without variables, without
            numbered blocks, or with several stacks of blocks.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> names = ["token_embedding", "encoder_layer_0", "encoder_layer_1", "head"]
    >>> layers = [tf.keras.layers.Dense(2, name=name) for name in names]
    >>> model = tf.keras.Sequential([tf.keras.Input((2,)), *layers])
    >>> treatments = tf_lamb.layer_decay(model, 0.5)
    >>> [(pattern, given["rate"]) for pattern, given in treatments.items()]
    [('^encoder_layer_0/', 0.25), ('^encoder_layer_1/', 0.5), ('embed', 0.125)]
    >>> optimizer = tf_lamb.LAMB(1e-3, treatments=treatments)

    References:
        - Clark et al., ELECTRA, https://arxiv.org/abs/2003.10555
        - Bao et al., BEiT, https://arxiv.org/abs/2106.08254
    """
    checks.number("decay", decay, "[0, 1]")
    variables = model.trainable_variables if model.built else []
    if not variables:
        raise ValueError(
            f"{model.name} has no variables yet: call model.build(input_shape), or the model on a "
            "batch, first."
        )
    all_paths = [path_of(variable) for variable in variables]
    root = model_name(all_paths)
    paths = [path.removeprefix(root) for path in all_paths]
    treatments = rates_by_path(paths, decay)
    sizes: dict[str, int] = {}
    for path, variable in zip(paths, variables, strict=True):
        sizes[path] = sizes.get(path, 0) + math.prod(variable.shape)
    _warn_if_most_keep_rate(model, treatments, sizes)
    return treatments


def rates_by_path(paths: Sequence[str], decay: float) -> dict[str, dict[str, float]]:
    """Returns the treatments of `layer_decay`: regex of a path -> {"rate": factor}.

    Args:
        paths: The paths of the variables, without the model's name.
        decay: The factor from one block to the block before it, in [0, 1].
    """
    blocks = blocks_in_order(paths)
    depth = len(blocks)
    rates = {
        f"^{re.escape(prefix)}": decay ** (depth - i)
        for i, prefixes in enumerate(blocks)
        for prefix in prefixes
    }
    other_paths = [path for path in paths if not path.startswith(tuple(itertools.chain(*blocks)))]
    for pattern in _EMBEDDING_PATTERNS:
        if any(re.search(pattern, path) for path in other_paths):
            rates[pattern] = decay ** (depth + 1)
    return {pattern: {"rate": rate} for pattern, rate in rates.items()}


def _warn_if_most_keep_rate(model, treatments, sizes):
    """Warns if more than half of the weights keep the full learning rate.

    Only the head should keep it, and a head is smaller than half of a model. So the function has
    probably not recognized the names of the blocks.

    Args:
        model: The model, for its name.
        treatments: Regex of a path -> treatment.
        sizes: Path, without the model's name -> number of weights.
    """
    full_rate_sizes = {
        path: size
        for path, size in sizes.items()
        if not any(re.search(pattern, path) for pattern in treatments)
    }
    share = sum(full_rate_sizes.values()) / max(1, sum(sizes.values()))
    if share > 0.5:
        largest = ", ".join(
            map(repr, sorted(full_rate_sizes, key=lambda path: -full_rate_sizes[path])[:3])
        )
        warn(
            f"layer_decay: {share:.0%} of the weights of {model.name} keep the full rate, as they "
            f"are in no block that it knows by name; the largest are {largest}. If they are not "
            "the head, write the dict of treatments by hand."
        )
