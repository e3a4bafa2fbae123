"""Exports the model of a run as a SavedModel, for TensorFlow Serving or `tf.saved_model.load`.

    python -m tf_lamb.model_garden.export --model_dir=/tmp/bert_small --export_dir=/tmp/served

The model is built from the settings in the params.yaml of the run. Its weights come from the last
complete checkpoint, or from `--checkpoint`, which is the path of a checkpoint or of its folder. The
SavedModel is for inference only: it has no optimizer and no dropout, and its batch normalization
uses the moving averages of training.

    model = tf.saved_model.load("/tmp/served")
    model.signatures["serving_default"](...)

The signature of an image classifier takes `inputs`, integers from 0 to 255 of the shape (batch,
height, width, 3). It crops and scales the images as an evaluation does, and returns `logits` and
`probs`. With `--input_type=image_bytes` it takes the bytes of JPEGs or PNGs.

The signature of a BERT takes `input_word_ids`, `input_mask` and `input_type_ids`, in the format of
the training records. For a model from pretraining it also takes `masked_lm_positions`. It returns
the same outputs as Model Garden's own export of the task. For a model from pretraining that is the
output of the next-sentence head.
"""

import os

from tf_lamb.model_garden.common.errors import begin

if __name__ == "__main__":
    begin("export")  # before the first import of a package that only the Model Garden brings

from absl import app, flags

from tf_lamb.model_garden import train
from tf_lamb.model_garden.common.console import Console
from tf_lamb.model_garden.common.errors import UserError, named, one_line

# The values of `--input_type`, as Model Garden names them.
_OF_PICTURES = ("image_tensor", "image_bytes", "tf_example")


def define_flags() -> None:
    """Defines the flags of this command, without marking any as required."""
    flags.DEFINE_string("model_dir", None, "The --model_dir of a run.")
    flags.DEFINE_string("export_dir", None, "A folder for the SavedModel; not overwritten.")
    flags.DEFINE_string("checkpoint", None, "A checkpoint or its folder; or the last of the run.")
    flags.DEFINE_string("experiment", None, "What was trained, where the folder does not say it.")
    flags.DEFINE_enum(
        "input_type", "image_tensor", _OF_PICTURES, "What a classifier of pictures takes."
    )
    flags.DEFINE_multi_string("gin_file", None, "Files for Gin.")
    flags.DEFINE_multi_string(
        "gin_params", None, "'import MODULE' imports what registers more experiments."
    )


def experiment_of(model_dir: str, name: str | None = None):
    """Returns the experiment that was trained in a folder.

    Args:
        model_dir: The folder of the run.
        name: The name of the experiment. Defaults to None: the name that the run has written into
            its folder.

    Raises:
        UserError: if the folder has no params.yaml or no name of an experiment, if the name is
            unknown, or if the settings in params.yaml do not fit that experiment.
    """
    from official.core import exp_factory

    from tf_lamb.model_garden.common.errors import unknown
    from tf_lamb.model_garden.experiments import parsing
    from tf_lamb.model_garden.folders import model_dirs

    settings = model_dirs.read_params(model_dir)
    if settings is None:
        raise UserError(
            f"--model_dir={model_dir} holds no params.yaml that says what was trained there. Name "
            "the --model_dir of a run"
        )
    if (name := name or model_dirs.read_run(model_dir).get("experiment")) is None:
        raise UserError(f"--model_dir={model_dir} does not say its experiment. Write --experiment")
    if name not in (experiments := sorted(parsing.experiments())):
        raise UserError(unknown("--experiment", name, experiments))
    params = exp_factory.get_exp_config(name)
    with named(f"{model_dir}/params.yaml cannot be applied", (KeyError, TypeError, ValueError)):
        params.override(settings, is_strict=False)
    return params


