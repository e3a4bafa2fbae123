"""Float64 NumPy, written from the papers (You et al., arXiv:1904.00962); imports nothing of ours.

Kept apart from the package on purpose: loops and names differ, so that a slip in one is not a
slip in the other.
"""

import numpy as np


def frobenius(array):
    return float(np.sqrt(np.sum(np.asarray(array, np.float64) ** 2)))


class Lamb:
    """LAMB on a dictionary of arrays. `undecayed` and `unadapted` are sets of its keys."""

    def __init__(
        self, weights, *, lr, wd=0.0, b1=0.9, b2=0.999, eps=1e-6, debias=True,
        undecayed=(), unadapted=(), bounds=(0.0, np.inf),
        decay_enters="update", phi=(0.0, np.inf),
    ):  # fmt: skip
        self.decay_enters, self.phi = decay_enters, phi
        self.w = {k: np.array(x, np.float64) for k, x in weights.items()}
        self.m = {k: np.zeros_like(x) for k, x in self.w.items()}
        self.v = {k: np.zeros_like(x) for k, x in self.w.items()}
        self.lr, self.wd, self.b1, self.b2, self.eps = lr, wd, b1, b2, eps
        self.debias, self.undecayed, self.unadapted = debias, set(undecayed), set(unadapted)
        self.bounds = bounds
        self.step_count = 0
        self.ratios = {}
        self.seen = {}  # both norms, the ratio, and whether a bound has changed it

    def step(self, gradients):
        self.step_count += 1
        rate = self.lr(self.step_count) if callable(self.lr) else self.lr
        for key, raw in gradients.items():
            g, wd = np.asarray(raw, np.float64), 0.0 if key in self.undecayed else self.wd
            self.m[key] = self.b1 * self.m[key] + (1 - self.b1) * g
            self.v[key] = self.b2 * self.v[key] + (1 - self.b2) * g**2
            first = self.m[key] / (1 - self.b1**self.step_count if self.debias else 1.0)
            second = self.v[key] / (1 - self.b2**self.step_count if self.debias else 1.0)
            direction = first / (np.sqrt(second) + self.eps)
            if self.decay_enters == "update":
                direction = direction + wd * self.w[key]
            if self.decay_enters == "decoupled":
                self.w[key] = self.w[key] - rate * wd * self.w[key]
            self.ratios[key] = self.ratio(key, direction)
            self.w[key] = self.w[key] - rate * self.ratios[key] * direction
        return self.w

    def ratio(self, key, direction):
        if key in self.unadapted:
            return float(np.clip(1.0, *self.bounds))
        top, bottom = frobenius(self.w[key]), frobenius(direction)
        phi = float(np.clip(top, *self.phi))
        free = phi / bottom if top > 0 and bottom > 0 else 1.0
        ratio = float(np.clip(free, *self.bounds))
        self.seen[key] = (top, bottom, ratio, int(ratio != free or phi != top))
        return ratio


class Lans:
    """LANS on one array, as the authors' kernel computes it."""

    def __init__(self, w, *, lr, wd=0.0, b1=0.9, b2=0.999, eps=1e-6, skip=False):
        self.w = np.array(w, np.float64)
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        self.lr, self.wd, self.b1, self.b2, self.eps = lr, wd, b1, b2, eps
        self.skip, self.step_count = skip, 0
        self.seen = None

    def scaled(self, part):
        """A part of the step at the length of the weights; its norms and its ratio."""
        top, bottom = frobenius(self.w), frobenius(part)
        ratio = 1.0
        if not self.skip and top > 0 and bottom > 0:
            ratio = top / bottom
        return ratio * part, (top, bottom, ratio)

    def step(self, g):
        self.step_count += 1
        g = np.asarray(g, np.float64)
        if frobenius(g) > 0:
            g = g / (frobenius(g) + self.eps)
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g**2
        one = 1 - self.b1**self.step_count
        two = 1 - self.b2**self.step_count
        denominator = np.sqrt(self.v / two) + self.eps
        parts = [self.m / one / denominator, g / denominator]
        parts = [part + self.wd * self.w for part in parts]
        (momentum, self.seen), (gradient, _) = map(self.scaled, parts)
        self.w = self.w - self.lr * (self.b1 * momentum + (1 - self.b1) * gradient)
        return self.w


def slices_of(matrix, by):
    """The index of all of a matrix, or of each of its "rows" or "columns"."""
    if by is None:
        return [...]
    return [(i, ...) if by == "rows" else (..., i) for i in range(matrix.shape[by == "columns"])]


