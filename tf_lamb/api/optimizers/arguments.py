"""The arguments that all optimizers share, documented once: spliced into each class's docstring."""

import inspect
import re
import textwrap
from typing import TypeVar

_SHARED = """
exclude_from_weight_decay: List of regexes, searched in the variables' paths
    (`encoder/layer_0/attention/bias`), or "norm_and_bias": every bias, the scale and
    offset of every normalization, and every other vector, such as a LayerScale or a class
    token. Defaults to None: nothing is excluded.
exclude_from_layer_adaptation: List of regexes. Defaults to None: the variables that are
    excluded from weight decay. An empty list excludes nothing.
treatments: Dict from a regex to a dict of what the variables that match get, for instance
    `{"^encoder/": {"rate": 0.1}}`. Of each key the first regex that matches and has it counts.
    Defaults to None.
{{keys}}
clipnorm: The largest norm of each gradient. Defaults to None. All clipping happens
    after the gradients of replicas and micro-batches are aggregated.
clipvalue: The largest absolute value in a gradient. Defaults to None.
global_clipnorm: The largest norm of all gradients together. Defaults to None.
use_ema: Whether to keep an exponential moving average of the weights.
    Defaults to False.
ema_momentum: Momentum of that average, in [0, 1]. Defaults to 0.99.
ema_overwrite_frequency: Steps after which the average replaces the weights. Defaults to
    None: at the end of `fit` only.
loss_scale_factor: In Keras 3, what the loss is multiplied by and gradients are divided by,
    as in every optimizer of Keras. Defaults to None.
gradient_accumulation_steps: Micro-batches whose mean gradient makes one step; schedules
    and `iterations` count steps. A dict from a step to the number from there on makes a batch
    that grows, in one program: with `{0: 1, 500: 2, 900: 4}` a step takes two micro-batches from
    step 500 on. Then the attribute of this name is the largest number, and `get_config()` has the
    dict. Micro-batches that `fit` leaves over at its end make no step and wait for the next ones,
    as in Keras's optimizers. Defaults to None: every batch is a step.
dtypes: Dict of "slots" and "masters". "slots": "float32", or "bfloat16" with stochastic
    rounding: a moment or a velocity takes 4 bytes a parameter, or 2. "masters": with "float32"
    float16 and bfloat16 variables have a master, 4 bytes a parameter more, on which the rule
    works. Defaults to None: slots in float32, and no masters.
shard_update: In Keras 3 on JAX, whether each device of the data axis keeps its share of the
    slots, masters, averages and accumulators, and computes its share of the update, with
    the norms of unsharded variables (Xu et al., arXiv 2004.13336). Defaults to False.
on_nonfinite: What becomes of a step whose gradients, of all replicas and micro-batches,
    hold a NaN or what float32 cannot square. "skip" leaves weights, slots, averages and
    `iterations` as they are and counts it in `skipped_steps`; "raise" leaves them, too,
    and raises the framework's error, naming the variables, except where XLA compiles all of
    a step; "propagate" takes the step. Defaults to "skip".
on_spike: Whether to skip a step whose gradient is far longer than those before: "skip", or
    [window, deviations], by default [128, 6.0] (OLMo). The norm of all gradients, before they
    are clipped, is a spike if it is above the mean of the last `window` steps by more than
    `deviations` standard deviations. It begins when half of the window is filled, with two
    steps at least. Nothing changes then but the window, which is saved with the slots, and
    `spiked_steps`; `gradient_norm` has the latest norm. Defaults to None: off.
jit_compile: Whether XLA compiles the update on TensorFlow. Defaults to True.
name: Name of the optimizer. Defaults to that of its class.
"""
_KEYS_OF_TREATMENTS = """
    "rate": A factor, 0 or more, of the learning rate. It multiplies what the schedule, or AdaScale,
    gives, and so all that the learning rate does: a trust ratio is as it was. 0 freezes a variable
    as `trainable = False` does, slots and all. `tf_lamb.layer_decay` makes such a dict.
    "slices": An axis, or [axis, blocks]: each slice, or each block of them, has a ratio of its own.
    `{"qkv/kernel": {"slices": [-1, 3]}}` treats Q, K and V separately,
    `{"stacked/": {"slices": 0}}` the layers of a scan.
    "join": Whether the variables of one Keras layer that match, say a kernel and its bias, share
    one trust ratio; by default each variable has its own.
    "rows": The axis that is rows, a list of axes, or None for what is no matrix, where paths and
    shapes do not tell: `{"mixer/kernel": {"rows": 0}, "in_groups": {"rows": None}}`. A bias is
    never a matrix.
    "depthwise": Whether it is a depthwise kernel, whose output channels are the last two axes
    instead of the last; by default what has "depthwise" in its path is one, as Keras names it.
"""
_ENTRIES = {entry[1]: entry[0] for entry in re.finditer(r"^(\w+):.*(?:\n .*)*", _SHARED, re.M)}
_KEYS = {
    entry[1]: entry[0]
    for entry in re.finditer(r'^ +"(\w+)": .*(?:\n +[^ "].*)*', _KEYS_OF_TREATMENTS, re.M)
}

Class = TypeVar("Class", bound=type)


def documented(cls: Class) -> Class:
    """A decorator that puts entries in the place of `{{shared_arguments}}` in a class's docstring.

    They are of the constructor's arguments that have no entry there. For an argument that has none
    here either, the import fails: no argument is without one.
    """
    keys = cls.settings_class.keys  # type: ignore[attr-defined]
    if not (doc := cls.__doc__):  # python -OO
        return cls
    mark = "{{shared_arguments}}"
    (indent,) = re.findall(f"^( *){re.escape(mark)}$", doc, re.M)  # Python 3.13 strips some of it
    own = re.findall(rf"^{indent}(\w+): ", doc, re.M)
    entries = [_ENTRIES[name] for name in inspect.signature(cls).parameters if name not in own]
    shared = "\n".join(entries).replace("{{keys}}", "\n".join(_KEYS[key] for key in keys))
    cls.__doc__ = doc.replace(indent + mark, textwrap.indent(shared, indent))
    return cls
