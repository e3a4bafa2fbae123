"""Summarizes a run from its folder: a few lines of text and a picture."""

import os
import shlex

import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from tf_lamb.api import plots
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.common.yamls import at
from tf_lamb.model_garden.folders import checkpoints, model_dirs

_BATCH = "task.train_data.global_batch_size"
# Tag of an accuracy in TensorBoard -> the name of its row in the report, what the model predicts,
# and the keys of data.json for the most common answer and for its share of all answers.
_ACCURACIES = {
    "masked_lm_accuracy": (
        "masked-LM accuracy", "masked token",
        "validation_commonest_masked_token", "validation_commonest_masked_share",
    ),
    "accuracy": (
        "top-1 accuracy", "class",
        "validation_commonest_class", "validation_commonest_class_share",
    ),
}  # fmt: skip


def read_scalars(folder: str) -> dict[str, dict[int, float]]:
    """Reads the scalars of TensorBoard's event files in a folder.

    Returns:
        A dict of dicts, tag -> step -> value; {} if there is no folder. If several files have a
        value for the same step, that of the later file is returned.
    """
    if not tf.io.gfile.isdir(folder):
        return {}
    files = event_accumulator.EventAccumulator(
        folder, {event_accumulator.TENSORS: 0}, purge_orphaned_data=False
    )
    files.Reload()
    scalars = {}
    for tag in files.Tags()[event_accumulator.TENSORS]:
        values = {event.step: tf.make_ndarray(event.tensor_proto) for event in files.Tensors(tag)}
        if all(value.ndim == 0 and value.dtype.kind == "f" for value in values.values()):
            scalars[tag] = {step: float(values[step]) for step in sorted(values)}
    return scalars


def report(model_dir: str) -> str:
    """Writes the picture report.png into the folder, and returns the report.

    Args:
        model_dir: the folder of the run.

    Returns:
        The report as text, with a line for each fact, such as the loss.

    Raises:
        FileNotFoundError: if the folder has no checkpoint, or no params.yaml with
            `trainer.train_steps`.
    """
    params = model_dirs.read_params(model_dir)
    checkpoint = checkpoints.first_readable(model_dir)
    train_steps = at(params, "trainer.train_steps")
    if checkpoint is None or not isinstance(train_steps, int):
        file = "checkpoint" if checkpoint is None else "params.yaml with trainer.train_steps"
        raise FileNotFoundError(
            f"--model_dir={model_dir} holds no run of the Model Garden: it has no {file}. Name the "
            "--model_dir of tf_lamb.model_garden.train"
        )
    rows = [("steps", f"{checkpoints.steps_done(model_dir):,} of {train_steps:,}")]
    if batch := at(params, _BATCH):
        rows.append(("global batch", _shown(batch, params)))
    train = read_scalars(os.path.join(model_dir, "train"))
    if points := train.get("training_loss"):
        (first_step, first_loss), *_, (last_step, last_loss) = [*points.items()] * 2
        rows.append(
            (
                "training loss",
                f"{first_loss:.3f} (to step {first_step:,}) -> {last_loss:.3f} ({last_step:,})",
            )
        )
    summary_subdir = at(params, "trainer.validation_summary_subdir") or "validation"
    validation = read_scalars(os.path.join(model_dir, summary_subdir))
    if points := validation.get("validation_loss"):
        step, loss = [*points.items()][-1]
        rows.append(("validation loss", f"{loss:.3f} (step {step:,})"))
    for tag, (name, *answer_keys) in _ACCURACIES.items():
        if points := validation.get(tag):
            step, accuracy = [*points.items()][-1]
            text = f"{accuracy:.1%} on validation (step {step:,})"
            rows.append((name, text + _share(params, *answer_keys)))
    rows.append(("checkpoints", f"{model_dir} (latest: {os.path.basename(checkpoint)})"))
    rows.append(("picture", _drawn(model_dir, params, train, validation)))
    rows.append(("TensorBoard", f"tensorboard --logdir={shlex.quote(model_dir)}"))
    return "\n".join(f"{name:<20}{value}" for name, value in rows)


def _drawn(model_dir: str, params, train, validation) -> str:
    """Draws the losses, rates, noise scales and trust ratios into report.png.

    Returns the path of the picture, or "none" with the reason.
    """
    scalars, prefix = read_scalars(os.path.join(model_dir, "trust_ratios")), "trust_ratio/"
    losses = _curves(train, training_loss="training")
    losses |= _curves(validation, validation_loss="validation")
    rates = _curves(train, learning_rate="learning rate", scaled_learning_rate="AdaScale's rate")
    noise_scales = _curves(train, noise_scale="noise scale")
    ratios = {tag.removeprefix(prefix): scalars[tag] for tag in scalars if tag.startswith(prefix)}
    batch_size = at(params, _BATCH) or 0
    panels = [
        (losses, lambda ax: plots.draw_curves(ax, "loss", losses)),
        (rates, lambda ax: plots.draw_curves(ax, "learning rate", rates)),
        (noise_scales, lambda ax: plots.noise_scale(noise_scales["noise scale"], batch_size, ax)),
        (ratios, lambda ax: plots.trust_ratios(ratios, ax)),
    ]
    drawings = [draw for curves, draw in panels if plots.has_points(curves)]
    if not drawings:
        return "none: TensorBoard's files hold no scalars"
    path = os.path.join(model_dir, "report.png")
    try:
        axes = plots.make_axes("a run", rows=len(drawings), is_pyplot=False)
        for draw, ax in zip(drawings, axes, strict=True):
            draw(ax)
        with (
            checkpoints.atomic_write(path) as temporary,
            tf.io.gfile.GFile(temporary, "wb") as file,
        ):
            axes[0].figure.savefig(file, format="png", dpi=110)
    except (ModuleNotFoundError, UserError) as error:
        return f"none: {error}"
    return path


def _curves(scalars, **labels: str) -> plots.Curves:
    """Returns the curves of a plot: label -> step -> value.

    `labels` maps tags of TensorBoard to labels. Tags that `scalars` lacks are left out.
    """
    return {label: scalars[tag] for tag, label in labels.items() if tag in scalars}


def _shown(batch: int, params) -> str:
    """Formats a batch size and its micro-batches: `512 (128 x 4 accumulated)` is 4 of 128 each."""
    optimizer = "trainer.optimizer_config.optimizer"
    path = f"{optimizer}.{at(params, f'{optimizer}.type')}"
    micro_batches = at(params, f"{path}.gradient_accumulation_steps") or 1
    return f"{batch:,}" + (
        f" ({batch // micro_batches:,} x {micro_batches} accumulated)" if micro_batches > 1 else ""
    )


def _share(params, what: str, answer_key: str, share_key: str) -> str:
    """Returns a clause on the accuracy that a constant answer would reach, for comparison.

    The constant is the most common answer in the validation data. Returns "" if the data.json of
    these data does not have it.

    Args:
        params: the settings in params.yaml, as a dict.
        what: what the model predicts, such as "class".
        answer_key: the key of the most common answer in data.json.
        share_key: the key of its share of all answers in data.json.
    """
    path = at(params, "task.validation_data.input_path")
    facts = model_dirs.read_facts(path) if isinstance(path, str) else {}
    if share_key not in facts:
        return ""
    answer = facts.get(answer_key)
    return f"; always answering {answer!r}, the commonest {what}, gives {facts[share_key]:.1%}"
