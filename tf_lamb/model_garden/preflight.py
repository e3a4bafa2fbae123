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

import dataclasses
import functools
import json
import os
import sys
import time

from absl import app, flags

from tf_lamb.core import recipes
from tf_lamb.model_garden import train
from tf_lamb.model_garden.checks import early
from tf_lamb.model_garden.checks.errors import UserError
from tf_lamb.tpu import report as preflight
from tf_lamb.tpu import roofline


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
        say: told what takes long.

    Raises:
        UserError: where the run cannot be; before the model is built where that can be known.
    """
    # In this order: what needs no framework, what needs no model, and the rest.
    from tf_lamb.model_garden.checks import runs as checks
    from tf_lamb.model_garden.experiments import batches
    from tf_lamb.model_garden.experiments.recipes import model_of
    from tf_lamb.tpu import compiler

    try:
        device = compiler.devices(topology)[0]
        checks.check_program(params)
        batch = params.task.train_data.global_batch_size
        micro_batches = _micro_batches(params)
        examples = batches.split(batch, topology.replicas, micro_batches)
    except ValueError as error:
        raise UserError(str(error)) from error

    report = preflight.Report(
        subject=name, topology=topology, batch_size=batch, micro_batches=micro_batches,
        steps=params.trainer.train_steps, compiler=compiler.versions(),
        published=recipes.published_time(model_of(params), batch, params.trainer.train_steps),
    )  # fmt: skip
    steps = _Compiled(params, device, topology.chip.memory, say)
    try:
        report = dataclasses.replace(report, **_measured(steps, examples, micro_batches))
        if search:
            most = preflight.largest(steps.needs, topology.chip.memory, examples)
            report = dataclasses.replace(report, largest=most)
    except compiler.Refused as refusal:
        return dataclasses.replace(report, refused=str(refusal))
    return report


class _Compiled:
    """An experiment's programs, each compiled once, and said so."""

    def __init__(self, params, device, available, say):
        from tf_lamb.model_garden.running import step_programs

        self._device, self._available, self._say, self._known = device, available, say, {}
        say("building the model ...")
        self.built = step_programs.Steps(params)

    def step(self, examples):
        """The program of a step, or `TooLarge`, which is remembered, too."""
        from tf_lamb.tpu import compiler

        if examples not in self._known:
            try:
                make = functools.partial(self.built.step, examples)
                self._known[examples] = self._compile(f"{examples:,} examples", make)
            except compiler.TooLarge as error:
                self._known[examples] = error
        found = self._known[examples]
        if isinstance(found, compiler.TooLarge):
            raise found
        return found

    def memory(self, program):
        """What a replica holds."""
        built = self.built
        return preflight.Memory.of(program, built.weights, built.slots, self._available)

    def update(self):
        """The program of the update alone."""
        return self._compile("the update alone", self.built.update)

    def needs(self, examples):
        """Bytes of a replica at this many examples, fit or not."""
        from tf_lamb.tpu import compiler

        try:  # what compiles fits, whatever the rounding of what there is
            return min(self.memory(self.step(examples)).needed, self._available)
        except compiler.TooLarge as error:
            return error.needed

    def _compile(self, what, make):
        from tf_lamb.tpu import compiler

        begun, said = time.perf_counter(), "refused"
        try:
            program = compiler.compile_hlo(make(), self._device)
            said = preflight.gib(program.memory)
            return program
        except compiler.TooLarge as error:
            said = f"too large, {preflight.gib(error.needed)}"
            raise
        finally:
            self._say(f"compiled {what}: {said}, {time.perf_counter() - begun:.0f} s")


def _measured(steps, examples, micro_batches):
    from tf_lamb.tpu import compiler

    try:
        program = steps.step(examples)
    except compiler.TooLarge as error:
        return {"needed": error.needed}
    update, memory = steps.update(), steps.memory(program)
    work = preflight.Work(
        flops=program.flops,
        bytes_moved=program.bytes_moved,
        update_flops=update.flops,
        update_bytes=update.bytes_moved,
        reduced=steps.built.gradients,
    )
    return {"memory": memory, "needed": memory.needed, "work": work.times(micro_batches)}


def _micro_batches(params):
    config = params.trainer.optimizer_config.optimizer.get()
    return getattr(config, "gradient_accumulation_steps", None) or 1


def run() -> bool:
    """Asks what the flags say, prints the report, and writes it; returns whether it fits."""
    args = flags.FLAGS
    from tf_lamb.tpu import compiler

    try:
        compiler.require()
        topology = roofline.topology(args.topology)
        if args.report and os.path.exists(args.report):
            raise ValueError(f"--report={args.report} exists: name another file, or delete it")
    except (ValueError, ModuleNotFoundError) as error:
        sys.exit(f"tf_lamb.model_garden.preflight: {error}")

    try:
        early.check(args.experiment, args.config_file)
        train.register()
        from tf_lamb.model_garden.checks import parsing

        if arithmetic := parsing.fill_in(args):
            print(arithmetic, flush=True)
        params = parsing.parse(args)
        report = ask(params, topology, args.experiment, search=args.search, say=_say)
    except UserError as error:
        sys.exit(f"tf_lamb.model_garden.preflight: {error}")
    print(report)
    if args.report:
        with open(args.report, "x") as file:
            json.dump(report.as_dict(), file, indent=2)
            file.write("\n")
    return report.fits


def _say(text):
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Defines the flags and runs."""
    early.begin("preflight")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # the report is what there is to read
    define_flags()
    flags.mark_flags_as_required(["experiment", "topology"])
    app.run(lambda _: sys.exit(0 if run() else 1))


if __name__ == "__main__":
    main()
