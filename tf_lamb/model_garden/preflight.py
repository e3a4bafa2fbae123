"""Asks the TPU's own compiler about an experiment before a pod is rented; no TPU is needed.

    python -m tf_lamb.model_garden.preflight --experiment=lamb/bert_pretraining \\
        --config_file=model_garden_configs/bert_large_64k_32k_stage1_tpu.yaml \\
        --topology=v3:32x32

The experiment's own model, task, optimizer and schedule are built as training would build them, and
one replica's step is compiled by libtpu, which runs on a CPU: `pip install ".[preflight]"`.
It says whether the step fits, the largest batch that does, the least time that a step and the whole
schedule can take, or what the compiler refuses. Nothing is trained, and nothing is written but the
report that `--report` asks for. BERT-large takes some minutes on two cores, most of them for the
largest batch: `--nosearch` leaves that out.

It ends with 0 where the step fits, and with 1 where it does not or the run cannot be.
"""

import functools
import json
import os
import sys
import time

from absl import app, flags

from tf_lamb.core import recipes
from tf_lamb.model_garden import train
from tf_lamb.model_garden.checks import early
from tf_lamb.model_garden.errors import UserError, one_line
from tf_lamb.model_garden.running.console import Console
from tf_lamb.tpu import compiler, roofline
from tf_lamb.tpu.report import Report
from tf_lamb.tpu.search import asked


def define_flags() -> None:
    """The flags of `train` that describe an experiment, and ours."""
    train.define_flags()
    flags.DEFINE_string(
        "topology", None, "The slice that it would run on: v3:32x32, v4:4x4x4, v5e:4x8, ..."
    )
    flags.DEFINE_string("report", None, "A file for the report as JSON; not overwritten.")
    flags.DEFINE_bool("search", True, "Whether to look for the largest batch that fits.")


def ask(params, topology: roofline.Topology, name: str, *, search=True, say=print):
    """The report on an experiment.

    Args:
        params: the experiment.
        topology: where it would run.
        name: what to call it.
        search: whether to look for the largest batch of a replica that fits.
        say: told what takes long, as `print` is: before it with `end=""`, and what came of it.

    Raises:
        UserError: where the run cannot be; before the model is built where that can be known.
    """
    # In this order: what needs no framework, what needs no model, and the rest.
    from tf_lamb.model_garden.checks.experiment import check_program
    from tf_lamb.model_garden.experiments.recipes import model_of
    from tf_lamb.model_garden.running import batches

    try:
        device = compiler.devices(topology)[0]
        check_program(params)
        batch = params.task.train_data.global_batch_size
        micro_batches = batches.micro_batches(params)
        batches.split(batch, topology.replicas, micro_batches)
    except ValueError as error:
        raise UserError(str(error)) from error

    report = Report(
        subject=name, topology=topology, batch_size=batch, micro_batches=micro_batches,
        steps=params.trainer.train_steps, compiler=compiler.versions(),
        published=recipes.published_time(model_of(params), batch, params.trainer.train_steps),
    )  # fmt: skip
    return asked(report, _Compiled(params, device, say), lambda _: search)


class _Compiled:
    """An experiment's programs, compiled, and said so."""

    def __init__(self, params, device, say):
        from tf_lamb.model_garden.checks import step_programs

        self._device, self._say = device, say
        self._built = self._took("building the model", lambda: step_programs.Steps(params))
        self.weights, self.slots = self._built.weights, self._built.slots

    def step(self, examples):
        """The program of a step."""
        return self._compile(f"{examples:,} examples", self._built.step, examples)

    def update(self):
        """The program of the update alone."""
        return self._compile("the update alone", self._built.update)

    def network(self, _):
        """All gradients are summed, by the update; a replica compiled alone has no collectives."""
        return self._built.gradients, self._built.gradients, None

    def _compile(self, what, make, *arguments):
        return self._took(
            f"compiling {what}",
            lambda: compiler.compile_hlo(make(*arguments), self._device),
            lambda program: roofline.gib(program.memory),
        )

    def _took(self, doing, do, result=lambda _: "done"):
        begun, said = time.perf_counter(), "refused"
        self._say(f"{doing} ... ", end="")
        try:
            said = result(done := do())
            return done
        except compiler.TooLarge as error:
            said = f"too large, {roofline.gib(error.needed)}"
            raise
        finally:
            self._say(f"{said}, {time.perf_counter() - begun:.0f} s")


def run(said_to=None) -> bool:
    """Asks what the flags say, prints the report, and writes it; returns whether it fits.

    Args:
        said_to: where it is said what takes long; None for stderr.
    """
    args = flags.FLAGS
    with one_line("preflight", (ValueError, ModuleNotFoundError)):
        compiler.require()
        topology = roofline.topology(args.topology)
        if args.report and os.path.exists(args.report):
            raise ValueError(f"--report={args.report} exists: name another file, or delete it")
    with one_line("preflight"):
        early.check_names(args.experiment, args.config_file)
        train.register()
        params = train.read(args)
        say = functools.partial(print, file=said_to or sys.stderr, flush=True)
        report = ask(params, topology, args.experiment, search=args.search, say=say)
    print(report)
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
    early.begin("preflight")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # the report is what there is to read
    define_flags()
    flags.mark_flags_as_required(["experiment", "topology"])
    app.run(_run)


if __name__ == "__main__":
    main()
