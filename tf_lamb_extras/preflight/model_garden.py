"""Checks memory and time of an experiment with the TPU's own compiler; needs no TPU.

    python -m tf_lamb_extras.preflight.model_garden --experiment=lamb/bert_pretraining \\
        --config_file=bert_large_64k_32k_stage1_tpu.yaml --topology=v3:32x32

The command builds model, task, optimizer and schedule as training would. It compiles one replica's
step with libtpu, which runs on a CPU: `pip install ".[preflight]"`. After one compilation it prints
whether the step fits, and the minimum time of a step and of the full schedule; or the compiler's
error. The largest batch that fits follows after at most three more compilations;
`--largest_batch=false` skips it. Nothing is trained. The command writes the report of `--report`,
and the compiler's answers in the folder `--cache_dir`, about 1 kB each: it does not compile the
same step again.

The least seconds of a step at two batches are what `tf_lamb.model_garden.find` takes as
`--step_seconds` where there is no TPU to time.

The exit status is 0 if the step fits, and 1 if it does not or the run is impossible.
"""

import functools
import json
import os
import sys
import time

from absl import app, flags

from tf_lamb.core.recipes.published import published_time
from tf_lamb.model_garden import train
from tf_lamb.model_garden.common.console import Console
from tf_lamb.model_garden.common.errors import UserError, begin, check_new_file, one_line
from tf_lamb_extras.preflight.tpu import compiler, roofline
from tf_lamb_extras.preflight.tpu.answers import asked
from tf_lamb_extras.preflight.tpu.cache import Cache
from tf_lamb_extras.preflight.tpu.report import Report

_PACKAGE = "tf_lamb_extras.preflight"
_in_one_line = functools.partial(one_line, "model_garden", package=_PACKAGE)


def define_flags() -> None:
    """The flags of `train` that describe an experiment, and ours."""
    train.define_flags()
    flags.DEFINE_string(
        "topology", None, "The slice that it would run on: v3:32x32, v4:4x4x4, v5e:4x8, ..."
    )
    flags.DEFINE_string("report", None, "A file for the report as JSON; not overwritten.")
    flags.DEFINE_bool("largest_batch", True, "Whether to look for the largest batch that fits.")
    flags.DEFINE_string(
        "cache_dir",
        "auto",
        "A folder where the compiler's answers are kept; auto is "
        "tf_lamb/preflight in the user's cache folder, and an empty name is none.",
    )


def ask(
    params, topology: roofline.Topology, name: str, *,
    largest_batch=True, cache_dir="auto", say=print, print_fn=None,
):  # fmt: skip
    """The report on an experiment.

    Args:
        params: the experiment.
        topology: where it would run.
        name: what to call it.
        largest_batch: whether to look for the largest batch of a replica that fits.
        cache_dir: see `tf_lamb_extras.preflight.tpu.cache.folder`.
        say: called with what takes long, as `print` is: before it with `end=""`, and with what came
            of it.
        print_fn: called with the report's rows as soon as they are known.

    Raises:
        UserError: where the run cannot be; before the model is built where that can be known.
    """
    report, compiled = prepare(params, topology, name, cache_dir=cache_dir, say=say)
    return asked(report, compiled, largest_batch=largest_batch, print_fn=print_fn)


def prepare(params, topology: roofline.Topology, name: str, *, cache_dir="auto", say=print):
    """The report on an experiment before anything is compiled, and what compiles; see `ask`."""
    # In this order: what needs no framework, what needs no model, and the rest.
    from tf_lamb.model_garden.checks.experiment import check_optimizer, check_runtime
    from tf_lamb.model_garden.common import batches
    from tf_lamb.model_garden.experiments.recipes import model_of

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
        published=published_time(model_of(params), batch, params.trainer.train_steps),
    )  # fmt: skip
    kept = Cache(cache_dir, device.device_kind, compiler.text_of)
    return report, _Compiled(params, device, kept, say)


class _Compiled:
    """An experiment's programs, compiled, with a line each on how that ended."""

    def __init__(self, params, device, kept, say):
        from tf_lamb_extras.preflight import step_programs_of_model_garden as step_programs

        self._device, self._kept, self._say = device, kept, say
        self._built = self._took("building the model", lambda: step_programs.Steps(params))
        self.weights, self.slots = self._built.weights, self._built.slots

    def step(self, examples):
        """The program of a step."""
        make = functools.partial(self._built.step, examples)
        return self._compile(f"{examples:,} examples", make)

    def update(self):
        """The program of the update alone."""
        return self._compile("the update alone", self._built.update)

    def network(self, _):
        """All gradients are summed, by the update; a replica compiled alone has no collectives."""
        return self._built.gradients, self._built.gradients, None

    def _compile(self, what, make):
        compile_ = lambda hlo: compiler.compile_hlo(hlo, self._device)  # noqa: E731
        return self._took(
            f"compiling {what}",
            lambda: self._kept.compiled(what, make, compile_),
            lambda program: roofline.gib(program.memory),
        )

    def _took(self, doing, do, result=lambda _: "done"):
        begun, outcome = time.perf_counter(), "refused"
        self._say(f"{doing} ... ", end="")
        try:
            outcome = result(done := do())
            return done
        except compiler.TooLarge as error:
            outcome = f"too large, {roofline.gib(error.needed)}"
            raise
        finally:
            self._say(f"{outcome}, {time.perf_counter() - begun:.0f} s")


def run(progress_stream=None) -> bool:
    """Asks what the flags say, prints each answer, and writes the last; returns whether it fits.

    Args:
        progress_stream: the file that progress is printed to; None for stderr.
    """
    args = flags.FLAGS
    with _in_one_line((ValueError, ModuleNotFoundError)):
        compiler.require()
        topology = roofline.topology(args.topology)
        check_new_file("report", args.report)
    with _in_one_line():
        params = train.read(args)
        say = functools.partial(print, file=progress_stream or sys.stderr, flush=True)
        report = ask(
            params, topology, args.experiment, largest_batch=args.largest_batch,
            cache_dir=args.cache_dir, say=say, print_fn=functools.partial(print, flush=True),
        )  # fmt: skip
    if args.report:
        with open(args.report, "x") as file:
            json.dump(report.as_dict(), file, indent=2)
            file.write("\n")
    return report.fits


def _run(_):
    with Console() as console:
        fits = run(console.stream)
    sys.exit(0 if fits else 1)


def main() -> None:
    """Defines the flags and runs."""
    begin("model_garden", _PACKAGE)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # the report is what there is to read
    define_flags()
    flags.mark_flags_as_required(["experiment", "topology"])
    app.run(_run)


if __name__ == "__main__":
    main()
