"""What `--global_batch_size` makes of an experiment's curve, piece by piece."""

import dataclasses
import random
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("official")

from official.core import exp_factory
from official.modeling import optimization
from official.modeling.optimization import OptimizerFactory

from tf_lamb import model_garden
from tf_lamb.model_garden.common.yamls import merged
from tf_lamb.model_garden.experiments import decays, scaling

model_garden.register()

LINE = {"tf_lamb_polynomial": {"initial_learning_rate": 1.0, "steps": 900}}


def chosen(rate):
    return {"type": next(iter(rate)), **rate}


def scaled(batch_size, rate, recipe="legw", **warmup):
    """A run of 1,000 steps at 64, with 100 of warmup, at another batch."""
    warmup = {"type": "tf_lamb", "tf_lamb": {"steps": 100, **warmup}}
    return filled(batch_size, rate, warmup, recipe)


def filled(batch_size, rate, warmup, recipe="legw", own=None, kind="tf_lamb",
           train_steps=1000, **optimizer):  # fmt: skip
    params = exp_factory.get_exp_config("lamb/bert_pretraining")
    rest = {"warmup": warmup, "optimizer": chosen({kind: optimizer})}
    trainer = {
        "train_steps": train_steps,
        "optimizer_config": {"learning_rate": chosen(rate), **rest},
    }
    params.override({"task": {"train_data": {"global_batch_size": 64}}, "trainer": trainer})
    text, settings = scaling.settings_at_batch(recipe, batch_size, params, own)
    return text, settings["trainer"]


@pytest.mark.parametrize("handover", ["continuous", "drop"])
def test_the_period_of_an_exponential_decay_is_stretched_alone(handover):
    rate = {"tf_lamb_exponential": {"initial_learning_rate": 1.0, "steps": 40, "rate": 0.9}}
    _, trainer = scaled(256, rate, handover=handover)
    config = trainer["optimizer_config"]
    assert config["learning_rate"]["tf_lamb_exponential"]["steps"] == 10
    assert config["warmup"]["tf_lamb"]["steps"] == 100
    assert trainer["train_steps"] == 250


def test_a_decay_to_the_end_still_ends_there():
    text, trainer = scaled(192, LINE, handover="continuous")
    # 1,000 x 64 / 192 = 333.3: to the nearest step, for the data begin again and again.
    assert trainer["train_steps"] == 333
    assert trainer["optimizer_config"]["learning_rate"]["tf_lamb_polynomial"]["steps"] == 233
    assert "= 333 steps" in text


@pytest.mark.parametrize(("batch", "steps", "new"), [(256, 100, 25), (512, 3, 1)])  # not 0.4
def test_the_other_rule_keeps_warmup_in_epochs(batch, steps, new):
    _, trainer = scaled(batch, LINE, "sqrt", steps=steps)
    assert trainer["optimizer_config"]["warmup"]["tf_lamb"]["steps"] == new


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (25, "25 steps, as before"),  # a tenth of 250
        (100, "25 steps, 100 before"),  # as many examples
        (40, "25 steps, raised to a tenth of training, 40 before"),
        (400, "62 steps, cut to a quarter of training, 400 before"),
    ],
)
def test_what_became_of_a_warmup_is_told(steps, words):
    text, _ = scaled(256, LINE, "transfer", steps=steps)
    assert f"\n  warmup = {words}\n" in text


def test_a_batch_of_more_than_all_examples_is_refused():
    with pytest.raises(ValueError, match=r"1,000 steps x 64 / 200,000 = 0.32 steps"):
        scaled(200_000, LINE)


def test_a_weight_decay_of_model_gardens_own_is_moved():
    """By `transfer`, at 4 times the batch: twice the rate, a quarter of the steps."""
    own = {"kind": "adamw", "weight_decay_rate": 0.02}
    text, trainer = filled(256, DECAYS["ours"], LINEAR, "transfer", **own)
    assert trainer["optimizer_config"]["optimizer"]["adamw"] == {
        "beta_2": pytest.approx(0.999**4), "weight_decay_rate": pytest.approx(0.04),
    }  # fmt: skip
    assert "weight_decay" in text


