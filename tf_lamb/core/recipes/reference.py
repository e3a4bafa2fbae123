"""MLPerf's reference points: tables of published runs, one row per batch size."""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from tf_lamb.core import checks
from tf_lamb.core.recipes.arithmetic import (
    IMAGENET,
    NORM_AND_BIAS,
    UNTUNED_LAMB,
    epochs_to_steps,
    in_epochs,
)
from tf_lamb.core.recipes.recipe import Recipe


class LARSPoint(NamedTuple):
    """A row of MLPerf's ResNet-50; the last column is the mean over the reference runs."""

    learning_rate: float
    warmup_epochs: int
    momentum: float
    weight_decay: float
    decay_steps: int | None
    batch_norm_span: int
    epochs_to_target: float


# mlcommons/logging, mlperf_logging/rcp_checker, rcps_resnet.json. Where versions differ, the later.
MLPERF_LARS = {
    1632: LARSPoint(7.4, 2, 0.9, 5e-5, 27476, 204, 35.0),
    2048: LARSPoint(8.5, 5, 0.9, 2e-3, 22530, 64, 38.4),
    3264: LARSPoint(10.5, 2, 0.9, 5e-5, 14523, 204, 35.2),
    4096: LARSPoint(10.0, 5, 0.9, 2e-4, 13137, 64, 40.0),
    8192: LARSPoint(17.0, 5, 0.9, 2e-4, 6095, 64, 42.0),
    13056: LARSPoint(12.8, 9, 0.9, 2.5e-5, 4710, 204, 45.4),
    32768: LARSPoint(21.2, 16, 0.94, 2.5e-5, 2267, 128, 56.0),
    49152: LARSPoint(19.405, 24, 0.951807, 1e-4, 1846, 256, 68.0),
    58880: LARSPoint(23.246, 29, 0.951807, 1e-4, 1785, 230, 79.9),
    64480: LARSPoint(26.0, 31, 0.951807, 1e-4, None, 155, 86.1),  # published as 90 epochs
    65536: LARSPoint(24.699, 31, 0.951807, 1e-4, 1133, 128, 84.5),
    67840: LARSPoint(24.699, 31, 0.951807, 1e-4, 1133, 424, 85.86),
}


class BERTPoint(NamedTuple):
    """A row of MLPerf's BERT; the last column is the mean over the reference runs."""

    learning_rate: float
    train_steps: int
    warmup_steps: int
    start_step: int
    beta_1: float
    beta_2: float
    weight_decay: float
    samples_to_target: int


# The same repository, rcps_bert.json. Where versions differ, the later.
MLPERF_BERT = {
    256: BERTPoint(3.5e-4, 13700, 0, 0, 0.9, 0.999, 0.01, 2_553_000),
    448: BERTPoint(4.25e-4, 6700, 0, 0, 0.9, 0.999, 0.01, 2_411_000),
    1536: BERTPoint(2e-3, 2254, 0, 0, 0.66, 0.996, 0.01, 2_778_000),
    3072: BERTPoint(2e-3, 1141, 100, 0, 0.66, 0.998, 0.01, 2_768_000),
    4096: BERTPoint(2.4e-3, 855, 0, 0, 0.66, 0.998, 0.01, 2_843_000),
    4608: BERTPoint(3.5e-3, 700, 0, 0, 0.62, 0.9, 0.01, 2_795_000),
    6144: BERTPoint(2.9293e-3, 700, 0, -700, 0.7206, 0.78921, 0.001, 3_321_000),
    6912: BERTPoint(2.9293e-3, 700, 0, -700, 0.7206, 0.78921, 0.001, 3_596_000),
    8192: BERTPoint(2.88293e-3, 600, 287, -76, 0.88, 0.88, 0.0166629, 4_191_000),
    8704: BERTPoint(2.971656e-3, 600, 287, -76, 0.88, 0.88, 0.0166629, 4_278_000),
    12288: BERTPoint(3.1e-3, 500, 300, -100, 0.8, 0.925, 0.0166629, 4_470_000),
    13056: BERTPoint(3.19540686e-3, 500, 300, -100, 0.8, 0.925, 0.0166629, 4_633_000),
    16384: BERTPoint(3.3e-3, 600, 290, -100, 0.75, 0.9, 0.0166629, 5_504_000),
}


Point = TypeVar("Point")


def _point(name: str, points: Mapping[int, Point], batch_size: int) -> Point:
    if batch_size not in points:
        known = ", ".join(f"{batch:,}" for batch in points)
        raise ValueError(f"{name} has no reference point at batch {batch_size:,}; it has {known}.")
    return points[batch_size]


