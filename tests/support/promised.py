"""What a user was promised of a training, in float64 NumPy: imports nothing of ours.

One network, whose loss is linear in its weights: a gradient is known from the batch alone, however
the weights came about. `Promised` is what its optimizer keeps: it counts, reads the rate, sums
micro-batches, skips, averages, and takes the steps of `oracle.py`. What it holds is read and set by
role, "left/kernel" say, so that no path decides who is meant.
"""

import copy

import numpy as np
import oracle
from support import references

ROWS, COLUMNS = 2, 9  # of a batch; of the outputs that have weights
SHAPES = {
    "embedding": (6, 2), "left/kernel": (3, 2), "left/bias": (2,), "right/kernel": (3, 2),
    "right/bias": (2,), "norm/gamma": (3,), "norm/beta": (3,),
}  # fmt: skip
LAYERS = ("embedding", "left", "right", "norm")  # what is frozen, as one
BIASES, NORM = {"left/bias", "right/bias"}, {"norm/gamma", "norm/beta"}
# Whom a pattern means.
MEANT = {
    "norm_and_bias": BIASES | NORM, "bias": BIASES, "norm": NORM, "embedding": {"embedding"},
    "dense": {"left/kernel", "left/bias", "right/kernel", "right/bias"},
}  # fmt: skip
SLOTS = {"LAMB": "mv", "LANS": "mv", "AdamP": "mv", "LARS": "v", "SGDP": "v"}
LARGEST = float(np.finfo(np.float32).max)
SCALE = 64.0  # of a loss, if there is one, to begin with


def meant(patterns):
    """The roles that a list of patterns, or a preset, means."""
    patterns = [patterns] if isinstance(patterns, str) else patterns or []
    return set().union(*(MEANT[pattern] for pattern in patterns))


# -- the network ----------------------------------------------------------------------------------


def weights_of(seed):
    """Weights to begin with."""
    rng = np.random.default_rng(seed)
    return {
        role: rng.normal(size=shape).astype("float32").astype(float)
        for role, shape in SHAPES.items()
    }


def batch_of(kind, seed):
    """Tokens, inputs and the factors of the outputs; the last is added to the loss.

    Args:
        kind: "usual"; "rare", which has one token alone; "zeros"; "nan"; "spike"; "overflow", whose
            squares float32 cannot hold.
    """
    rng = np.random.default_rng(seed)
    tokens = np.minimum(rng.zipf(1.5, size=ROWS) - 1, 5)
    if kind == "rare":
        tokens = np.full(ROWS, seed % 6)
    x = rng.normal(size=(ROWS, 3))
    y = rng.normal(size=(ROWS, COLUMNS + 1)) * 10.0 ** rng.integers(-2, 2)
    y = y * {"zeros": 0.0, "spike": 1e6, "overflow": 1e25}.get(kind, 1.0)
    y[:, -1] = rng.normal()
    if kind == "nan":
        y[seed % ROWS, seed % COLUMNS] = np.nan
    return tokens.astype("int32"), x.astype("float32"), y.astype("float32")


def _normalized(x):
    x = x.astype(float)
    mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-3)


def gradients_of(batch):
    """By role."""
    tokens, x, y = batch
    x, y = x.astype(float), y.astype(float) / len(y)
    embedding = np.zeros(SHAPES["embedding"])
    np.add.at(embedding, tokens, y[:, :2])
    return {
        "embedding": embedding, "left/kernel": x.T @ y[:, 2:4], "left/bias": y[:, 2:4].sum(axis=0),
        "right/kernel": x.T @ y[:, 4:6], "right/bias": y[:, 4:6].sum(axis=0),
        "norm/gamma": (_normalized(x) * y[:, 6:9]).sum(axis=0), "norm/beta": y[:, 6:9].sum(axis=0),
    }  # fmt: skip


def loss_of(weights, batch):
    """The mean over the batch, and the size of what it is the sum of."""
    tokens, x, y = batch
    towers = [weights[f"{t}/kernel"] for t in ("left", "right")]
    biases = [weights[f"{t}/bias"] for t in ("left", "right")]
    outputs = np.concatenate([
        weights["embedding"][tokens],
        *(x.astype(float) @ kernel + bias for kernel, bias in zip(towers, biases, strict=True)),
        _normalized(x) * weights["norm/gamma"] + weights["norm/beta"],
        np.ones((len(y), 1)),
    ], axis=1)  # fmt: skip
    terms = outputs * y
    return terms.sum() / len(y), np.abs(terms).sum() / len(y)