@pytest.mark.parametrize(("recipe", "factor"), [("transfer", 2), ("sqrt", 1)])
def test_a_weight_decay_schedule_is_moved_as_a_weight_decay(recipe, factor):
    """By `transfer`, at 4 times the batch: twice the rate, a quarter of the steps."""
    decay = {"stepwise": {"boundaries": [500, 900], "values": [0.1, 0.02, 0.0]}}
    own = {"weight_decay": 0.0, "weight_decay_schedule": chosen(decay)}
    text, trainer = filled(256, DECAYS["ours"], LINEAR, recipe, **own)
    moved = trainer["optimizer_config"]["optimizer"]["tf_lamb"]["weight_decay_schedule"]
    found = merged(decay, moved)["stepwise"]
    assert found["boundaries"] == [125, 225]
    assert found["values"] == pytest.approx([0.1 * factor, 0.02 * factor, 0.0])
    assert "optimizer.tf_lamb.weight_decay_schedule.stepwise.boundaries = [125, 225] steps" in text


def test_a_weight_decay_schedule_that_transfer_cannot_move_is_refused():
    own = {"weight_decay_schedule": {"type": "power"}}
    with pytest.raises(ValueError, match=r"scale optimizer.tf_lamb.weight_decay_schedule.type=pow"):
        filled(256, DECAYS["ours"], LINEAR, "transfer", **own)


# Model Garden's own warmups, which end on the curve of the decay.

LINEAR = {"type": "linear", "linear": {"warmup_steps": 100}}
POLYNOMIAL = {"type": "polynomial", "polynomial": {"warmup_steps": 100, "power": 2.0}}
DECAYS = {
    "line to 0": {"polynomial": {
        "initial_learning_rate": 0.001, "end_learning_rate": 0.0, "decay_steps": 1000}},
    "polynomial": {"polynomial": {
        "initial_learning_rate": 1.0, "end_learning_rate": 0.1, "decay_steps": 800, "power": 2.0,
        "offset": 40}},
    "cosine": {"cosine": {"initial_learning_rate": 1.0, "decay_steps": 1000, "alpha": 0.2}},
    "exponential": {"exponential": {
        "initial_learning_rate": 1.0, "decay_steps": 400, "decay_rate": 0.5}},
    "staircase": {"exponential": {
        "initial_learning_rate": 1.0, "decay_steps": 80, "decay_rate": 0.5, "staircase": True}},
    "steps": {"stepwise": {"boundaries": [500, 900], "values": [1.0, 0.1, 0.01]}},
    "constant": {"constant": {"learning_rate": 1.0}},
    "ours": {"tf_lamb_cosine": {
        "initial_learning_rate": 1.0, "end_learning_rate": 0.1, "steps": 1000}},
    "our steps": {"tf_lamb_multi_step": {
        "boundaries": [500, 900], "learning_rates": [1.0, 0.1, 0.01]}},
}  # fmt: skip


def built(learning_rate, warmup):
    config = {"optimizer": {"type": "adamw"}, "learning_rate": learning_rate, "warmup": warmup}
    config = optimization.OptimizationConfig(config)
    return OptimizerFactory(config).build_learning_rate()


@pytest.mark.parametrize("rate", [DECAYS[name] for name in DECAYS if name != "constant"])
def test_a_decay_is_read_as_model_garden_builds_it(rate):
    schedule = built(chosen(rate), LINEAR)
    config = optimization.OptimizationConfig({"learning_rate": chosen(rate)})
    kind, known = config.learning_rate.type, config.learning_rate.get().as_dict()
    for step in (100, 400, 500, 501, 899, 900, 999):
        assert decays.peak(kind, known, step) == pytest.approx(float(schedule(step)), rel=1e-4)


@pytest.mark.parametrize("warmup", [LINEAR, POLYNOMIAL], ids=["linear", "polynomial"])
@pytest.mark.parametrize("recipe", ["legw", "sqrt", "transfer"])
@pytest.mark.parametrize("rate", DECAYS.values(), ids=DECAYS)
def test_the_peak_that_warmup_reaches_is_scaled(rate, recipe, warmup):
    before = built(chosen(rate), warmup)
    text, trainer = filled(256, rate, warmup, recipe)
    config = trainer["optimizer_config"]
    after = built(*(merged(old, config[part]) for part, old in
                    (("learning_rate", chosen(rate)), ("warmup", warmup))))  # fmt: skip
    warm, peak = config["warmup"][warmup["type"]]["warmup_steps"], float(before(100))
    assert float(after(warm)) == pytest.approx(2 * peak, rel=1e-5)
    assert float(after(warm - 1)) < 2 * peak
    if "exponential" not in rate:  # which has no end
        assert float(after(250)) == pytest.approx(2 * float(before(1000)), rel=1e-4, abs=1e-9)
    if recipe == "legw":
        assert f"learning rate = {peak:g} x sqrt(4) = {2 * peak:.4g}" in text


