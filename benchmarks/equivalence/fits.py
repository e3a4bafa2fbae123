"""The arms that need Keras's `fit`: AdaScale, AutoWarmup, and the search of `find_rate`."""

import dataclasses
import math

import keras

import tf_lamb
from benchmarks.equivalence import arms
from benchmarks.equivalence.protocol import FROZEN, Settings
from benchmarks.equivalence.training import Program, optimizer
from benchmarks.equivalence.workloads import Workload
from tf_lamb_extras.automatic_warmup import AutoWarmup

LOOKS = FROZEN["looks"]


def adascale(workload: Workload, settings: Settings, ratio: int, seed: int, most: int) -> dict:
    """AdaScale around what was tuned at the base batch, until the base's steps are spent.

    It is lost where it would take more than `most` times the examples of the base.
    """
    base = arms.plain(workload, settings, 1, 1)
    inner = optimizer("momentum", settings, base.schedule(tf_lamb.schedules))
    inner = type(inner).from_config({**inner.get_config(), "gradient_accumulation_steps": ratio})
    made = tf_lamb.AdaScale(inner, ratio)
    every = max(1, base.train_steps // ratio // LOOKS)
    stop = tf_lamb.StopAtBaseSteps(base.train_steps, every=ratio)
    found = _fit(workload, made, workload.base, seed, every * ratio,
                 most * base.train_steps // (every * ratio), [stop])  # fmt: skip
    spent = float(made.base_steps)
    found["updates"] = [each // ratio for each in found["updates"]]
    return found if spent >= base.train_steps else {**found, "test": None}


def autowarmup(workload: Workload, ratio: int, seed: int, horizon: int, callback=None) -> dict:
    """LAMB with AutoWarmup, or with the callback, and nothing tuned."""
    batch = workload.base * ratio
    steps = horizon * workload.examples // batch
    every = max(1, steps // LOOKS)
    made = tf_lamb.LAMB(exclude_from_layer_adaptation="norm_and_bias")
    return _fit(workload, made, batch, seed, every, steps // every,
                [callback or AutoWarmup(verbose=False)])  # fmt: skip


def found_rate(workload: Workload, settings: Settings, spec: str, ratio: int, seed: int, horizon):
    """The run at the rate that `find_rate` finds, with the examples of the search.

    Raises:
        ValueError: where the search decides on none.
    """
    keras.utils.set_random_seed(seed)
    model, (x, y) = workload.network(), workload.parts[0]
    model.compile(optimizer("adamw", settings, settings.rate), workload.loss)
    rival = dataclasses.replace(
        settings, beta_1=0.95 if spec == "muon" else 0.9, weight_decay=0.0, global_clipnorm=None
    )
    examples = horizon * workload.examples
    found = tf_lamb.find_rate(
        model, (x, y), workload.base * ratio, [optimizer(spec, rival)],
        epochs=examples / len(y), validation_data=workload.parts[1], seed=seed, verbose=False,
    )  # fmt: skip
    warmup = round((settings.warmup or 0.02) * found.train_steps)
    recipe = dataclasses.replace(found.recipe(), warmup_steps=warmup)
    made = Program(workload, spec, rival).run(recipe, seed)
    return {
        **made,
        "found": float(f"{found.learning_rate:.4g}"),
        "search": round(found.cost * examples),
    }


def _fit(workload, made, batch, seed, every, epochs, callbacks) -> dict:
    keras.utils.set_random_seed(seed)
    model, (x, y) = workload.network(), workload.parts[0]
    model.compile(made, workload.loss)

    def batches():
        from benchmarks.shared.jax_loop import batches as drawn

        for each in drawn(len(y), batch, seed):
            yield keras.tree.map_structure(lambda of, each=each: of[each], (x, y))

    seen = model.fit(
        batches(), steps_per_epoch=every, epochs=epochs, callbacks=callbacks, verbose=0,
        validation_data=workload.parts[1], validation_batch_size=2048,
    ).history["val_loss"]  # fmt: skip
    valid = [float(f"{loss:.5g}") if math.isfinite(loss) else None for loss in seen]
    x, y = workload.parts[2]
    score = workload.scored(y, model.predict(x, batch_size=2048, verbose=0))
    return {
        "updates": [every * (i + 1) for i in range(len(seen))],
        "valid": valid,
        "test": float(f"{score:.5g}") if math.isfinite(score) else None,
    }
