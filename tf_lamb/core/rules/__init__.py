"""One update rule a file, each a pure function of arrays that takes the array namespace first.

    rule(xp, g, w, *slots, lr, t, decay, adapt, axes, **hyperparameters) -> w, *slots

    xp     `numpy`, `keras.ops` or `tf_lamb.tensorflow.namespace`
    g, w   gradient and weight; slots that are not told otherwise have their shape
    lr, t  scalars; t counts from 1
    decay  a Python float; an array where it follows a schedule, or where a layer's variables differ
    adapt  whether the layer has a trust ratio, may be projected, or is a matrix; a Python bool
    axes   the axes of a norm where each slice along the others is a layer; None is all of them

A rule never sees a name, a regex, a dtype or a device, and returns the new w and slots. One with a
trust ratio takes `observe`, too (`shared.trust_ratio`).

`HYPER`, beside each rule, declares its hyper-parameters: name -> kind. These are arguments of its
optimizer, and `core.checks.OF_KIND` has the check of each kind.
"""

from tf_lamb.core.rules.adamp import adamp
from tf_lamb.core.rules.lamb import lamb
from tf_lamb.core.rules.lans import lans
from tf_lamb.core.rules.lars import lars
from tf_lamb.core.rules.muon import muon
from tf_lamb.core.rules.sgdp import sgdp
from tf_lamb.core.rules.soap import soap

__all__ = ["adamp", "lamb", "lans", "lars", "muon", "sgdp", "soap"]