@pytest.mark.parametrize("own", [{"cycle": True}, {"end_learning_rate": 2.0}])
def test_a_curve_that_rises_after_warmup_is_multiplied_alone(own):
    _, trainer = filled(256, {"polynomial": DECAYS["line to 0"]["polynomial"] | own}, LINEAR)
    found = trainer["optimizer_config"]["learning_rate"]["polynomial"]
    assert found["initial_learning_rate"] == pytest.approx(0.002)


def test_the_peak_follows_a_decay_that_is_overridden():
    own = {"trainer": {"optimizer_config": {"learning_rate": {"polynomial": {"decay_steps": 500}}}}}
    text, _ = filled(256, DECAYS["line to 0"], LINEAR, own=own)  # of which 4/5 are left at 100
    assert "peak, where warmup ends = 0.0018: initial_learning_rate = 0.00225" in text


@pytest.mark.parametrize(
    ("rate", "batch_size", "found"),
    [("line to 0", 640, "0, and not of 0.002846"), ("steps", 512, "0.2828, and not of 2.828")],
)
def test_a_decay_that_is_over_before_its_warmup_is_refused(rate, batch_size, found):
    expected = f"warmup would end at step 100 with a learning rate of {found}, because"
    with pytest.raises(ValueError, match=expected):
        filled(batch_size, DECAYS[rate], LINEAR)


# The whole curve as a function, drawn.

LENGTH = 1600  # all drawn steps are multiples of 16: none is rounded at a quarter of them


@dataclasses.dataclass
class Drawn:
    """A learning rate and a warmup of a run of `LENGTH` steps."""

    rate: dict
    warmup: dict
    warmup_steps: int
    is_behind: bool  # whether the decay counts from the end of warmup

    @property
    def kind(self):
        return next(iter(self.rate))

    @property
    def begins(self):
        """The step at which the decay begins; it may have an offset, which may outlast warmup."""
        return self.rate[self.kind].get("offset", 0) + self.warmup_steps * self.is_behind

    def is_kept(self, stretch):
        """Whether what falls behind a warmup of as many steps keeps its shares of the run."""
        if self.warmup["type"] is None or "step" in self.kind or self.kind == "constant":
            return True
        if not self.is_behind:  # Model Garden's own warmups have the peak where they end
            return self.warmup["type"] == "tf_lamb"
        offset = self.begins - self.warmup_steps
        return offset and stretch < 1 and self.begins * stretch >= self.warmup_steps