def mlperf_lars(batch_size: int) -> Recipe:
    """MLPerf's reference points of LARS for ResNet-50 on ImageNet, to 75.9 % top-1.

    The rate warms up from 0, then falls as a polynomial of power 2 to 1e-4 (in the reference code,
    at the step after the last). The logged decay steps sometimes include warmup and sometimes do
    not. This function reads them as all of training. If training would then end before the mean
    number of epochs of the reference runs, it reads them as the steps after warmup.

    Args:
        batch_size: A batch size of the table.

    Raises:
        ValueError: if the table has no such row; the message lists the rows.

    Example:
        >>> recipe = mlperf_lars(32768)
        >>> recipe.learning_rate, recipe.momentum, recipe.warmup_steps, recipe.train_steps
        (21.2, 0.94, 626, 2267)

    References:
        github.com/mlcommons/logging, mlperf_logging/rcp_checker, v1.0 to v4.0.
    """
    batch_size = checks.integer("batch_size", batch_size)
    point = _point("mlperf_lars", MLPERF_LARS, batch_size)
    warmup_steps = epochs_to_steps(point.warmup_epochs, IMAGENET, batch_size)
    if point.decay_steps is None:
        train_steps = epochs_to_steps(90, IMAGENET, batch_size)
        decay_lines = [in_epochs("training", 90, IMAGENET, batch_size)]
    else:
        decay_epochs = point.decay_steps * batch_size / IMAGENET
        whole_run = decay_epochs >= point.epochs_to_target - 0.05  # published to one digit
        train_steps = point.decay_steps + (0 if whole_run else warmup_steps)
        reading = "so all of training" if whole_run else "so what follows warmup"
        decay_lines = [
            f"decay steps = {point.decay_steps:,} = {decay_epochs:.1f} epochs; the target took "
            f"{point.epochs_to_target:g}, {reading}",
            f"training = {train_steps:,} steps",
        ]
    return Recipe(
        title="MLPerf ResNet-50",
        model="ResNet-50",
        optimizer="LARS",
        batch_size=batch_size,
        learning_rate=point.learning_rate,
        end_learning_rate=1e-4,
        warmup_steps=warmup_steps,
        train_steps=train_steps,
        power=2.0,
        weight_decay=point.weight_decay,
        exclude_from_weight_decay=NORM_AND_BIAS,
        momentum=point.momentum,
        epsilon=0.0,
        trust_coefficient=0.001,
        batch_norm_span=point.batch_norm_span,
        examples=IMAGENET,
        epochs=train_steps * batch_size / IMAGENET,
        warmup_epochs=point.warmup_epochs,
        arithmetic=(
            f"learning rate = {point.learning_rate:g}",
            in_epochs("warmup", point.warmup_epochs, IMAGENET, batch_size),
            *decay_lines,
        ),
        source="mlcommons/logging, reference convergence points of ResNet, v1.0 to v4.0",
    )


def mlperf_lamb_bert(batch_size: int) -> Recipe:
    """MLPerf's reference points of LAMB for BERT-large, from its checkpoint to 72 % masked words.

    Decay is linear and counts from step 0. If the published warmup starts before step 0, training
    starts inside the warmup. For a start at -76, it starts at 76/287 of the peak, and 211 of 287
    warmup steps remain.

    Args:
        batch_size: A batch size of the table.

    Raises:
        ValueError: if the table has no such row; the message lists the rows.

    Example:
        >>> recipe = mlperf_lamb_bert(8192)
        >>> recipe.learning_rate, recipe.warmup_steps, recipe.train_steps, recipe.beta_1
        (0.00288293, 211, 600, 0.88)

    References:
        github.com/mlcommons/logging, mlperf_logging/rcp_checker, v1.0 to v5.1; github.com/
        mlcommons/training, retired_benchmarks/bert.
    """
    batch_size = checks.integer("batch_size", batch_size)
    point = _point("mlperf_lamb_bert", MLPERF_BERT, batch_size)
    rate, warmup, start = point.learning_rate, point.warmup_steps, point.start_step
    lines = [f"learning rate = {rate:g}", f"training = {point.train_steps:,} steps"]
    if warmup and start:
        first = rate * -start / warmup
        lines.append(
            f"warmup = {warmup} steps from step {start}, so {warmup + start} from step 0, where "
            f"the rate is {rate:g} x {-start} / {warmup} = {first:.4g}"
        )
    else:
        first = 0.0
        lines.append(f"warmup = {warmup} steps")
    lines.append(f"the target took {point.samples_to_target:,} examples")
    return Recipe(
        title="MLPerf BERT-large, from its checkpoint",
        model="BERT",
        batch_size=batch_size,
        learning_rate=rate,
        initial_learning_rate=first,
        warmup_steps=warmup + start if warmup else 0,
        train_steps=point.train_steps,
        handover="drop",
        weight_decay=point.weight_decay,
        arithmetic=tuple(lines),
        source="mlcommons/logging, reference convergence points of BERT, v1.0 to v5.1",
        **{**UNTUNED_LAMB, "beta_1": point.beta_1, "beta_2": point.beta_2},
    )
