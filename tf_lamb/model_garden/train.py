"""Trains and evaluates an experiment with Model Garden's own main, after early checks.

    python -m tf_lamb.model_garden.train --experiment=lamb/bert_pretraining \\
        --config_file=bert_small_cpu.yaml --mode=train_and_eval --model_dir=/tmp/bert_small

The flags are those of `official.nlp.train`, and all of its experiments run here. In addition:

*   `--config_file` takes a YAML file, or the name of one that comes with this package, such as
    bert_small_cpu.yaml; `--help` names their folder;
*   `--global_batch_size` sets the number of examples of an update, and a recipe computes the other
    settings: learning rate, warmup, number of steps, and intervals of checkpoints and evaluations.
    The default recipe, LEGW (linear-epoch gradual warmup), scales the experiment's own settings.
    For `lamb/bert_pretraining` and the ResNets the result equals the published tables;
*   `--per_replica_batch_size` limits the examples that a replica holds at once; if the batch has
    more, the run accumulates the gradients of several micro-batches;
*   flags, settings and data are checked before anything is written, and the first mistake is
    reported in one line;
*   two runs with the same `--seed` start from the same weights;
*   `--gin_params='import MODULE'` imports a module that registers more experiments, as in Model
    Garden's own mains;
*   a run resumes from the last complete checkpoint, also with several workers;
*   a run shows one line of progress; the output of TensorFlow and Model Garden goes to `train.log`
    in the model_dir, or with `--verbosity=1` to the console;
*   a run ends with a short report, which `python -m tf_lamb.model_garden.report` prints again.

To stop a run, press Ctrl-C. To resume it, give the same command again. If the run was stopped
before an evaluation that was due, that evaluation is made first.
"""

import sys
from collections.abc import Container

from tf_lamb.model_garden.common.errors import begin

if __name__ == "__main__":
    begin("train")  # before the first import of a package that only the Model Garden brings

from absl import app, flags

from tf_lamb.model_garden.checks.flags import MODES, check_flags, parse_flags
from tf_lamb.model_garden.common import yamls
from tf_lamb.model_garden.common.console import Console
from tf_lamb.model_garden.common.errors import named, one_line

# The experiments of this package, which `--help` names.
OURS = (
    "lamb/bert_pretraining",
    "lamb/bert_pretraining_phase2",
    "lamb/resnet_imagenet",
    "lars/resnet_imagenet",
)

# The flags that `--help` lists.
_LISTED = (
    "experiment", "config_file", "mode", "model_dir", "params_override", "seed",
    "global_batch_size", "recipe", "per_replica_batch_size", "tpu", "tf_data_service",
    "gin_params", "gin_file",
)  # fmt: skip


def define_flags(unlisted: Container[str] = ()) -> None:
    """Defines the flags of Model Garden and of this package, without marking any as required.

    Args:
        unlisted: Flags that `--help` does not list, because the command refuses them elsewhere.
            They are defined all the same. Defaults to none.
    """
    from official.common import flags as model_garden_flags

    from tf_lamb.model_garden.experiments import scaling

    model_garden_flags.define_flags()
    flags.FLAGS[
        "experiment"
    ].help = f"What to train, and what it begins with: {', '.join(OURS)} or one of Model Garden's."
    flags.FLAGS["config_file"].help = (
        "A YAML file, or the name of one that comes with this package, such as "
        f"bert_small_cpu.yaml; they are in {yamls.shipped_folder()}."
    )
    flags.FLAGS["mode"].help = f"<{'|'.join(MODES)}>: What to do."
    flags.FLAGS["gin_params"].help = "'import MODULE' imports what registers more experiments."
    flags.DEFINE_integer(
        "seed", None, "Two runs with one seed start from the same weights.", lower_bound=0
    )
    flags.DEFINE_integer(
        "global_batch_size", None, "Examples an update; --recipe fills in the rest.", lower_bound=1
    )
    flags.DEFINE_enum(
        "recipe",
        None,
        scaling.RECIPES,
        "What fills in the rest: a rule that scales what the experiment says of its own batch "
        "(legw, the default, sqrt, transfer), or a published recipe.",
    )
    flags.DEFINE_integer(
        "per_replica_batch_size",
        None,
        "The most examples that a replica holds at once; the rest of the batch is accumulated.",
        lower_bound=1,
    )
    for name in _LISTED:
        if name in unlisted:
            continue
        # --help lists the flags that the command's own module defined, or that are registered for
        # it as key flags.
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])


def read(args, replicas: int | None = None):
    """Checks the flags, and returns the experiment that they describe.

    Registers this package's experiments, and runs the modules that the Gin flags import. Prints how
    `--global_batch_size` and `--per_replica_batch_size` change its settings.

    Args:
        args: The flags.
        replicas: The number of replicas of the run, if its settings do not say it. Defaults to
            None.

    Returns:
        The `ExperimentConfig` of the experiment.

    Raises:
        UserError: if a flag, a file or a setting is wrong.
    """
    check_flags(args)
    # A missing file is reported before TensorFlow is imported, which takes seconds.
    yamls.read_files(args.config_file)
    register()
    from tf_lamb.model_garden.experiments import parsing

    params, arithmetic = parsing.parse(args, replicas=replicas)
    if arithmetic:
        print(arithmetic, flush=True)
    return params


def register() -> None:
    """Registers this package's experiments, and those of modules that the Gin flags import.

    Raises:
        UserError: if Gin cannot read its files or bindings.
    """
    import gin

    from tf_lamb import model_garden

    model_garden.register()
    # A Gin file may import a module that registers more experiments, so the files are parsed here,
    # before the experiment is looked up. `finalize_config=False` leaves Gin's configuration open,
    # because Model Garden parses the same files again later, and then locks it.
    files, bindings = flags.FLAGS.gin_file or [], flags.FLAGS.gin_params or []
    error_types = ImportError, LookupError, NameError, OSError, SyntaxError, TypeError, ValueError
    for name, source in (("gin_file", files), ("gin_params", bindings)):
        flag_text = " ".join(f"--{name}={text!r}" for text in source)
        with named(f"{flag_text} cannot be read", error_types):
            gin.parse_config_files_and_bindings(
                source if name == "gin_file" else None,
                source if name == "gin_params" else None,
                finalize_config=False,
            )


def run(console, params) -> None:
    """Trains and evaluates an experiment in the mode of the flag `--mode`; see `running.run.run`.

    Args:
        console: The `Console` of the command.
        params: The experiment's `ExperimentConfig`.
    """
    from tf_lamb.model_garden.running.run import run

    run(console, params, flags.FLAGS)


def _run(_) -> None:
    """Runs the command, and reports a `UserError` in one line."""
    with Console() as console, one_line("train"):
        run(console, read(flags.FLAGS))


def main() -> None:
    """Defines the flags and runs the command."""
    define_flags()
    flags.mark_flags_as_required(["experiment", "mode", "model_dir"])
    app.run(_run, flags_parser=lambda args: parse_flags(args, "train"))


if __name__ == "__main__":
    main()
