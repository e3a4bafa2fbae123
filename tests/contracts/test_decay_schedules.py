"""Weight decay by a schedule, of every optimizer: against the oracle, read at optimizer steps."""

import pytest
from support.feeding import LAYOUTS, START, Feed, close, gradients, maker, mean_of
from support.frontends import BACKEND, FRONTENDS, every_frontend
from support.references import NAMES, Reference

EVERY = [(name, "one device") for name in NAMES]
EVERY += [(NAMES[-i], layout) for i, layout in enumerate(LAYOUTS) if i]


def falling(frontend):
    return FRONTENDS[frontend][0].optimizers.schedules.PolynomialDecay(0.5, 2, 0.1)


@every_frontend
@pytest.mark.parametrize(("name", "layout"), EVERY)
def test_every_step_decays_by_its_own(frontend, name, layout):
    replicas, micro = LAYOUTS[layout]
    make = maker(frontend, name, micro=micro, weight_decay=falling(frontend),
                 exclude_from_weight_decay=["bias"], exclude_from_layer_adaptation=[])  # fmt: skip
    run = Feed(frontend, make, replicas, traced=replicas * micro > 3)
    references = {key: Reference(name, w) for key, w in START.items()}
    for decay, parts in zip([0.5, 0.3, 0.1, 0.1], gradients(4, replicas * micro), strict=True):
        run.step(parts)
        mean = mean_of(parts)
        for key, ours in zip(START, run.weights(), strict=True):
            own = decay if key == "kernel" else 0.0
            close(ours, references[key].step(mean[key], 0.1, own), 3e-6)


@every_frontend
def test_a_schedule_that_comes_below_0_is_refused(frontend):
    host, ours = FRONTENDS[frontend]
    decay = host.optimizers.schedules.PolynomialDecay(0.1, 500, -0.1)
    words = r"weight_decay at step 1,000 must be a number in \[0, inf\), but it is -0.1"
    with pytest.raises(ValueError, match=words):
        ours.SGDP(0.1, weight_decay=decay)
    with pytest.raises(TypeError, match="weight_decay must be a number"):
        ours.SGDP(0.1, weight_decay=lambda: 0.1)
    if BACKEND == "tensorflow":
        other = FRONTENDS["tf_keras" if frontend == "keras" else "keras"][0]
        with pytest.raises(TypeError, match="weight_decay is a PolynomialDecay of"):
            ours.LAMB(weight_decay=other.optimizers.schedules.PolynomialDecay(0.1, 5))
