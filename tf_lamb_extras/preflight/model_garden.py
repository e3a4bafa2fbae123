"""Checks memory and time of an experiment with the TPU's own compiler; needs no TPU.

    python -m tf_lamb_extras.preflight.model_garden --experiment=lamb/bert_pretraining \\
        --config_file=bert_large_64k_32k_stage1_tpu.yaml --topology=v3:32x32

The command builds model, task, optimizer and schedule as training would. It compiles one replica's
step with libtpu, which runs on a CPU: `pip install ".[preflight]"`. It prints whether the step
fits, and the minimum time of a step and of the full schedule; or the compiler's error. The largest
batch that fits takes at most three more compilations; `--largest_batch=false` skips it. Nothing is
trained. The command writes the report to the file `--report`. It keeps the compiler's answers in
the folder `--cache_dir`, about 1 kB each, and does not compile the same step again.

If there is no TPU on which to time steps, pass the minimum seconds of a step at two batches as
`--step_seconds` to `tf_lamb.model_garden.find`.

The exit status is 0 if the step fits, and 1 if it does not or the run is impossible.
"""

import functools
import json
import os
import sys
import time

from absl import app, flags

from tf_lamb.model_garden import train
from tf_lamb.model_garden.common.console import Console
from tf_lamb.model_garden.common.errors import UserError, begin, one_line
from tf_lamb_extras.preflight.tpu import compiler, roofline
from tf_lamb_extras.preflight.tpu.answers import ask_compiler
from tf_lamb_extras.preflight.tpu.cache import Cache
from tf_lamb_extras.preflight.tpu.report import Report

_PACKAGE = "tf_lamb_extras.preflight"
_in_one_line = functools.partial(one_line, "model_garden", package=_PACKAGE)


def _check_new_file(path: str | None) -> None:
    """Raises UserError if the report exists already, or its folder does not."""
    if path and os.path.exists(path):
        raise UserError(f"--report={path} exists: name another file, or delete it")
    if path and not os.path.isdir(folder := os.path.dirname(path) or "."):
        raise UserError(f"--report={path}: there is no folder {folder}")


def define_flags() -> None:
    """Defines the flags of `train` that describe an experiment, and those of this command."""
    train.define_flags()
    flags.DEFINE_string(
        "topology", None, "The slice that it would run on: v3:32x32, v4:4x4x4, v5e:4x8, ..."
    )
    flags.DEFINE_string("report", None, "A file for the report as JSON; not overwritten.")
    flags.DEFINE_bool("largest_batch", True, "Whether to look for the largest batch that fits.")
    flags.DEFINE_string(
        "cache_dir", None, "A folder where the compiler's answers are kept, and found again."
    )


def ask(
    params, topology: roofline.Topology, name: str, *, largest_batch=True, cache_dir=None, say=print
) -> Report:
    """Returns the report on an experiment.

    Args:
        params: The experiment's config, as training reads it.
        topology: The TPU slice.
        name: The name of the experiment in the report.
        largest_batch: Whether to search for the largest batch that fits. Defaults to True.
        cache_dir: A folder for the compiler's answers. Defaults to None: they are not kept.
        say: A function with the arguments of `print`. It is called before a long task, with
            `end=""`, and again with the outcome. Defaults to `print`.

    Raises:
        UserError: If the experiment cannot run on the topology, or its parts cannot be built.
    """
    # Checks that need no framework come first, then those that need no model.
    from tf_lamb.model_garden.checks.experiment import check_optimizer, check_runtime
    from tf_lamb.model_garden.common import batches

    try:
        device = compiler.devices(topology)[0]
        check_runtime(params, evaluating=False)
        check_optimizer(params)
        batch = params.task.train_data.global_batch_size
        micro_batches = batches.micro_batches(params)
        batches.per_replica_batch(batch, topology.replicas, micro_batches)
    except ValueError as error:
        raise UserError(str(error)) from error

    report = Report(
        subject=name, topology=topology, batch_size=batch, micro_batches=micro_batches,
        steps=params.trainer.train_steps, compiler=compiler.versions(),
    )  # fmt: skip
    cache = Cache(cache_dir, device.device_kind, compiler.text_of)
    return ask_compiler(report, _Compiled(params, device, cache, say), largest_batch=largest_batch)


