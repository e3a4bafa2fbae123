"""Compares every golden with formulas in float64, and prints which one each peer follows.

    .venv/bin/python tests/goldens/check.py [FOLDER]

The formulas are written here once more, apart from the package and from `tests/oracle.py`, so that
a golden is judged by neither. A figure is the largest difference of a weight after any of the ten
steps, over the largest weight of its variable in the run; float32 alone leaves a few 1e-7. Exits
with 1 if a peer has left its own formula by more than 1e-6.

A peer's own LAMB holds the betas in float32, where 1 - beta_2 ** t loses digits: by up to 1e-5 of
an update that no trust ratio rescales. That rounding is part of the peer's formula here, and the
line without it says what it costs.
"""

import functools
import sys

import load
import numpy as np
import problem

AGREE = 1e-6


def norm(x):
    return np.sqrt(np.sum(x * x))


def ratio(w, u, trust=1.0):
    return trust * norm(w) / norm(u) if norm(w) > 0 and norm(u) > 0 else 1.0


def lamb(
    w,
    grads,
    rates,
    *,
    decay,
    adapt,
    b1=0.9,
    b2=0.999,
    eps=1e-6,
    decoupled=False,
    debias=True,
    rounded=(),
):
    f32 = np.float32
    # What a peer rounds: the betas wherever they stand, or only those of the bias correction.
    h1, h2 = (float(f32(b1)), float(f32(b2))) if "betas" in rounded else (b1, b2)
    m = v = np.zeros_like(w)
    for t, (g, lr) in enumerate(zip(grads, rates, strict=True), start=1):
        if decoupled:
            w = w - lr * decay * w
        m, v = h1 * m + (1 - h1) * g, h2 * v + (1 - h2) * g * g
        c1, c2 = 1 - b1**t, 1 - b2**t
        if rounded:
            c1, c2 = (1 - float(f32(b) ** f32(t)) for b in (b1, b2))
        u = m / c1 / (np.sqrt(v / c2) + eps) if debias else m / (np.sqrt(v) + eps)
        if not decoupled:
            u = u + decay * w
        w = w - lr * (ratio(w, u) if adapt else 1.0) * u
        yield w


def lars(
    w, grads, rates, *, decay, adapt, trust, nesterov=False, form="classic", paper_norms=False
):
    momentum, v = 0.9, np.zeros_like(w)
    for g, lr in zip(grads, rates, strict=True):
        d = g + decay * w
        local = ratio(w, d, trust) if adapt else 1.0
        if adapt and paper_norms and norm(w) > 0 and norm(d) > 0:
            local = trust * norm(w) / (norm(g) + decay * norm(w))
        step = lr * local * d if form == "classic" else d
        v = momentum * v + step
        u = momentum * v + step if nesterov else v
        if form == "outside":
            u = lr * local * u
        elif form == "update":
            u = lr * (ratio(w, u, trust) if adapt else 1.0) * u
        w = w - u
        yield w


def orthogonal(u):
    """Five steps of Jordan's quintic, on the singular values."""
    left, s, right = np.linalg.svd(u / (norm(u) + 1e-7), full_matrices=False)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return left * s @ right


def muon(
    w, grads, rates, *, decay, adapt, scale="rms", nesterov=True, eps=1e-8, ratio=1.0, form=""
):
    b1, b2, mu = 0.9, 0.999, 0.95
    m = v = np.zeros_like(w)
    for t, (g, lr) in enumerate(zip(grads, rates, strict=True), start=1):
        if adapt:
            m = mu * m + g
            u = g + mu * m if nesterov else m
            if form == "optax" and nesterov:
                u = g / (1 - mu**t) + mu * m / (1 - mu ** (t + 1))
            matrix = u.reshape(-1, u.shape[-1])
            rows, columns = matrix.shape
            s = 0.2 * max(rows, columns) ** 0.5 if scale == "rms" else max(1, columns / rows) ** 0.5
            w = w - lr * (s * orthogonal(matrix).reshape(u.shape) + decay * w)
            yield w
            continue
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        # Both peers in float32.
        c0, c1, c2 = (1 - float(np.float32(b) ** np.float32(n)) for b, n in
                      ((b1, t + 1), (b1, t), (b2, t)))  # fmt: skip
        u = m / c1 / (np.sqrt(v / c2) + eps)
        if form == "Keras":
            u = m / c1 * np.sqrt(c2) / (np.sqrt(v) + eps)
        elif form == "optax" and nesterov:
            u = (b1 * m / c0 + (1 - b1) * g / c1) / (np.sqrt(v / c2) + eps)
        w = w - lr * ratio * u - lr * decay * w * (1 if form == "Keras" else ratio)
        yield w