def weights_of(params, model_dir: str, checkpoint: str | None = None) -> str:
    """Returns the path of the checkpoint to export.

    Args:
        params: The experiment's `ExperimentConfig`.
        model_dir: The folder of the run.
        checkpoint: A checkpoint or its folder. Defaults to None: the last complete one of the run.

    Raises:
        UserError: if there is no checkpoint. Also if the run evaluated moving averages of the
            weights (`ema`) and the checkpoint is not the one with the best result, which is in the
            folder `trainer.best_checkpoint_export_subdir`: only that one holds the averages.
    """
    from tf_lamb.model_garden.folders import checkpoints, model_dirs

    if checkpoint is None:
        path = checkpoints.last_whole(model_dir)
    else:
        path = model_dirs.checkpoint_in(checkpoint)
    if path is None:
        source = f"--checkpoint={checkpoint}" if checkpoint else f"--model_dir={model_dir}"
        raise UserError(f"{source}: there is no checkpoint. Name a run that has saved one")
    best_subdir = params.trainer.best_checkpoint_export_subdir
    if params.trainer.optimizer_config.ema is not None and not (
        best_subdir and os.path.basename(os.path.dirname(path)) == os.path.basename(best_subdir)
    ):
        raise UserError(
            f"{path} holds the weights without their averages, which were evaluated. Export a best "
            "checkpoint, which holds the averages: train with trainer.best_checkpoint_export_subdir"
            f"=best, and write --checkpoint={os.path.join(model_dir, best_subdir or 'best')}"
        )
    return path


def export(params, checkpoint: str, export_dir: str, input_type: str = "image_tensor") -> None:
    """Exports the model of an experiment, with the weights of a checkpoint.

    Args:
        params: The experiment's `ExperimentConfig`.
        checkpoint: The path of the checkpoint, without a suffix such as `.index`.
        export_dir: The folder to create for the SavedModel.
        input_type: The input of an image classifier, as Model Garden's `export_saved_model` names
            it. Defaults to "image_tensor".

    Raises:
        UserError: if Model Garden has no export for the task, or the checkpoint is of another
            model.
    """
    from official.core import export_base, task_factory
    from official.vision.configs import image_classification

    task = task_factory.get_task(params.task, logging_dir=None)
    if isinstance(params.task, image_classification.ImageClassificationTask):
        module, key = _of_pictures(params, task, input_type), input_type
    else:
        module, key = _of_text(params, task), "serve"
    with named(f"{checkpoint} cannot be exported with this model", (AssertionError, ValueError)):
        export_base.export(module, [key], export_dir, checkpoint_path=checkpoint, timestamped=False)


def _of_pictures(params, task, input_type):
    """Returns Model Garden's export module for a classifier of pictures, with the task's model."""
    from official.vision.serving import image_classification

    height, width, *_ = params.task.model.input_size
    return image_classification.ClassificationModule(
        params=params,
        batch_size=None,
        input_image_size=[height, width],
        input_type=input_type,
        model=task.build_model(),
    )


def _of_text(params, task):
    """Returns Model Garden's export module for a text model, with the task's model.

    Raises `UserError` if Model Garden has no module for the task, or if its module returns the
    output of a head that the model lacks.
    """
    from official.nlp.serving import export_savedmodel

    if (export_class := export_savedmodel.lookup_export_module(task)) is None:
        raise UserError(
            f"Model Garden exports nothing of a {type(task).__name__}. Load the checkpoint with "
            "its model"
        )
    settings = export_class.Params()
    if hasattr(settings, "inputs_only"):  # True would export no input for the mask
        settings.inputs_only = False
    head, model_settings = getattr(settings, "cls_head_name", None), params.task.model.as_dict()
    names = [entry["name"] for entry in model_settings.get("cls_heads") or ()]
    if head and head not in names:
        raise UserError(
            f"Model Garden exports of pretraining what the head {head!r} says, and task.model."
            f"cls_heads has {', '.join(map(repr, names)) or 'none'}. Load the checkpoint with its "
            "model, or fine-tune from it"
        )
    return export_class(params=settings, model=task.build_model())


def run(args) -> None:
    """Exports the model of the run that the flags name.

    Args:
        args: The flags.

    Raises:
        UserError: if `--export_dir` exists, or the run cannot be exported.
    """
    if os.path.exists(args.export_dir):
        raise UserError(f"--export_dir={args.export_dir} exists: name another folder, or delete it")
    train.register()
    params = experiment_of(args.model_dir, args.experiment)
    checkpoint = weights_of(params, args.model_dir, args.checkpoint)
    export(params, checkpoint, args.export_dir, args.input_type)
    print(f"Exported {checkpoint} to {args.export_dir}", flush=True)


def _run(_) -> None:
    """Runs the command, and reports a `UserError` in one line."""
    with Console(), one_line("export"):
        run(flags.FLAGS)


def main() -> None:
    """Defines the flags and runs the command."""
    define_flags()
    flags.mark_flags_as_required(["model_dir", "export_dir"])
    app.run(_run)


if __name__ == "__main__":
    main()
