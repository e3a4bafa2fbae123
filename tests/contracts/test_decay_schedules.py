"""Weight decay by a schedule, of every optimizer: against the oracle, read at optimizer steps."""

import pytest
from support.feeding import LAYOUTS, START, Feed, close, gradients, maker, mean_of, scaled
from support.frontends import FRONTENDS, array, every_frontend, on_tensorflow
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
@pytest.mark.parametrize("name", ["LAMB", "LARS"])
def test_a_joined_layer_decays_where_it_should(frontend, name):
    """A schedule that is constant is the number."""
    constant = FRONTENDS[frontend][0].optimizers.schedules.PolynomialDecay(0.25, 1, 0.25)
    runs = [
        Feed(frontend, maker(frontend, name, weight_decay=decay,
                             treatments={".": {"join": True}}, exclude_from_weight_decay=["bias"]))
        for decay in (0.25, constant)
    ]  # fmt: skip
    for parts in gradients(2, 1):
        for run in runs:
            run.step(parts)
    for one, other in zip(*(run.weights() for run in runs), strict=True):
        close(one, other)


@every_frontend
def test_adascale_changes_when_the_rate_is_read_and_not_when_decay_is(frontend):
    decay = FRONTENDS[frontend][0].optimizers.schedules.PolynomialDecay(1.0, 10, 0.0)
    run = Feed(frontend, scaled(frontend, 2, 2.0, inner="SGDP", own={"weight_decay": decay}))
    for parts in gradients(5, 2):
        run.step(parts)
    assert run.optimizer.base_steps > 6
    inner = run.optimizer.inner_optimizer
    assert float(array(inner._scalars().decay)) == pytest.approx(0.5)


@every_frontend
def test_describe_says_schedule(frontend):
    decay = {"weight_decay": falling(frontend), "exclude_from_weight_decay": ["bias"]}
    table = Feed(frontend, maker(frontend, "LAMB", **decay)).optimizer.plan.table()
    assert [line.split()[2] for line in table.splitlines()[1:3]] == ["schedule", "-"]


@every_frontend
def test_a_schedule_that_comes_below_0_is_refused(frontend):
    host, ours = FRONTENDS[frontend]
    decay = host.optimizers.schedules.PolynomialDecay(0.1, 500, -0.1)
    words = r"weight_decay at step 1,000 must be a number in \[0, inf\), but it is -0.1"
    with pytest.raises(ValueError, match=words):
        ours.SGDP(0.1, weight_decay=decay)


@every_frontend
def test_a_function_is_no_decay(frontend):
    with pytest.raises(TypeError, match="weight_decay must be a number"):
        FRONTENDS[frontend][1].SGDP(0.1, weight_decay=lambda: 0.1)


@on_tensorflow
@every_frontend
def test_a_schedule_of_the_other_keras_is_refused(frontend):
    other = FRONTENDS["tf_keras" if frontend == "keras" else "keras"][0]
    with pytest.raises(TypeError, match="weight_decay is a PolynomialDecay of"):
        FRONTENDS[frontend][1].LAMB(weight_decay=other.optimizers.schedules.PolynomialDecay(0.1, 5))
