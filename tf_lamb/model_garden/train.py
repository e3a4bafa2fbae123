"""Trains and evaluates an experiment with Model Garden's own main, and refuses early.

    python -m tf_lamb.model_garden.train --experiment=lamb/bert_pretraining \\
        --config_file=model_garden_configs/bert_small_cpu.yaml --mode=train_and_eval \\
        --model_dir=/tmp/bert_small

The flags are those of `official.nlp.train`, and every experiment that it knows runs here too.
Beyond it:

*   what can be known to be wrong is said in one line before anything is written;
*   `--seed` starts two runs from the same weights;
*   `--replace_stock` gives stock experiments with `optimizer.type: lamb` our LAMB;
*   a `multi_worker_mirrored` run resumes;
*   it ends with a short report, which `python -m tf_lamb.model_garden.report` prints again.

To resume a run that stopped, give the same command again.
"""

import sys

from absl import app, flags


def _run(_) -> None:
    import gin
    import tf_keras
    from official.nlp import train as model_garden_train

    from tf_lamb import model_garden
    from tf_lamb.model_garden import checks, model_dirs, multi_worker, parsing, report

    args = flags.FLAGS
    model_garden.register(replace_stock=args.replace_stock)
    # Gin may import what registers more experiments. Model Garden parses it again, and locks it.
    gin.parse_config_files_and_bindings(args.gin_file, args.gin_params, finalize_config=False)
    try:
        params = parsing.parse(args)
        checks.check(params, args.mode, args.model_dir, args.experiment, args.seed)
    except parsing.UserError as error:
        sys.exit(f"tf_lamb.model_garden.train: {error}")

    training = "train" in args.mode
    seed = args.seed
    if seed is None:
        seed = model_dirs.read_run(args.model_dir).get("seed")
    if seed is not None:
        tf_keras.utils.set_random_seed(seed)
    if training:
        model_dirs.write_run(args.model_dir, args.experiment, seed)
    if params.runtime.distribution_strategy.lower() == "multi_worker_mirrored":
        multi_worker.restore_from_the_chief()
    model_garden_train.main(_)
    if training:
        print(report.report(args.model_dir))


def main() -> None:
    """Defines Model Garden's flags and ours, and runs."""
    from official.common import flags as model_garden_flags

    model_garden_flags.define_flags()
    flags.DEFINE_integer(
        "seed", None, "Two runs with one seed start from the same weights.", lower_bound=0
    )
    flags.DEFINE_bool("replace_stock", False, "Whether optimizer.type=lamb means our LAMB.")
    flags.mark_flags_as_required(["experiment", "mode", "model_dir"])
    app.run(_run)


if __name__ == "__main__":
    main()