KERAS = functools.partial(lamb, eps=1e-7, decoupled=True)
FORMULAS = {
    "lamb": {
        "LAMB": lamb,
        "LAMB, float32 betas": functools.partial(lamb, rounded=["betas", "powers"]),
        "LAMB, float32 bias correction": functools.partial(lamb, rounded=["powers"]),
        "LAMB, epsilon 1e-7": functools.partial(lamb, eps=1e-7),
        "LAMB without bias correction": functools.partial(lamb, debias=False),
        "decoupled decay, epsilon 1e-7": KERAS,
        "decoupled decay, epsilon 1e-7, float32 bias correction": functools.partial(
            KERAS, rounded=["powers"]
        ),
    },
    "lars": {
        "classic, norm of the sum": lars,
        "classic, sum of the norms": functools.partial(lars, paper_norms=True),
        "popular, norm of the update": functools.partial(lars, form="update"),
        "popular, norm of the sum": functools.partial(lars, form="outside"),
    },
    "muon": {
        "Muon, AdamW": muon,
        "Muon, AdamW with a raw epsilon, decayed at the whole rate": functools.partial(
            muon, form="Keras"
        ),
        "Muon, its Nesterov step of corrected momentum; NAdamW": functools.partial(
            muon, form="optax"
        ),
    },
}


def followed(peer, name, case):
    """The formula that a case should follow; None where it follows none."""
    if name == "lamb_model_sparse":
        return None
    if case["rule"] == "muon":
        _, of_keras, of_optax = FORMULAS["muon"]
        return {"keras": of_keras, "optax": of_optax}[peer]
    if case["rule"] == "lamb":
        return {
            "keras": "decoupled decay, epsilon 1e-7, float32 bias correction",
            "optax": "LAMB, float32 bias correction",
        }.get(peer, "LAMB, float32 betas")
    if case["arguments"].get("classic_momentum", True):
        return "classic, norm of the sum"
    return "popular, norm of the update"


def distance(case, formula, start, gradients):
    """The largest relative difference between a case and a formula."""
    worst, more = 0.0, _named(case)
    arguments = case["arguments"]
    rates = arguments["learning_rate"]
    rates = problem.SCHEDULE[case["rule"]] if rates == "schedule" else [rates] * problem.STEPS
    decay = arguments.get("weight_decay", arguments.get("weight_decay_rate", 0.0))
    if case["rule"] == "muon" and case["config"]:
        decay = case["config"]["config"]["weight_decay"]  # Keras has another default
    for path, weights in case["weights"].items():
        run = formula(
            start[path].astype(np.float64),
            gradients[path].astype(np.float64),
            rates,
            decay=decay if path in case["decayed"] else 0.0,
            adapt=path in case["adapted"],
            **more,
        )
        worst = max(worst, np.max(np.abs(weights - np.stack(list(run)))) / np.max(np.abs(weights)))
    return worst


def _named(case):
    """A case's own arguments, in the words of the formulas."""
    more = {}
    if case["rule"] == "muon":
        is_keras = case["config"] is not None
        is_rms = is_keras or "consistent_rms" in case["arguments"]
        more = {"scale": "rms" if is_rms else "shape", "eps": 1e-7 if is_keras else 1e-8}
        names = {"epsilon": "eps", "nesterov": "nesterov", "adam_lr_ratio": "ratio"}
    elif case["rule"] == "lamb":
        names = {"beta_1": "b1", "beta_2": "b2", "epsilon": "eps"}
    else:
        names = {"eeta": "trust", "trust_coefficient": "trust", "nesterov": "nesterov"}
    said = {names[name]: value for name, value in case["arguments"].items() if name in names}
    return more | said


def table(folder):
    """Yields (peer, case name, case, {formula name: distance})."""
    for peer in load.PEERS:
        for name, case in load.cases(peer, folder).items():
            yield peer, name, case, _distances(case, problem.START, problem.GRADIENTS)
        for name, case in load.models(peer, folder).items():
            yield peer, name, case, _distances(case, problem.MODEL_START, case["gradients"])


def _distances(case, start, gradients):
    # A formula that fixes what the case sets itself says nothing about the case.
    return {
        name: distance(case, formula, start, gradients)
        for name, formula in FORMULAS[case["rule"]].items()
        if not _named(case).keys() & getattr(formula, "keywords", {}).keys()
    }


def main():
    wrong = 0
    for peer, name, case, distances in table(load.output_folder()):
        own = followed(peer, name, case)
        print(f"{peer} {name}")
        for formula, value in sorted(distances.items(), key=lambda item: item[1]):
            bad = bool(formula == own and value > AGREE)
            wrong += bad
            print(f"  {value:8.1e}  {formula}{' (its own)' * (formula == own)}{' WRONG' * bad}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
