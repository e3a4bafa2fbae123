"""The worked problem of concurrent adversarial training, and its formula in float64."""

import numpy as np

# facts: Appendix A, part 8. loss = mean over rows of 0.5 |xW + b - y|^2, plain gradient descent.
X = np.array([[1, 2], [-1, 0.5], [0.5, -1.5], [2, 1]])
Y = np.array([[1, 0], [0, 1], [-1, 0.5], [0.5, 2]])
W0, B0 = np.array([[0.5, -0.3], [0.2, 0.8]]), np.array([0.1, -0.2])
WORKED = [
    ([[0.43505, -0.206775], [0.2264625, 0.7137125]], [0.06175, -0.11175]),
    ([[0.3813805672, -0.1287281141], [0.2537995312, 0.6339085594]],
     [0.03012740625, -0.03405290625]),
    ([[0.3382604617, -0.06183392806], [0.2804227605, 0.5609401389]],
     [0.002769451023, 0.03510905522]),
]  # fmt: skip


def errors(w, b, x, y):
    return x @ w + b - y


def gradients(w, b, x, y):
    e = errors(w, b, x, y)
    return x.T @ e / len(x), e.mean(0)


def trained(batches, *, tau, steps=1, alpha=0.5, rate=0.1, epsilon=0.1, step_size=0.1):
    """The formula, with every parameter that ever was; the attack written out once more."""
    history = [(W0, B0)]
    for t, (x, y) in enumerate(batches):
        old_w, old_b = history[max(t - tau, 0)]
        adversarial = x
        for _ in range(steps):
            sign = np.sign(errors(old_w, old_b, adversarial, y) @ old_w.T)
            moved = adversarial + step_size * sign
            adversarial = np.clip(np.clip(moved, x - epsilon, x + epsilon), -3, 3)
        w, b = history[-1]
        clean, wrong = gradients(w, b, x, y), gradients(w, b, adversarial, y)
        history.append(tuple(
            p - rate * ((1 - alpha) * g + alpha * h)
            for p, g, h in zip((w, b), clean, wrong, strict=True)
        ))  # fmt: skip
    return history[1:]