def drawn_curve(seed):
    pick = random.Random(seed)
    steps = pick.choice([80, 160, 240])
    behind = {"steps": steps, "handover": "continuous"}
    warmup, is_behind = pick.choice([
        ({"type": None}, False),
        ({"type": "linear", "linear": {"warmup_steps": steps}}, False),
        ({"type": "polynomial", "polynomial": {"warmup_steps": steps, "power": 2.0}}, False),
        ({"type": "tf_lamb", "tf_lamb": {"steps": steps, "handover": "drop"}}, False),
        ({"type": "tf_lamb", "tf_lamb": behind | {"start": 0.01}}, True),
        ({"type": "tf_lamb", "tf_lamb": behind | {"kind": "polynomial", "power": 2.0}}, True),
    ])  # fmt: skip
    with_offset = ["stepwise", "polynomial", "cosine", "exponential"]
    ours = ["tf_lamb_polynomial", "tf_lamb_cosine", "tf_lamb_exponential", "tf_lamb_multi_step"]
    kind = pick.choice([*with_offset, *ours, "constant"])
    if seed % 2:  # what may be counted twice: an offset behind a warmup
        kind, is_behind = pick.choice(with_offset), True
        warmup = {"type": "tf_lamb", "tf_lamb": behind}
    steps = steps if warmup["type"] else 0
    offset = {}
    if kind in with_offset:
        offset = {"offset": pick.choice([32, 240, 560] if seed % 2 else [0, 240])}
    length = pick.choice([LENGTH, LENGTH - 160]) - sum(offset.values()) - steps * is_behind
    to, power = pick.choice([0.0, 0.1]), pick.choice([1.0, 2.0])
    falls = [length * 3 // 64 * 16, length * 7 // 128 * 16]
    own = {
        "constant": {"learning_rate": 1.0},
        "stepwise": {"boundaries": falls, "values": [1.0, 0.3, 0.1]},
        "polynomial": {"decay_steps": length, "end_learning_rate": to, "power": power},
        "cosine": {"decay_steps": length, "alpha": to},
        "exponential": {"decay_steps": 160, "decay_rate": 0.8, "staircase": power == 2},
        "tf_lamb_polynomial": {"steps": length, "end_learning_rate": to, "power": power},
        "tf_lamb_cosine": {"steps": length, "end_learning_rate": to},
        "tf_lamb_exponential": {"steps": 160, "rate": 0.8, "staircase": power == 2},
        "tf_lamb_multi_step": {"boundaries": falls, "learning_rates": [1.0, 0.3, 0.1]},
    }[kind]
    if not {"learning_rate", "boundaries"} & own.keys():
        own["initial_learning_rate"] = 1.0
    return Drawn({kind: own | offset}, warmup, steps, is_behind)


def rates_of(schedule, steps):
    rates = [schedule(int(step)) if callable(schedule) else schedule for step in steps]
    return np.array([float(rate) for rate in rates])


def at_another_batch(curve, recipe, stretch):
    """The rates at equal shares of the run and of the scaled one, and whether warmup is over.

    And the largest rate of the scaled one behind its warmup.
    """
    _, trainer = filled(int(64 / stretch), curve.rate, curve.warmup, recipe, train_steps=LENGTH)
    assert trainer["train_steps"] == LENGTH * stretch
    config = {"learning_rate": chosen(curve.rate), "warmup": curve.warmup}
    after = merged(config, trainer["optimizer_config"])
    kind = after["warmup"]["type"]
    warm = after["warmup"][kind]["steps" if kind == "tf_lamb" else "warmup_steps"] if kind else 0
    assert warm == curve.warmup_steps * (stretch if recipe == "sqrt" else 1)
    steps = np.arange(0, LENGTH + 1, 160)
    shares = (steps * stretch).astype(int)
    old, new = built(**config), built(after["learning_rate"], after["warmup"])
    offset = after["learning_rate"][curve.kind].get("offset", 0)
    begins = [warm, max(warm, warm * curve.is_behind + offset)]
    is_over = (steps >= curve.warmup_steps) & (shares >= warm)
    return rates_of(old, steps), rates_of(new, shares), is_over, max(rates_of(new, begins))


@pytest.mark.parametrize("seed", range(20))
def test_the_scaled_rate_is_the_old_one_at_equal_shares_of_the_run(seed):
    """All of it where warmup has its share, and else what falls behind both warmups."""
    stretch = Fraction(2) if seed % 5 == 4 else Fraction(1, 4)
    curve, factor = drawn_curve(seed), float(1 / stretch) ** 0.5
    old, new, _, _ = at_another_batch(curve, "sqrt", stretch)
    # Step 0 aside, which Model Garden's polynomial warmup takes for step 1.
    np.testing.assert_allclose(new[1:], factor * old[1:], rtol=1e-4, atol=1e-6)

    old, new, is_over, largest = at_another_batch(curve, "legw", stretch)
    if "exponential" not in curve.kind:  # which has no end
        assert new[-1] == pytest.approx(factor * old[-1], rel=1e-4, abs=1e-6)
    if curve.is_behind:
        assert largest >= factor * (1 - 1e-6)
    if curve.is_kept(stretch):
        np.testing.assert_allclose(new[is_over], factor * old[is_over], rtol=1e-4, atol=1e-6)


def test_a_decay_with_an_offset_keeps_its_begin_and_its_end():
    cosine = {"initial_learning_rate": 0.1, "decay_steps": 700, "alpha": 0.05, "offset": 200}
    rate = {"cosine": cosine}
    # At step 300 = 100 + 200 it begins, at 1,000 it ends: at 150 and 500 of 500 steps.
    _, trainer = scaled(128, rate, handover="continuous")
    found = trainer["optimizer_config"]["learning_rate"]["cosine"]
    assert (found["offset"], found["decay_steps"]) == (50, 350)
    # At 75 it would begin, before the warmup of 100 ends.
    _, trainer = scaled(256, rate, handover="continuous")
    found = trainer["optimizer_config"]["learning_rate"]["cosine"]
    assert (found["offset"], found["decay_steps"]) == (0, 150)
    # An offset of --params_override holds, and the decay follows it.
    own = {"trainer": {"optimizer_config": {"learning_rate": {"cosine": {"offset": 30}}}}}
    warmup = {"type": "tf_lamb", "tf_lamb": {"steps": 100, "handover": "continuous"}}
    _, trainer = filled(256, rate, warmup, own=own)
    assert trainer["optimizer_config"]["learning_rate"]["cosine"]["decay_steps"] == 120
