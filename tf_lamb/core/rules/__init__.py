"""Holds the update rules, one a file; each is a pure function of arrays.

    rule(xp, g, w, *slots, lr, t, decay, adapt, axes, **hyperparameters) -> w, *slots

    xp     the array namespace: `numpy`, `tf_lamb.keras.arrays` or `tf_lamb.tensorflow.namespace`
    g, w   gradient and weight; slots have their shape unless a rule says otherwise
    lr, t  scalars: the learning rate and the number of the step, which counts from 1
    decay  weight decay, a Python float; an array if it follows a schedule, or if the variables of
           a layer differ in it
    adapt  a Python bool: whether the layer has a trust ratio (LAMB, LANS, LARS), may be projected
           (AdamP, SGDP), or is a matrix (Muon, SOAP)
    axes   the axes over which a norm runs; each slice along the other axes is a layer. None: all

A rule never sees a name, a regex, a dtype or a device. It returns the new w and the new slots. A
rule with a trust ratio takes `observe`, too (`shared.trust_ratio`).

`RULE`, beside each rule, declares all that optimizers, recipes and searches need to know of it.
"""

from tf_lamb.core.rules.adamp import RULE as _ADAMP
from tf_lamb.core.rules.adamp import adamp
from tf_lamb.core.rules.lamb import RULE as _LAMB
from tf_lamb.core.rules.lamb import lamb
from tf_lamb.core.rules.lans import RULE as _LANS
from tf_lamb.core.rules.lans import lans
from tf_lamb.core.rules.lars import RULE as _LARS
from tf_lamb.core.rules.lars import lars
from tf_lamb.core.rules.muon import RULE as _MUON
from tf_lamb.core.rules.muon import muon
from tf_lamb.core.rules.rule import Rule
from tf_lamb.core.rules.sgdp import RULE as _SGDP
from tf_lamb.core.rules.sgdp import sgdp
from tf_lamb.core.rules.shared import decayed, estimate, norm, project, root, trust_ratio
from tf_lamb.core.rules.soap import RULE as _SOAP
from tf_lamb.core.rules.soap import soap

__all__ = [
    "ALL", "OURS", "PARTS", "Rule", "adamp", "decayed", "estimate", "lamb", "lans", "lars", "muon",
    "norm", "project", "root", "sgdp", "soap", "trust_ratio",
]  # fmt: skip

# The parts that users build rules of their own from; `tf_lamb.rules` exports them.
PARTS = ("decayed", "estimate", "norm", "project", "root", "trust_ratio")
# The name of an optimizer class -> its rule.
OURS: dict[str, Rule] = {
    "LAMB": _LAMB, "LANS": _LANS, "LARS": _LARS, "Muon": _MUON, "SOAP": _SOAP, "AdamP": _ADAMP,
    "SGDP": _SGDP,
}  # fmt: skip
ALL = dict(OURS)  # `optimizer_of` adds the rules of users
