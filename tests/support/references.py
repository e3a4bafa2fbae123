"""The oracle of every optimizer on one variable, with a rate and a decay for each step."""

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
