"""Summarizes a run from its model_dir, in a few lines and a picture.

    python -m tf_lamb.model_garden.report --model_dir=/tmp/bert_small

Training also ends with this report. The picture is report.png in the model_dir. It shows the loss,
the learning rate and, if the run measured them, the noise scale and the trust ratios over the
steps.
"""

from absl import app, flags

from tf_lamb.model_garden.common.console import Console
from tf_lamb.model_garden.common.errors import begin, one_line


def _run(_) -> None:
    """Prints the report of the run in `--model_dir`; without a run there, exits with one line."""
    with Console(), one_line("report", FileNotFoundError):
        from tf_lamb.model_garden.folders.report import report

        print(report(flags.FLAGS.model_dir))


def main() -> None:
    """Defines the flag `--model_dir` and runs the command."""
    begin("report")
    flags.DEFINE_string("model_dir", None, "The --model_dir of a run.")
    flags.mark_flag_as_required("model_dir")
    app.run(_run)


if __name__ == "__main__":
    main()
