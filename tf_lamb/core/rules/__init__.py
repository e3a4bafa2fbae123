"""Holds the update rules, one in each file. A rule is a pure function of arrays.

    rule(xp, g, w, *slots, lr, t, decay, adapt, axes, **hyperparameters) -> w, *slots

    xp     the array namespace: `numpy`, `tf_lamb.keras.arrays` or `tf_lamb.tensorflow.namespace`
    g, w   gradient and weight; slots have their shape unless a rule says otherwise
    lr, t  scalars: the learning rate and the number of the step, which counts from 1
    decay  weight decay, a Python float; an array if it follows a schedule, or if the variables of
           a layer differ in it
    adapt  a Python bool: whether the layer has a trust ratio (LAMB, LANS, LARS), may be projected
           (AdamP, SGDP), or is a matrix (Muon, SOAP)
    axes   the axes over which a norm runs; each slice along the other axes is a layer. None: all

A rule returns the new w and the new slots. It does not depend on the names of variables, on the
user's regexes, or on devices. A rule with a trust ratio also takes `observe`, a function to which
it passes the ratio and its norms (`shared.trust_ratio`).

Each file also defines `RULE`, an object of the class `Rule`, which tells optimizers, recipes and
searches for a learning rate what they need to know of the rule.
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

# The functions from which users can build their own rules; `tf_lamb.rules` exports them.
PARTS = ("decayed", "estimate", "norm", "project", "root", "trust_ratio")
# The name of an optimizer class -> its rule.
OURS: dict[str, Rule] = {
    "LAMB": _LAMB, "LANS": _LANS, "LARS": _LARS, "Muon": _MUON, "SOAP": _SOAP, "AdamP": _ADAMP,
    "SGDP": _SGDP,
}  # fmt: skip
ALL = dict(OURS)  # also holds the rules of users, which `tf_lamb.optimizer_of` adds