# -- the optimizer --------------------------------------------------------------------------------


class Promised:
    """One optimizer, from its first step.

    Args:
        family: Its name.
        told: The arguments of its constructor.
        weights: By role.
        undecayed: Roles that were excluded from weight decay as variables.
    """

    def __init__(self, family, told, weights, undecayed=()):
        self.family, self.told = family, dict(told)
        self.weights = {role: np.array(w, float) for role, w in weights.items()}
        self.frozen, self.undecayed_as_variables = set(), set(undecayed)
        self.begin()
        self.forget_sizes()

    def begin(self):
        """As a new optimizer of these arguments would."""
        self.step = self.skipped = 0
        self.scale = SCALE
        self.slots = {
            role: {name: np.zeros(shape) for name in self.slot_names(role)}
            for role, shape in SHAPES.items()
        }
        self.averages = {}  # by role; a role that is missing has none yet
        self.empty()

    def empty(self):
        """Drops the micro-batches of an update that is not complete."""
        self.sums, self.micro_step = {role: np.zeros(shape) for role, shape in SHAPES.items()}, 0
        self.given = set()  # roles that have had a gradient since the last update
        self.largest_gradient = 0.0  # of all that are summed

    def forget_sizes(self):
        """Begins anew with what a bound on rounding is a share of."""
        self.updates = 0
        self.moved = dict.fromkeys(SHAPES, 0.0)  # by role: how far its weights went
        self.largest = {
            role: {name: np.abs(slot).max() for name, slot in slots.items()}
            for role, slots in self.slots.items()
        }

    def copy(self):
        return copy.deepcopy(self)

    # What the arguments say.

    @property
    def accumulates(self):
        return self.told.get("gradient_accumulation_steps") or 1

    @property
    def tried(self):
        """Updates, those that were skipped, too."""
        return self.step + self.skipped

    @property
    def trained(self):
        return [role for role in SHAPES if role.partition("/")[0] not in self.frozen]

    @property
    def rate(self):
        """What the next update reads."""
        rate = self.told["learning_rate"]
        if isinstance(rate, dict):
            if rate["of"] == "whole":
                return 1 if self.step <= rate["steps"] else 2
            return rate["rate"] * rate["factor"] ** (self.step / rate["steps"])
        return rate

    def is_decayed(self, role):
        excluded = meant(self.told.get("exclude_from_weight_decay")) | self.undecayed_as_variables
        return bool(self.told.get("weight_decay")) and role not in excluded

    def is_joined(self, role):
        treatments = self.told.get("treatments") or {}
        joined = meant([key for key, treatment in treatments.items() if treatment.get("join")])
        return role in joined - meant(self.told.get("exclude_from_layer_adaptation"))

    def is_adapted(self, role):
        given = self.told.get("exclude_from_layer_adaptation")
        if self.family == "Muon":
            excluded = {"embedding"} if given is None else meant(given)
            return len(SHAPES[role]) > 1 and role not in excluded
        if given is None:
            undecayed = meant(self.told.get("exclude_from_weight_decay"))
            undecayed = undecayed | self.undecayed_as_variables
            return role not in undecayed or self.is_joined(role)
        return role not in meant(given)

    def multiplier(self, role):
        """The share of the rate with which it is trained."""
        treatments = self.told.get("treatments") or {}
        return next(
            (t["rate"] for k, t in treatments.items() if "rate" in t and role in meant(k)), 1
        )

    def slot_names(self, role):
        if self.family == "Muon":
            return "m" if self.is_adapted(role) else "mv"
        return SLOTS[self.family]

    def layers(self):
        """Lists of roles that share a trust ratio, of those that have a gradient."""
        layers = {}
        for role in (role for role in self.trained if role in self.given):
            layer = role.partition("/")[0] if self.is_joined(role) else role
            layers.setdefault(layer, []).append(role)
        return layers.values()

    # What happens.

    def take(self, gradients, missing=()):
        """One micro-batch, without gradients of some roles; returns whether an update was taken."""
        for role in (role for role in self.trained if role not in missing):
            self.given.add(role)
            self.sums[role] = self.sums[role] + gradients[role]
            # One entry that is not finite leaves the rounding of the others as it is.
            finite = np.abs(gradients[role][np.isfinite(gradients[role])])
            self.largest_gradient = max(self.largest_gradient, finite.max(initial=0.0))
        self.micro_step += 1
        if self.micro_step < self.accumulates:
            return False
        # Of as many as are summed: a run may go on with fewer micro-batches than already wait.
        # Without a gradient in the last micro-batch, a sum of zeros counts as no gradient at all.
        self.given = {r for r in self.given if r not in missing or np.any(self.sums[r])}
        mean = {r: self.sums[r] / self.micro_step for r in self.trained if r in self.given}
        with np.errstate(over="ignore", invalid="ignore"):
            if not all(np.sum(np.square(g)) <= LARGEST for g in mean.values()):
                self.skipped += 1
                self.scale /= 2
                self.empty()
                return False
        self._update(self._clipped(mean), self.rate)
        self.empty()
        self._average()
        return True

    def end_fit(self):
        """The averages become the weights, where there are any."""
        for role in self.trained:
            if self.told.get("use_ema") and role in self.averages:
                self.weights[role] = self.averages[role].copy()

    def _clipped(self, gradients):
        told = self.told
        if limit := told.get("clipvalue"):
            return {role: np.clip(g, -limit, limit) for role, g in gradients.items()}
        if limit := told.get("clipnorm"):
            return {r: g * min(1.0, limit / max(oracle.frobenius(g), 1e-300))
                    for r, g in gradients.items()}  # fmt: skip
        if limit := told.get("global_clipnorm"):
            length = np.sqrt(sum(np.sum(g**2) for g in gradients.values()))
            return {r: g * min(1.0, limit / max(length, 1e-300)) for r, g in gradients.items()}
        return gradients

    def _update(self, gradients, rate):
        now = self.told.get("weight_decay", 0.0)
        self.step, self.updates = self.step + 1, self.updates + 1
        for layer in self.layers():
            decays = [now * self.is_decayed(role) for role in layer]
            if len(layer) == 1:
                (role,) = layer
                g, w, slots = gradients[role], self.weights[role], self.slots[role]
                decay = decays[0]
            else:  # one long vector
                g = _joined(gradients[role] for role in layer)
                w = _joined(self.weights[role] for role in layer)
                slots = {
                    name: _joined(self.slots[role][name] for role in layer)
                    for name in self.slots[layer[0]]
                }
                decay = _joined(np.full(SHAPES[r], d) for r, d in zip(layer, decays, strict=True))
                decay = decay if len(set(decays)) > 1 else decays[0]
            w, new = references.step(
                self.family, g, w, [*slots.values()], t=self.step, decay=decay,
                rate=rate * self.multiplier(layer[0]), adapt=self.is_adapted(layer[0]),
                **self.words(),
            )  # fmt: skip
            slots = dict(zip(slots, new, strict=True))
            at = 0
            for role in layer:
                size = int(np.prod(SHAPES[role]))
                part = np.s_[...] if len(layer) == 1 else np.s_[at : at + size]
                new = w[part].reshape(SHAPES[role])
                self.moved[role] += np.abs(new - self.weights[role]).max()
                self.weights[role] = new
                for name, slot in slots.items():
                    self.slots[role][name] = slot = slot[part].reshape(SHAPES[role])
                    self.largest[role][name] = max(self.largest[role][name], np.abs(slot).max())
                at += size

    def _average(self):
        if not self.told.get("use_ema"):
            return
        momentum, frequency = self.told["ema_momentum"], self.told.get("ema_overwrite_frequency")
        if not self.averages:  # of what is frozen, too
            self.averages = {role: w.copy() for role, w in self.weights.items()}
        for role in self.trained:
            old = self.averages[role]
            self.moved[role] += np.abs(old - self.weights[role]).max()
            self.averages[role] = momentum * old + (1 - momentum) * self.weights[role]
            if frequency and self.step % frequency == 0:
                self.weights[role] = self.averages[role].copy()

    def words(self):
        """Its own arguments, in the oracle's words."""
        told = self.told
        if self.family == "LANS":
            return {}
        if self.family == "LAMB":
            return {
                "debias": told.get("bias_correction", True),
                "decay_enters": told.get("weight_decay_mode", "update"),
                "bounds": (told.get("bounds") or {}).get("trust_ratio") or (0.0, np.inf),
            }
        if self.family == "Muon":
            given = (told.get("form") or {}).get("coefficients")
            return {
                "nesterov": told.get("nesterov", True),
                "bounds": (told.get("bounds") or {}).get("trust_ratio"),
                **({"polynomials": [given] * 5} if given else {}),
            }
        eta = {"eta": told.get("trust_coefficient", 0.001)} if self.family == "LARS" else {}
        return {"nesterov": told.get("nesterov", False), **eta}


def _joined(arrays):
    return np.concatenate([np.ravel(array) for array in arrays])