class _Compiled:
    """Compiles an experiment's programs, and prints how each compilation ended.

    Args:
        params: The experiment's config.
        device: A device to compile for.
        cache: The `Cache` of the compiler's answers.
        say: A function with the arguments of `print`.

    Attributes:
        weights: The bytes of the model's variables.
        slots: The bytes of the optimizer's variables.
    """

    def __init__(self, params, device, cache, say):
        from tf_lamb_extras.preflight import step_programs_of_model_garden as step_programs

        self._device, self._cache, self._say = device, cache, say
        self._built = self._took("building the model", lambda: step_programs.Steps(params))
        self.weights, self.slots = self._built.weights, self._built.slots

    def step(self, examples):
        """Compiles a step of one replica with this many examples."""
        return self._compile(f"{examples:,} examples", lambda: self._built.step(examples))

    def update(self):
        """Compiles the optimizer's update alone."""
        return self._compile("the update alone", self._built.update)

    def network(self, _):
        """Returns the bytes to all-reduce, those of the update alone, and None for the collectives.

        The update sums all gradients. A replica that is compiled alone has no collectives.
        """
        return self._built.gradients, self._built.gradients, None

    def _compile(self, name, make):
        """Returns a compiled program: from the cache if it has the answer, else by compiling.

        Args:
            name: The name of the program, in the cache and in the printed line.
            make: A function that returns the lowered program, which is then compiled.

        Raises:
            Refused: If the compiler does not take the program.
        """
        return self._took(
            f"compiling {name}",
            lambda: self._cache.compiled(
                name, make, lambda hlo: compiler.compile_hlo(hlo, self._device)
            ),
            lambda program: roofline.gib(program.memory),
        )

    def _took(self, doing, do, result=lambda _: "done"):
        """Calls a function; prints what it does, how it ended, and in how many seconds.

        Args:
            doing: What the function does, as text.
            do: The function, without arguments. Its result is returned.
            result: A function from that result to the text of the outcome. Defaults to "done".
        """
        start, outcome = time.perf_counter(), "failed"
        self._say(f"{doing} ... ", end="")
        try:
            outcome = result(value := do())
            return value
        except compiler.TooLarge as error:
            outcome = f"too large, {roofline.gib(error.needed)}"
            raise
        except compiler.Refused:
            outcome = "refused"
            raise
        finally:
            self._say(f"{outcome}, {time.perf_counter() - start:.0f} s")


def run(progress_stream=None) -> bool:
    """Compiles what the flags describe, prints the report, and writes it to `--report`, if given.

    Args:
        progress_stream: The stream for progress. Defaults to None: `sys.stderr`.

    Returns:
        Whether the step fits.
    """
    args = flags.FLAGS
    with _in_one_line((ValueError, ModuleNotFoundError)):
        compiler.require()
        topology = roofline.topology(args.topology)
        _check_new_file(args.report)
    with _in_one_line():
        params = train.read(args, topology.replicas)
        say = functools.partial(print, file=progress_stream or sys.stderr, flush=True)
        report = ask(
            params, topology, args.experiment,
            largest_batch=args.largest_batch, cache_dir=args.cache_dir, say=say,
        )  # fmt: skip
    print(report, flush=True)
    if args.report:
        with open(args.report, "x") as file:
            json.dump(report.as_dict(), file, indent=2)
            file.write("\n")
    return report.fits


def _run(_):
    """Runs the command, and exits with status 0 if the step fits."""
    with Console() as console:
        fits = run(console.stream)
    sys.exit(0 if fits else 1)


def main() -> None:
    """Defines the flags, and runs the command."""
    begin("model_garden", _PACKAGE)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # so that the report stands out
    define_flags()
    flags.mark_flags_as_required(["experiment", "topology"])
    app.run(_run)


if __name__ == "__main__":
    main()