def with_ratio(w, u, by, phi, bounds):
    """A step u, of which each slice is multiplied by phi(|w|)/|u| within the bounds."""
    scaled, ratios = np.array(u), []
    for index in slices_of(w, by):
        top, bottom = frobenius(w[index]), frobenius(u[index])
        ratio = np.clip(top, *phi) / bottom if top > 0 and bottom > 0 else 1.0
        ratios.append(float(np.clip(ratio, *bounds)))
        scaled[index] = ratios[-1] * u[index]
    return scaled, ratios


def as_long_as(before, w, by):
    """w, of which each slice has the norm that it has in `before`."""
    w = np.array(w)
    for index in slices_of(w, by):
        if frobenius(before[index]) > 0 and frobenius(w[index]) > 0:
            w[index] = w[index] * frobenius(before[index]) / frobenius(w[index])
    return w


class Muon:
    """Muon on one array: a matrix, or what AdamW steps.

    With `phi` and `bounds` its step has a trust ratio, with `constant` the matrix keeps its norm;
    both are of the whole matrix, or `by` "rows" or "columns".
    """

    def __init__(
        self, w, *, lr, wd=0.0, mu=0.95, nesterov=True, scale="rms", matrix=True, rate=1.0,
        b1=0.9, b2=0.999, eps=1e-8, polynomials=((3.4445, -4.7750, 2.0315),) * 5,
        phi=(0.0, np.inf), bounds=None, by=None, constant=False,
    ):  # fmt: skip
        self.phi, self.bounds, self.by, self.constant = phi, bounds, by, constant
        self.w = np.array(w, np.float64)
        self.m = np.zeros_like(self.w)
        self.lr, self.wd, self.mu, self.nesterov = lr, wd, mu, nesterov
        self.polynomials, self.scale, self.matrix = polynomials, scale, matrix
        self.adam = Lamb(
            {"w": w}, lr=lr * rate, wd=wd, b1=b1, b2=b2, eps=eps,
            decay_enters="decoupled", unadapted=("w",),
        )  # fmt: skip

    def orthogonal(self, u):
        x = u / (frobenius(u) + 1e-7)
        left, values, right = np.linalg.svd(x, full_matrices=False)
        for a, b, c in self.polynomials:  # of the singular values: U p(S) V'
            values = a * values + b * values**3 + c * values**5
        return left @ np.diag(values) @ right

    def step(self, g):
        if not self.matrix:
            self.w = self.adam.step({"w": g})["w"]
            return self.w
        g = np.asarray(g, np.float64)
        self.m = self.mu * self.m + g
        u = g + self.mu * self.m if self.nesterov else self.m
        rows, columns = int(np.prod(u.shape[:-1])), u.shape[-1]
        o = self.orthogonal(u.reshape(rows, columns)).reshape(u.shape)
        longest = 0.2 * np.sqrt(max(rows, columns))
        s = longest if self.scale == "rms" else np.sqrt(max(1.0, columns / rows))
        move, before = s * o, self.w
        if self.bounds:
            move, self.ratios = with_ratio(self.w, move, self.by, self.phi, self.bounds)
        self.w = self.w - self.lr * (move + self.wd * self.w)
        if self.constant:
            self.w = as_long_as(before, self.w, self.by)
        return self.w


