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
        undecayed=(), unadapted=(),
    ):  # fmt: skip
        self.w = {k: np.array(x, np.float64) for k, x in weights.items()}
        self.m = {k: np.zeros_like(x) for k, x in self.w.items()}
        self.v = {k: np.zeros_like(x) for k, x in self.w.items()}
        self.lr, self.wd, self.b1, self.b2, self.eps = lr, wd, b1, b2, eps
        self.debias, self.undecayed, self.unadapted = debias, set(undecayed), set(unadapted)
        self.step_count = 0
        self.ratios = {}

    def step(self, gradients):
        self.step_count += 1
        rate = self.lr(self.step_count) if callable(self.lr) else self.lr
        for key, raw in gradients.items():
            g = np.asarray(raw, np.float64)
            self.m[key] = self.b1 * self.m[key] + (1 - self.b1) * g
            self.v[key] = self.b2 * self.v[key] + (1 - self.b2) * g**2
            first, second = self.m[key], self.v[key]
            if self.debias:
                first = first / (1 - self.b1**self.step_count)
                second = second / (1 - self.b2**self.step_count)
            direction = first / (np.sqrt(second) + self.eps)
            if key not in self.undecayed:
                direction = direction + self.wd * self.w[key]
            ratio = 1.0
            if key not in self.unadapted:
                top, bottom = frobenius(self.w[key]), frobenius(direction)
                if top > 0 and bottom > 0:
                    ratio = top / bottom
            self.ratios[key] = ratio
            self.w[key] = self.w[key] - rate * ratio * direction
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
