"""The oracle of every optimizer on one variable, with a rate and a decay for each step.

Imports nothing of ours.
"""

import oracle

NAMES = ("LAMB", "LANS", "LARS", "AdamP", "SGDP", "Muon", "SOAP")


class Reference:
    """The optimizer of this name, with its defaults, on an array."""

    def __init__(self, name, w):
        make = {
            "LAMB": lambda: oracle.Lamb({"w": w}, lr=None),
            "LANS": lambda: oracle.Lans(w, lr=None),
            "LARS": lambda: oracle.Lars(w),
            "AdamP": lambda: oracle.AdamP(w),
            "SGDP": lambda: oracle.AdamP(w, sgd=True),
            "Muon": lambda: oracle.Muon(w, lr=0.0, matrix=w.ndim > 1, eps=1e-8),
            "SOAP": lambda: oracle.Soap(w, lr=0.0, matrix=w.ndim > 1),
        }
        self.name, self.own = name, make[name]()

    def step(self, g, rate, decay):
        own = self.own
        if self.name in ("LARS", "AdamP", "SGDP"):
            own.wd = decay
            return own.step(g, rate)
        for each in [own, own.adam] if self.name in ("Muon", "SOAP") else [own]:
            each.lr, each.wd = rate, decay
        if self.name == "LAMB":
            return own.step({"w": g})["w"]
        return own.step(g)


def step(family, g, w, slots, *, t, rate, decay, adapt, **own):
    """The weight and the slots after step t, from these; `own` is in the oracle's words."""
    if family == "LAMB":
        o = oracle.Lamb({"w": w}, lr=rate, wd=decay, unadapted=() if adapt else ("w",), **own)
        return _of_lamb(o, g, slots, t)
    if family == "LANS":
        o = oracle.Lans(w, lr=rate, wd=decay, skip=not adapt, **own)
        (o.m, o.v), o.step_count = slots, t - 1
        return o.step(g), [o.m, o.v]
    if family == "LARS":
        o = oracle.Lars(w, wd=decay, skip=not adapt, **own)
        (o.v,) = slots
        return o.step(g, rate), [o.v]
    if family == "Muon":
        o = oracle.Muon(w, lr=rate, wd=decay, matrix=adapt, **own)
        if not adapt:
            return _of_lamb(o.adam, g, slots, t)
        (o.m,) = slots
        return o.step(g), [o.m]
    own |= {} if adapt else {"delta": 0.0}  # nothing is projected: no cosine is below 0
    o = oracle.AdamP(w, wd=decay, sgd=family == "SGDP", **own)
    o.m, o.v, o.t = slots[0], slots[-1], t - 1
    return o.step(g, rate), [o.m, o.v][: len(slots)]


def _of_lamb(o, g, slots, t):
    (o.m["w"], o.v["w"]), o.step_count = slots, t - 1
    return o.step({"w": g})["w"], [o.m["w"], o.v["w"]]