class Soap:
    """SOAP on one array, m kept in the basis as by its authors; or what AdamW steps.

    `correct` and `normalize` are that code's `correct_bias` and `normalize_grads`, for its numbers.
    """

    def __init__(
        self, w, *, lr, wd=0.0, b1=0.95, b2=0.95, eps=1e-8, every=10, longest=10_000,
        one_sided=False, matrix=True, correct=True, normalize=False,
        phi=(0.0, np.inf), bounds=None, by=None, constant=False,
    ):  # fmt: skip
        self.phi, self.bounds, self.by, self.constant = phi, bounds, by, constant
        self.w, self.lr, self.wd = np.array(w, np.float64), lr, wd
        self.b1, self.b2, self.eps, self.every = b1, b2, eps, every
        self.correct, self.normalize, self.matrix, self.count = correct, normalize, matrix, -1
        self.m = self.v = self.bases = None
        self.adam = Lamb(
            {"w": w}, lr=lr, wd=wd, b1=b1, b2=b2, eps=eps, decay_enters="decoupled",
            unadapted=("w",),
        )  # fmt: skip
        self.flat = (int(np.prod(self.w.shape[:-1])), self.w.shape[-1])
        self.has = [size <= longest for size in self.flat]
        if one_sided:
            self.has = [self.flat[0] <= self.flat[1], self.flat[0] > self.flat[1]]

    def products(self, g):
        return [g @ g.T, g.T @ g]

    def into(self, x):
        left, right = self.bases
        return left.T @ x @ right

    def out(self, x):
        left, right = self.bases
        return left @ x @ right.T

    def first_bases(self, g):
        """Where both sides have one, g takes that of the shorter to the longer, Householder's."""
        bases = [
            np.linalg.eigh(factor)[1][:, ::-1] if has else np.eye(len(factor))
            for factor, has in zip(self.factors, self.has, strict=True)
        ]
        if all(self.has):
            short, image = (0, g.T) if g.shape[0] <= g.shape[1] else (1, g)
            bases[1 - short] = np.linalg.qr(image @ bases[short], mode="complete")[0]
        return bases

    def step(self, g):
        if not self.matrix:
            self.w = self.adam.step({"w": g})["w"]
            return self.w
        g, w = np.asarray(g, np.float64).reshape(self.flat), self.w.reshape(self.flat)
        self.count += 1
        if self.count == 0:
            self.factors = [(1 - self.b2) * product for product in self.products(g)]
            self.bases = self.first_bases(g)
            self.m, self.v = np.zeros(self.flat), np.zeros(self.flat)
            return self.w
        turned = self.into(g)
        self.m = self.b1 * self.m + (1 - self.b1) * turned
        self.v = self.b2 * self.v + (1 - self.b2) * turned**2
        u = self.out(self.m / (np.sqrt(self.v) + self.eps))
        if self.normalize:
            u = u / (1e-30 + np.sqrt(np.mean(u**2)))
        rate = self.lr
        if self.correct:
            rate *= np.sqrt(1 - self.b2**self.count) / (1 - self.b1**self.count)
        move, before = rate / self.lr * u, w
        if self.bounds:
            move, self.ratios = with_ratio(w, move, self.by, self.phi, self.bounds)
        w = w - self.lr * move
        w = w - self.lr * self.wd * w
        if self.constant:
            w = as_long_as(before, w, self.by)
        self.factors = [
            self.b2 * factor + (1 - self.b2) * product
            for factor, product in zip(self.factors, self.products(g), strict=True)
        ]
        if self.count % self.every == 0:
            m = self.out(self.m)
            for axis, factor in enumerate(self.factors):
                if self.has[axis]:
                    old = self.bases[axis]
                    order = np.argsort(-np.diag(old.T @ factor @ old))
                    self.v = np.take(self.v, order, axis)
                    self.bases[axis], _ = np.linalg.qr(factor @ old[:, order])
            self.m = self.into(m)
        self.w = w.reshape(self.w.shape)
        return self.w


class Toy:
    """The linear regression of the facts' worked examples: mean over rows of |xW + b - y|^2 / 2."""

    x = np.array([[1, 2], [-1, 0.5], [0.5, -1.5], [2, 1]])
    y = np.array([[1, 0], [0, 1], [-1, 0.5], [0.5, 2]])
    start = {"kernel": np.array([[0.5, -0.3], [0.2, 0.8]]), "bias": np.array([0.1, -0.2])}

    @classmethod
    def gradients(cls, weights):
        error = cls.x @ weights["kernel"] + weights["bias"] - cls.y
        return {"kernel": cls.x.T @ error / 4, "bias": error.mean(axis=0)}


class Lars:
    """LARS in its several forms, for one variable. `skip` moves it at the plain rate."""

    def __init__(
        self, w, *, wd=0.0, mu=0.9, eta=0.001, eps=0.0, nesterov=False, form="inside",
        denominator="sum_of_norms", larc=False, skip=False,
        bounds=(0.0, np.inf),
    ):  # fmt: skip
        self.bounds, self.seen = bounds, None
        self.w = np.array(w, np.float64)
        self.v = np.zeros_like(self.w)
        self.wd, self.mu, self.eta, self.eps, self.nesterov = wd, mu, eta, eps, nesterov
        self.form, self.denominator, self.larc, self.skip = form, denominator, larc, skip

    def local_rate(self, below, lr):
        top = frobenius(self.w)
        if self.skip or top == 0 or frobenius(below) == 0:
            return float(np.clip(1.0, *self.bounds))
        length = frobenius(below) + self.eps
        if self.denominator == "sum_of_norms":
            length += self.wd * top
        rate = self.eta * top / length
        free = rate / lr if self.larc else rate
        rate = min(free, 1.0) if self.larc else float(np.clip(free, *self.bounds))
        self.seen = (top, length, rate, int(rate != free))
        return rate

    def step(self, g, lr):
        g = np.asarray(g, np.float64)
        d = g + self.wd * self.w
        if self.denominator == "norm_of_update":
            self.v = self.mu * self.v + d
            move = d + self.mu * self.v if self.nesterov else self.v
            self.w = self.w - lr * self.local_rate(move, lr) * move
            return self.w
        rate = self.local_rate(d if self.denominator == "norm_of_sum" else g, lr)
        entering = {"inside": lr * rate * d, "mixed": rate * d, "outside": d}[self.form]
        self.v = self.mu * self.v + entering
        move = entering + self.mu * self.v if self.nesterov else self.v
        self.w = self.w - {"inside": 1.0, "mixed": lr, "outside": lr * rate}[self.form] * move
        return self.w


