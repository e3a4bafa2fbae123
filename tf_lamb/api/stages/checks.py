"""What cannot be trained in stages: one sentence each, before any step."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from tf_lamb.api.optimizers.layerwise import Layerwise
from tf_lamb.api.variables import step_of, unwrapped, waiting_in
from tf_lamb.core.epochs import Epochs, Stage
from tf_lamb.core.messages import warn

SET_RATES = {"LearningRateScheduler", "ReduceLROnPlateau"}  # of Keras; ours say so themselves
NEAR = 1e-5  # of two rates that are the same in float32
SEVERAL = (
    "The data are read in one process here, and {} train the model: search in one, and train each "
    "stage of a recipe by a fit of its own, on a dataset that is dealt out."
)


def stages_of(recipe: Any, optimizer: Any) -> tuple[Stage, ...]:
    """The stages of a recipe, with the calls that the optimizer takes for an update of each.

    Raises:
        ValueError: if the sequence length changes or the batch shrinks, or where the optimizer's
            micro-batches do not fit the stages.
    """
    lengths = list(dict.fromkeys(stage.sequence_length for stage in recipe.stages))
    if len(lengths) > 1:
        raise ValueError(
            f"The stages of {recipe.title} have sequence lengths of "
            f"{' and '.join(map(str, lengths))}, which are different data: train each stage by a "
            "fit of its own."
        )
    found: list[Stage] = []
    starts, start, counts = [], 0, _accumulated(optimizer)
    for number, stage in enumerate(recipe.stages, 1):
        if found and stage.batch_size < found[-1].batch:
            raise ValueError(
                f"Stage {number} of {recipe.title} has a batch of {stage.batch_size:,}, and the "
                f"one before {found[-1].batch:,}: the batch can only grow."
            )
        calls = [count for step, count in counts.items() if step <= start][-1]
        if stage.batch_size % calls:
            raise ValueError(
                f"Stage {number} of {recipe.title} has a batch of {stage.batch_size:,}, which "
                f"gradient_accumulation_steps={calls} of the optimizer does not divide."
            )
        found.append(Stage(stage.batch_size, stage.train_steps, calls))
        starts.append(start)
        start += stage.train_steps
    if others := [step for step in counts if step not in starts]:
        raise ValueError(
            f"gradient_accumulation_steps of the optimizer changes at step {others[0]:,}, where no "
            f"stage of {recipe.title} begins: they begin at {', '.join(map(str, starts))}."
        )
    return tuple(found)


def _accumulated(optimizer) -> Mapping[int, int]:
    """Optimizer step -> micro-batches of an update from there on."""
    inner = unwrapped(optimizer)
    if isinstance(inner, Layerwise):
        given = inner._settings.gradient_accumulation_steps or 1
        return given if isinstance(given, Mapping) else {0: given}
    if steps := getattr(inner, "gradient_accumulation_steps", None):
        raise ValueError(
            f"gradient_accumulation_steps={steps} of Keras's {type(inner).__name__} cannot grow, "
            "and its learning rate counts micro-batches: leave it out, or take an optimizer of "
            "tf_lamb, with gradient_accumulation_steps={0: 1, 500: 2} for instance."
        )
    return {0: 1}


def check_model(model: Any) -> None:
    """Raises for a model that `fit_stages` cannot train."""
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            "The model is not compiled: call model.compile(optimizer=..., loss=...) first, with a "
            "learning rate of recipe.schedule()."
        )
    optimizer = model.optimizer
    while True:
        if type(optimizer).__name__ in ("AdaScale", "MeasureNoise"):
            raise ValueError(
                f"{type(optimizer).__name__} measures gradients at one batch, and this one grows: "
                "compile the model with the optimizer inside it."
            )
        if (inner := getattr(optimizer, "inner_optimizer", None)) is None:
            break
        optimizer = inner
    if hasattr(optimizer, "optimizers"):
        raise ValueError(
            f"{type(optimizer).__name__} has several rates, and a recipe has one: compile the "
            "model with one optimizer. Those of tf_lamb have treatments, with a rate for layers."
        )
    steps, waiting = step_of(optimizer), waiting_in(optimizer)
    begun = f" and {waiting:,} micro-batches" if waiting else ""
    if steps or begun:
        raise ValueError(
            f"The optimizer has made {steps:,} steps{begun}, and the recipe begins at step 0: "
            "compile the model with a new optimizer. After a kill, BackupAndRestore goes on."
        )


def check_rates(recipe: Any, optimizer: Any, schedule: Any) -> None:
    """Raises where the optimizer's learning rate is not the recipe's."""
    inner = unwrapped(optimizer)
    own = inner._learning_rate  # seam: Keras 3.15.1, tf_keras 2.20.1
    end = 0
    for number, stage in enumerate(recipe.stages, 1):
        begin, end = end, end + stage.train_steps
        for step in (begin, end - 1):
            wanted = float(schedule(step))
            is_schedule = hasattr(own, "get_config")  # a function has no step
            rate = float(own(step) if is_schedule else inner.learning_rate)
            if not math.isclose(rate, wanted, rel_tol=NEAR, abs_tol=1e-12):
                raise ValueError(
                    f"The optimizer's learning rate at step {step:,}, of stage {number}, is "
                    f"{rate:.6g}, and that of {recipe.title} is {wanted:.6g}: compile the model "
                    "with an optimizer from_recipe(recipe), or with learning_rate="
                    "recipe.schedule()."
                )


def check_examples(recipe: Any, epochs: Epochs, examples: int | None) -> None:
    """Raises for a stage of more than all examples, or for other examples than there are.

    Warns where the recipe was made for another number.
    """
    if examples not in (None, epochs.examples):
        raise ValueError(
            f"examples={examples}, but the arrays of data hold {epochs.examples:,}: leave it out."
        )
    if (told := recipe.stages[0].examples) not in (None, epochs.examples):
        warn(
            f"{recipe.title} is for {told:,} examples, and the data has {epochs.examples:,}, so "
            f"that its {recipe.train_steps:,} updates are {epochs.count} epochs: make the recipe "
            f"for {epochs.examples:,} examples."
        )
    for number, stage in enumerate(epochs.stages, 1):
        if stage.batch > epochs.examples:
            raise ValueError(
                f"Stage {number} of {recipe.title} has a batch of {stage.batch:,}, more than all "
                f"{epochs.examples:,} examples: take a recipe with a smaller batch, or more data."
            )


def replicas_of(model: Any) -> int:
    """The replicas of a `tf.distribute` strategy that share a call; raises for several workers."""
    strategy = getattr(model, "distribute_strategy", None)
    if any(kind in type(strategy).__name__ for kind in ("MultiWorker", "ParameterServer")):
        raise ValueError(SEVERAL.format("several"))
    return getattr(strategy, "num_replicas_in_sync", 1)


def check_devices(stages: tuple[Stage, ...], devices: int) -> None:
    """Raises for a call that devices cannot share."""
    for number, stage in enumerate(stages, 1):
        if (stage.batch // stage.calls) % devices:
            raise ValueError(
                f"A call of stage {number} has {stage.batch // stage.calls:,} examples, which "
                f"{devices} devices cannot share: take a batch that they divide."
            )


def check_restored(recipe: Any, optimizer: Any, epoch: int, planned: int) -> None:
    """Raises where a backup, of which this epoch is the next, is of another recipe or other data.

    `planned` updates were due before it; a step that was skipped is none.
    """
    steps, inner = step_of(optimizer), unwrapped(optimizer)
    skips = inner is not optimizer or any(
        getattr(inner, name, 0) for name in ("skipped_steps", "spiked_steps")
    )
    if steps > planned or steps < planned and not skips:
        raise ValueError(
            f"The optimizer was restored to step {steps:,}, and epoch {epoch + 1} of "
            f"{recipe.title} begins at step {planned:,}: go on with the recipe and the data that "
            "the backup is of, or name another backup_dir to begin anew."
        )


def check_callbacks(callbacks: Iterable[Any]) -> None:
    """Raises for a backup within an epoch, and for a second schedule."""
    for each in callbacks:
        names = [cls.__name__ for cls in type(each).__mro__]
        own = {type(each).__name__} if getattr(each, "sets_learning_rate", False) else set()
        for name in own | SET_RATES.intersection(names):
            raise ValueError(
                f"{name} sets a learning rate of its own, and here it is the recipe's: leave "
                f"{name} out."
            )
        frequency = getattr(each, "save_freq", "epoch")
        if "BackupAndRestore" in names and (
            frequency != "epoch" or getattr(each, "save_before_preemption", False)
        ):
            raise ValueError(
                f"BackupAndRestore with save_freq={frequency!r} would go on within an epoch: leave "
                "save_freq and save_before_preemption out, so that it saves after each epoch."
            )
