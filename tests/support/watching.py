"""What the tests of trust ratios share: a regression whose gradients the oracle knows."""

import numpy as np
import oracle
from oracle import Toy
from support.frontends import FRONTENDS, as_compiled

# Our arguments, then the oracle's. With and without an exclusion, a bound that clips one ratio.
CASES = {
    "LAMB": (
        "LAMB",
        {"learning_rate": 0.1, "weight_decay": 0.1, "exclude_from_layer_adaptation": ["bias"]},
        {"lr": 0.1, "wd": 0.1, "unadapted": {"bias"}},
    ),
    "LAMB clipped": (
        "LAMB",
        {"learning_rate": 0.1, "weight_decay": 0.1, "exclude_from_weight_decay": ["bias"],
         "exclude_from_layer_adaptation": [], "bounds": {"trust_ratio": (0.3, 10.0)}},
        {"lr": 0.1, "wd": 0.1, "undecayed": {"bias"}, "bounds": (0.3, 10.0)},
    ),
    "LARS": (
        "LARS",
        {"learning_rate": 0.5, "weight_decay": 0.1, "trust_coefficient": 0.2, "epsilon": 0.01,
         "exclude_from_weight_decay": ["bias"]},
        {"wd": 0.1, "eta": 0.2, "eps": 0.01, "unadapted": {"bias"}},
    ),
    "LARS clipped": (
        "LARS",
        {"learning_rate": 0.5, "weight_decay": 0.1, "trust_coefficient": 0.2,
         "bounds": {"trust_ratio": (0.08, 10.0)}},
        {"wd": 0.1, "eta": 0.2, "bounds": (0.08, 10.0)},
    ),
    "LARC": (
        "LARS",
        {"learning_rate": 0.1, "weight_decay": 0.1, "trust_coefficient": 0.2, "form": {
            "clip": True, "momentum": "mixed"}},
        {"wd": 0.1, "eta": 0.2, "larc": True, "form": "mixed"},
    ),
}  # fmt: skip


def expected(case, steps, start=None):
    """Of each step, key -> (|w|, |u|, ratio, clipped), in float64; excluded keys are missing."""
    name, ours, theirs = CASES[case]
    weights = {k: w.astype(np.float64) for k, w in (start or Toy.start).items()}
    if name == "LAMB":
        reference = oracle.Lamb(weights, **theirs)
        for _ in range(steps):
            reference.seen = {}
            reference.step(Toy.gradients(reference.w))
            yield reference.seen
        return
    arguments = {k: v for k, v in theirs.items() if k != "unadapted"}
    skipped = theirs.get("unadapted", ())
    layers = {
        k: oracle.Lars(w, **{**arguments, "wd": 0.0 if k in skipped else arguments["wd"]},
                       skip=k in skipped)
        for k, w in weights.items()
    }  # fmt: skip
    for _ in range(steps):
        gradients = Toy.gradients({k: layer.w for k, layer in layers.items()})
        for k, layer in layers.items():
            layer.step(gradients[k], ours["learning_rate"])
        yield {k: layer.seen for k, layer in layers.items() if layer.seen}


def optimizer_of(frontend, case, **changes):
    """The optimizer of a case; not compiled apart, which takes seconds."""
    name, ours, _ = CASES[case]
    return getattr(FRONTENDS[frontend][1], name)(**{"jit_compile": False, **ours, **changes})


def quiet(frontend, **arguments):
    """A callback that reads every step, and prints nothing."""
    return FRONTENDS[frontend][1].TrustRatios(**{"every": 1, "print_fn": None, **arguments})


def toy_model(frontend, optimizer, **compile_arguments):
    """The oracle's regression: Keras's mean over rows and both outputs is its loss."""
    host = FRONTENDS[frontend][0]
    model = host.Sequential([host.layers.InputLayer((2,)), host.layers.Dense(2)])
    model.set_weights([Toy.start["kernel"], Toy.start["bias"]])
    model.compile(optimizer=optimizer, loss="mse", **compile_arguments)
    return model


def train(model, x, y, *callbacks, batch_size, epochs):
    """Fits in the order of the data."""
    with as_compiled(model):
        model.fit(x, y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0,
                  callbacks=list(callbacks))  # fmt: skip


def fit(model, frontend, watch, steps, batch_size=4):
    """Trains an epoch a step on all data; returns the reading of each step."""
    seen = []

    def keep(*_, **__):
        if watch.history.readings > len(seen):
            seen.append(watch.history.latest)

    after = FRONTENDS[frontend][0].callbacks.LambdaCallback(on_train_end=keep)
    after.on_train_batch_begin = keep
    x, y = Toy.x.astype("float32"), Toy.y.astype("float32")
    train(model, x, y, watch, after, batch_size=batch_size, epochs=steps)
    return seen


def as_numbers(observations):
    """Key -> what the oracle says of it, without the excluded."""
    return {
        seen.path.rpartition("/")[2]: (*seen[4:7], seen.clipped)
        for seen in observations
        if seen.trust_ratio is not None
    }


def assert_equal(readings, case):
    wanted = list(expected(case, len(readings)))
    for got, want in zip(map(as_numbers, readings), wanted, strict=True):
        assert got.keys() == want.keys()
        for key in want:
            np.testing.assert_allclose(got[key], want[key], rtol=2e-5, err_msg=key)
    if "clipped" in case or case == "LARC":
        flags = [numbers[-1] for want in wanted for numbers in want.values()]
        assert 0 < sum(flags) < len(flags), "a case that clips all or nothing tests little"