def project(w, g, u, channels, delta, wd_ratio, eps):
    """AdamP's projection. `channels` lists the index of each channel; each view in turn."""
    for rows in (channels, [...]):
        cosines = []
        for row in rows:
            a, b = w[row], g[row]
            cosines.append(abs(np.sum(a * b)) / (max(frobenius(a), eps) * max(frobenius(b), eps)))
        if max(cosines) < delta / np.sqrt(w[rows[0]].size):
            u = u.copy()
            for row in rows:
                n = w[row] / (frobenius(w[row]) + eps)
                u[row] = u[row] - n * np.sum(n * u[row])
            return u, wd_ratio
    return u, 1.0


def channel_indices(w, axes=1):
    """One index for each output channel: the last axis, or the last two of a depthwise kernel."""
    if axes == 1:
        return [(..., i) for i in range(w.shape[-1])]
    return [(..., i, j) for i in range(w.shape[-2]) for j in range(w.shape[-1])]


class AdamP:
    """AdamP for one variable; SGDP with `sgd=True`."""

    def __init__(
        self, w, *, wd=0.0, b1=0.9, b2=0.999, eps=1e-8, delta=0.1, wd_ratio=0.1, nesterov=False,
        sgd=False, mu=0.9, channel_axes=1,
    ):  # fmt: skip
        self.w = np.array(w, np.float64)
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        self.wd, self.b1, self.b2, self.eps = wd, b1, b2, eps
        self.delta, self.wd_ratio, self.nesterov = delta, wd_ratio, nesterov
        self.sgd, self.mu, self.channel_axes, self.t = sgd, mu, channel_axes, 0
        self.ratios = []

    def step(self, g, lr):
        g = np.asarray(g, np.float64)
        self.t += 1
        if self.sgd:
            self.m = self.mu * self.m + g
            u = g + self.mu * self.m if self.nesterov else self.m
            rate, shrink = lr, lr * self.wd / (1 - self.mu)
        else:
            self.m = self.b1 * self.m + (1 - self.b1) * g
            self.v = self.b2 * self.v + (1 - self.b2) * g * g
            root = np.sqrt(self.v) / np.sqrt(1 - self.b2**self.t) + self.eps
            u = (self.b1 * self.m + (1 - self.b1) * g if self.nesterov else self.m) / root
            rate, shrink = lr / (1 - self.b1**self.t), lr * self.wd
        rho = 1.0
        if self.w.ndim > 1:
            u, rho = project(
                self.w, g, u, channel_indices(self.w, self.channel_axes), self.delta,
                self.wd_ratio, self.eps,
            )  # fmt: skip
        self.ratios.append(rho)
        self.w = self.w * (1 - shrink * rho) - rate * u
        return self.w


def line_levels(x, k, b, bits):
    """clip(floor(k x + b), 0, 2^n - 1), in float64 (Lin et al., arXiv:2008.13128)."""
    return np.clip(np.floor(k * np.asarray(x, np.float64) + b), 0, 2**bits - 1)


def batch_norm_levels(x, gamma, beta, mean, variance, *, epsilon, step, bias, scale, bits):
    """The levels of batch normalization's output, of accumulators whose last axis is channels."""
    inputs = np.asarray(x, np.float64) * step + bias
    outputs = (inputs - mean) * gamma / np.sqrt(np.float64(variance) + epsilon) + beta
    return np.clip(np.floor(outputs / scale), 0, 2**bits - 1)


def shifted_lines(x, levels, bits, shift, slopes):
    """Slope A -> least and greatest B with clip((A x + B) >> shift) = levels, tried at every x."""
    x, levels, found = np.asarray(x, object), np.asarray(levels, int).astype(object), {}
    inner, below_top = levels > 0, levels < 2**bits - 1
    for a in slopes:
        least = max((levels * 2**shift - a * x)[inner], default=-(10**12))
        most = min(((levels + 1) * 2**shift - 1 - a * x)[below_top], default=10**12)
        if least <= most:
            found[a] = least, most
    return found


class Spikes:
    """Which norms are spikes, as MaxText's `skip_step_on_spikes` has it: a ring, and a count."""

    def __init__(self, interval, factor):
        self.ring, self.count, self.factor = np.zeros(interval), 0, factor

    def is_spike(self, norm):
        interval = len(self.ring)
        valid = self.ring[: min(self.count, interval)]
        mean = valid.sum() / max(1, len(valid))
        std = np.sqrt(((valid - mean) ** 2).sum() / max(1, len(valid) - 1))
        is_ok = norm - mean <= self.factor * std
        warming_up = self.count + 1 < max(2, interval // 2)
        self.ring[self.count % interval] = norm  # also where it is skipped
        self.count += 1
        return not (warming_up or is_ok)
