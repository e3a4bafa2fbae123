"""Checks memory and time of a Model Garden experiment with the TPU's compiler; needs no TPU.

    python -m tf_lamb_extras.preflight.model_garden --experiment=lamb/bert_pretraining \\
        --config_file=bert_large_64k_32k_stage1_tpu.yaml --topology=v3:32x32

The command builds model, task, optimizer and schedule as training would. It compiles the training
step of one replica with libtpu, the TPU's compiler, which runs on a CPU and is installed by
`pip install "jax[tpu]"`. It prints whether the step fits in memory, and the minimum time of a
step and of the full schedule; or the compiler's error. To find the largest batch that fits, it
compiles at most three more steps; `--largest_batch=false` skips this. Nothing is trained. With
`--report`, the command also writes the report to that file. With `--cache_dir`, it saves the
compiler's results in that folder, about 1 kB each, and does not compile the same step again.

If there is no TPU on which to time steps, you can pass the minimum seconds of a step at two batches
as `--step_seconds` to the command `tf_lamb.model_garden.find`.

The exit status is 0 if the step fits, and 1 if it does not fit or if an error occurs.
"""

import functools
import json
import os
import sys
import time

from tf_lamb.model_garden.common.errors import begin

if __name__ == "__main__":
    # before the first import of a package that only the Model Garden brings
    begin("model_garden", "tf_lamb_extras.preflight")

from absl import app, flags

from tf_lamb.model_garden import train
from tf_lamb.model_garden.checks.flags import parse_flags
from tf_lamb.model_garden.common.console import Console
from tf_lamb.model_garden.common.errors import UserError, one_line
from tf_lamb_extras.preflight.tpu import compiler, roofline
from tf_lamb_extras.preflight.tpu.answers import ask_compiler
from tf_lamb_extras.preflight.tpu.cache import Cache
from tf_lamb_extras.preflight.tpu.report import Report

_PACKAGE = "tf_lamb_extras.preflight"
_in_one_line = functools.partial(one_line, "model_garden", package=_PACKAGE)


def _check_new_file(path: str | None) -> None:
    """Raises UserError if the file for the report exists, or if its folder does not exist.

    Args:
        path: The path of the file, or None if no report is to be written.
    """
    if path and os.path.exists(path):
        raise UserError(f"--report={path} exists: name another file, or delete it")
    if path and not os.path.isdir(folder := os.path.dirname(path) or "."):
        raise UserError(f"--report={path}: there is no folder {folder}")


def define_flags() -> None:
    """Defines the flags of the command, which include those of `train` that name an experiment."""
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
    """Compiles the training step of an experiment, and returns the report on it.

    Args:
        params: The experiment's config, as training reads it.
        topology: The TPU slice.
        name: The name of the experiment in the report.
        largest_batch: Whether to search for the largest batch that fits. Defaults to True.
        cache_dir: A folder in which the compiler's results are saved. Defaults to None: they are
            not saved.
        say: A function with the arguments of `print`. It is called before a long task, with
            `end=""`, and again with the outcome. Defaults to `print`.

    Raises:
        UserError: If the experiment cannot run on the topology, or its parts cannot be built.
    """
    # Checks that need no model come first, because building a model takes long.
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
        cache: The `Cache` of the compiler's results.
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
        """Returns the compiled training step of one replica with this many examples."""
        return self._compile(f"{examples:,} examples", lambda: self._built.step(examples))

    def update(self):
        """Returns the compiled update of the optimizer, without the rest of the step."""
        return self._compile("the update alone", self._built.update)

    def network(self, _):
        """Returns what a step sends over the network.

        Returns:
            A triple: the bytes to all-reduce in a step, the bytes to all-reduce in its update, and
            None in place of the collectives. The first two are the bytes of all gradients, because
            the update sums these over the replicas. The collectives are not known, because the
            step of a single replica is compiled, which has none.
        """
        return self._built.gradients, self._built.gradients, None

    def _compile(self, name, make):
        """Returns a compiled program, from the cache or by compiling it.

        Args:
            name: The name of the program, in the cache and in the printed line.
            make: A function that returns the lowered program. It is called if the cache needs the
                program.

        Raises:
            Refused: If the compiler rejects the program.
        """
        return self._took(
            f"compiling {name}",
            lambda: self._cache.compiled(
                name, make, lambda hlo: compiler.compile_hlo(hlo, self._device)
            ),
            lambda program: roofline.gib(program.memory),
        )

    def _took(self, doing, do, result=lambda _: "done"):
        """Calls a function and returns its result; prints what it does and how long it took.

        Args:
            doing: What the function does, as text.
            do: The function, without arguments.
            result: A function that takes the result and returns the outcome to print. Defaults to
                a function that returns "done".
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
    """Compiles the step of the experiment that the flags describe, and prints the report.

    With the flag `--report`, it also writes the report to that file.

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
    """Runs the command, and exits with status 0 if the step fits, else with 1."""
    with Console() as console:
        fits = run(console.stream)
    sys.exit(0 if fits else 1)


def main() -> None:
    """Defines the flags, and runs the command."""
    begin("model_garden", _PACKAGE)
    # Only errors of TensorFlow are printed, so that the report is not lost between log lines.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    define_flags()
    flags.mark_flags_as_required(["experiment", "topology"])
    app.run(_run, flags_parser=lambda args: parse_flags(args, "model_garden", _PACKAGE))


if __name__ == "__main__":
    main()
