"""What may stand inside a schedule, and before what a warmup may stand."""

import pytest

from tf_lamb.api.schedules import check_host
from tf_lamb.core import schedules


@pytest.mark.parametrize(
    "after",
    [
        schedules._Exponential(0.1, 10, 0.9),
        schedules.Warmup(5, schedules._Constant(0.1)),
        schedules._MultiStep((3,), (0.1, 0.01)),
    ],
)
def test_a_warmup_may_outlast_what_is_no_end_of_training(after):
    assert schedules.Warmup(25, after, handover="drop").steps == 25


@pytest.mark.parametrize("kind", [schedules._Polynomial, schedules._Cosine])
def test_a_warmup_does_not_outlast_training(kind):
    with pytest.raises(ValueError, match="11 steps is longer than the 10 steps"):
        schedules.Warmup(11, kind(0.1, 10), handover="drop")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.Warmup(5, "0.1"), "after must be a learning rate or a schedule"),
        (lambda: schedules.Stages((5,), (None,)), r"schedules\[0\] must be a learning rate or"),
        (lambda: schedules.Warmup(5, True), "after must be a"),
    ],
)
def test_what_is_neither_a_number_nor_a_schedule_is_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_a_schedule_of_the_other_keras_is_refused():
    class LearningRateSchedule:  # as Keras calls it
        pass

    mine, other = LearningRateSchedule, type("LearningRateSchedule", (), {})
    mine.__module__, other.__module__ = "keras.src.schedules", "tf_keras.src.schedules"
    cosine = type("CosineDecay", (other,), {})()
    for fine in (cosine, schedules._Constant(0.1), 0.1, lambda: 0.1):
        check_host("learning_rate", fine, other)
    with pytest.raises(
        TypeError,
        match="learning_rate is a CosineDecay of tf_keras, and what reads it is of keras: "
        "take one of keras.optimizers.schedules or tf_lamb.keras.schedules",
    ):
        check_host("learning_rate", cosine, mine)
