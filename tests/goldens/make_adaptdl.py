"""Goldens of adaptdl 0.2.11: GoodputFunction and fit_perf_params, on drawn parameters.

Environment:

    python3.11 -m venv .build/goldens/adaptdl
    .build/goldens/adaptdl/bin/pip install -r tests/goldens/adaptdl.txt

Run:

    .build/goldens/adaptdl/bin/python tests/goldens/make_adaptdl.py [FOLDER]

Writes `adaptdl.npz`: arrays whose first axis is the draw.
"""

import json
from importlib import metadata

import load
import numpy as np
from adaptdl import goodput

DRAWS, FITS = 200, 20


def rounded(values):
    """To six digits, so that another libm cannot move a draw."""
    return np.array([float(f"{value:.6g}") for value in np.ravel(values)]).reshape(np.shape(values))


def functions(rng):
    """What GoodputFunction makes of a configuration, and which one it chooses."""
    seconds = rounded(10 ** rng.uniform([-4, -6] * 3, [0, -2] * 3, (DRAWS, 6)))
    perf = np.concatenate([seconds, rounded(rng.uniform(1, 10, (DRAWS, 1)))], 1)
    grad = rounded(10 ** rng.uniform([-4, -3], [0, 2], (DRAWS, 2)))  # sqr, var
    grad[::10, 0] = 0  # a signal that noise hides
    replicas = rng.integers(1, 65, DRAWS)
    replicas[::4] = 1 + np.arange(DRAWS // 4) % 2
    nodes = np.where(rng.random(DRAWS) < 0.5, 1, -(-replicas // 8))
    micro, accum = rng.integers(1, 513, DRAWS), rng.integers(0, 9, DRAWS)
    batch = replicas * micro * (accum + 1)
    base = np.maximum(1, batch // rng.integers(1, 65, DRAWS))
    seen, chosen = [], []
    for i in range(DRAWS):
        f = goodput.GoodputFunction(tuple(perf[i]), tuple(grad[i]), base[i])
        at = (nodes[i], replicas[i], micro[i], accum[i])
        seen.append([f.throughput(*at), f.efficiency(batch[i]), f.evaluate(*at)])
        # Several replicas: one of them alone accumulates to measure its noise.
        many = max(2, int(replicas[i]))
        bounds = (1, max(1, -(-int(base[i]) // many), int(micro[i])))
        most = max(64 * int(base[i]), many)
        chosen.append(
            [many, bounds[1], most]
            + list(f.optimize(int(nodes[i]), many, most, bounds, accumulation=True))
        )
    return {
        "perf": perf, "grad": grad, "base": base,
        "at": np.stack([nodes, replicas, micro, accum], 1),
        "throughput_efficiency_goodput": np.array(seen),
        "replicas_micro_most_goodput_micro_accum": np.array(chosen),
    }  # fmt: skip


def fits(rng):
    """What fit_perf_params makes of exact times of one replica, at micro-batches 8 to 512."""
    sizes = 8 * 2 ** np.arange(7)
    true = rounded(10 ** rng.uniform([-3, -5], [-1, -2], (FITS, 2)))
    found = []
    for alpha, beta in true:
        one, times = np.ones(len(sizes), int), alpha + beta * sizes
        perf = goodput.fit_perf_params(one, one, sizes, times, times)
        found.append(perf.alpha_c + perf.beta_c * sizes)
    return {"fit_sizes": sizes, "fit_true": true, "fit_times": np.array(found)}


def main():
    rng = np.random.default_rng(20081226)
    versions = {name: metadata.version(name) for name in ("adaptdl", "autograd", "numpy", "scipy")}
    np.savez_compressed(
        load.output_folder() / "adaptdl.npz",
        versions=json.dumps(versions), **functions(rng), **fits(rng),
    )  # fmt: skip


if __name__ == "__main__":
    main()
