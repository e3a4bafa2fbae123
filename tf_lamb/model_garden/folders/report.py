"""A run summarized from its folder: a few lines and a picture."""

import os
import shlex

import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from tf_lamb.api import plots
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.common.yamls import at
from tf_lamb.model_garden.folders import checkpoints, model_dirs

_BATCH = "task.train_data.global_batch_size"
# Tag -> the row, what an answer is, and where data.json has the commonest one and its share.
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
    """The scalars in event files, tag -> step -> value; where files overlap, the later one wins."""
    if not tf.io.gfile.isdir(folder):
        return {}
    files = event_accumulator.EventAccumulator(
        folder, {event_accumulator.TENSORS: 0}, purge_orphaned_data=False
    )
    files.Reload()
    scalars = {}
    for tag in files.Tags()[event_accumulator.TENSORS]:
        read = {event.step: tf.make_ndarray(event.tensor_proto) for event in files.Tensors(tag)}
        if all(value.ndim == 0 and value.dtype.kind == "f" for value in read.values()):
            scalars[tag] = {step: float(read[step]) for step in sorted(read)}
    return scalars


def report(model_dir: str) -> str:
    """The report as text; writes its picture, report.png, into the folder."""
    params = model_dirs.read_params(model_dir)
    checkpoint, of_all = checkpoints.readable(model_dir), at(params, "trainer.train_steps")
    if checkpoint is None or not isinstance(of_all, int):
        lack = "checkpoint" if checkpoint is None else "params.yaml with trainer.train_steps"
        raise FileNotFoundError(
            f"--model_dir={model_dir} holds no run of the Model Garden: it has no {lack}. Name the "
            "--model_dir of tf_lamb.model_garden.train"
        )
    rows = [("steps", f"{checkpoints.steps_done(model_dir):,} of {of_all:,}")]
    if batch := at(params, _BATCH):
        rows.append(("global batch", _shown(batch, params)))
    train = read_scalars(os.path.join(model_dir, "train"))
    if points := train.get("training_loss"):
        (first, start), *_, (last, end) = [*points.items()] * 2
        rows.append(("training loss", f"{start:.3f} (to step {first:,}) -> {end:.3f} ({last:,})"))
    subdir = at(params, "trainer.validation_summary_subdir") or "validation"
    validation = read_scalars(os.path.join(model_dir, subdir))
    if points := validation.get("validation_loss"):
        step, loss = [*points.items()][-1]
        rows.append(("validation loss", f"{loss:.3f} (step {step:,})"))
    for tag, (name, *answer) in _ACCURACIES.items():
        if points := validation.get(tag):
            step, accuracy = [*points.items()][-1]
            text = f"{accuracy:.1%} on validation (step {step:,})"
            rows.append((name, text + _share(params, *answer)))
    rows.append(("checkpoints", f"{model_dir} (latest: {os.path.basename(checkpoint)})"))
    rows.append(("picture", _drawn(model_dir, params, train, validation)))
    rows.append(("TensorBoard", f"tensorboard --logdir={shlex.quote(model_dir)}"))
    return "\n".join(f"{name:<20}{value}" for name, value in rows)


def _drawn(model_dir: str, params, train, validation) -> str:
    """Draws loss, rate, noise scale and trust ratios, and says where, or why there is none."""
    watched, begin = read_scalars(os.path.join(model_dir, "trust_ratios")), "trust_ratio/"
    losses = _named(train, training_loss="training")
    losses |= _named(validation, validation_loss="validation")
    rates = _named(train, learning_rate="learning rate", scaled_learning_rate="AdaScale's rate")
    noise = _named(train, noise_scale="noise scale")
    ratios = {tag.removeprefix(begin): watched[tag] for tag in watched if tag.startswith(begin)}
    batch = at(params, _BATCH) or 0
    panels = [
        (losses, lambda ax: plots.lines(ax, "loss", losses)),
        (rates, lambda ax: plots.lines(ax, "learning rate", rates)),
        (noise, lambda ax: plots.noise_scale(noise["noise scale"], batch, ax)),
        (ratios, lambda ax: plots.trust_ratios(ratios, ax)),
    ]
    drawing = [draw for curves, draw in panels if plots.has_points(curves)]
    if not drawing:
        return "none: TensorBoard's files hold no scalars"
    path = os.path.join(model_dir, "report.png")
    try:
        axes = plots.given_or_new("a run", rows=len(drawing), shown=False)
        for draw, ax in zip(drawing, axes, strict=True):
            draw(ax)
        with (
            checkpoints.atomic_write(path) as temporary,
            tf.io.gfile.GFile(temporary, "wb") as file,
        ):
            axes[0].figure.savefig(file, format="png", dpi=110)
    except (ModuleNotFoundError, UserError) as why:
        return f"none: {why}"
    return path


def _named(scalars, **labels: str) -> plots.Curves:
    return {label: scalars[tag] for tag, label in labels.items() if tag in scalars}


def _shown(batch: int, params) -> str:
    """A batch, and the micro-batches of it."""
    optimizer = "trainer.optimizer_config.optimizer"
    chosen = f"{optimizer}.{at(params, f'{optimizer}.type')}"
    parts = at(params, f"{chosen}.gradient_accumulation_steps") or 1
    return f"{batch:,}" + (f" ({batch // parts:,} x {parts} accumulated)" if parts > 1 else "")


def _share(params, what: str, answer_key: str, share_key: str) -> str:
    path = at(params, "task.validation_data.input_path")
    facts = model_dirs.read_facts(path) if isinstance(path, str) else {}
    if share_key not in facts:
        return ""
    answer = facts.get(answer_key)
    return f"; always answering {answer!r}, the commonest {what}, gives {facts[share_key]:.1%}"
