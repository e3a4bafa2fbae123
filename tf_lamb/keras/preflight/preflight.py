"""What the TPU's own compiler says of a model's train step, before a TPU is rented."""

import dataclasses
import math

import keras

from tf_lamb.keras.preflight import data as step_data
from tf_lamb.keras.preflight import programs as step_programs
from tf_lamb.tpu import compiler, roofline
from tf_lamb.tpu import report as preflight_


def preflight(
    model,
    optimizer,
    loss,
    input_shapes,
    topology,
    *,
    target_shapes=None,
    batch_size=None,
    distribution=None,
    steps=None,
    search=True,
):
    """Asks the TPU's compiler about a model's train step; no TPU is needed, and nothing runs.

    The step that `fit` would run on Keras's JAX backend is compiled for the whole slice, sharded,
    by libtpu, which runs on a CPU: `pip install ".[preflight]"`. The report says whether it
    fits, how its memory splits, which collectives the compiled program has, and the least time
    that it can take. The model's weights and compile state and the optimizer stay as they are; an
    unbuilt model is built, as its first step would.

    Args:
        model: A `keras.Model`, functional, `Sequential` or a subclass, on the JAX backend.
        optimizer: As `compile` takes it. It is made again from its config.
        loss: As `compile` takes it.
        input_shapes: The shapes of one whole batch, over all replicas, in the structure that the
            model takes: `(4096, 128)`, or a list or dict of such. A leaf may be a pair
            `((4096, 128), "int32")`, a `keras.KerasTensor` or a `jax.ShapeDtypeStruct`; else the
            model's inputs say the dtype, or it is Keras's default. `model.input_shape` will do,
            beside a `batch_size`.
        topology: The slice that it would run on: "v3:32x32", "v4:4x4x4", "v5e:4x8", ...
        target_shapes: The shapes of what the loss compares with, likewise. Defaults to what Keras's
            own losses take for the model's predictions; needed for other losses.
        batch_size: Examples of the whole batch, where a first axis is None. Defaults to None.
        distribution: A `keras.distribution.DataParallel` or `ModelParallel` whose mesh has a
            device for each replica of the topology; what they are called does not matter
            (`[f"tpu:{i}" for i in range(8)]`). Variables lie as it says, whatever they were made
            under. Defaults to data parallelism over all replicas.
        steps: Updates of the whole schedule, for its least time. Defaults to None.
        search: Whether to look for the largest batch that fits where this one does not. Each that
            is tried is compiled, which takes minutes for a large model. Defaults to True.

    Returns:
        A report: print it, or see `as_dict()`. Sizes are bytes of one replica; what tiles of the
        memory leave empty is part of `memory.rest`. XLA counts the operations of a loop, such as
        an LSTM's, once, so that they bound less than they could. With
        `gradient_accumulation_steps`, the given batch is one micro-batch, and `work` is that of a
        whole update. `work.reduced` is what the program's all-reduces sum; one within a part of
        the replicas counts by what its links carry at least. Under `ModelParallel`, the
        examples of a replica are the batch over all replicas, on average.

    Raises:
        ModuleNotFoundError: where libtpu is not installed.
        ValueError: for all else that can be known before anything is compiled: another backend,
            an unknown topology, a mesh of another size, shapes that are incomplete or that the
            model does not take, a batch that does not split, or an optimizer that is built for
            something else.

    Example:

    >>> import keras, tf_lamb
    >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(8)])
    >>> report = tf_lamb.keras.preflight(
    ...     model, tf_lamb.keras.LAMB(1e-3), "mse", (4096, 64), "v3:4x4", steps=1000
    ... )
    >>> report.fits
    True
    """
    # In this order: what is quick, what the compiler knows of the topology, and the model.
    topology = roofline.topology(topology)
    if keras.backend.backend() != "jax":
        raise ValueError(
            f"Keras runs on {keras.backend.backend()!r}, and what trains on a TPU this way is its "
            "JAX backend: set KERAS_BACKEND=jax before Keras is imported"
        )
    compiler.require()
    _check_mesh(distribution, topology)
    inputs = step_data.inputs(input_shapes, model, batch_size)
    targets = None
    if target_shapes is not None:
        targets = step_data.targets(target_shapes, batch_size)
    batch = step_data.batch_of(inputs if targets is None else [inputs, targets])
    parts = _parts(distribution, topology)
    _check_split(batch, parts, topology)
    optimizer = step_programs.copy_of(optimizer, model)
    devices = compiler.devices(topology)

    predictions = step_programs.predictions(model, inputs)
    if targets is None:
        targets = step_data.targets_of(loss, predictions)
    compiled = _Compiled(
        step_programs.Steps(
            model, optimizer, loss, inputs, targets,
            step_programs.on_devices(distribution, devices),
        ),
        inputs, targets, topology,
    )  # fmt: skip
    micro_batches = (
        getattr(optimizer, "inner_optimizer", optimizer).gradient_accumulation_steps or 1
    )
    report = preflight_.Report(
        subject=model.name, topology=topology, batch_size=batch * micro_batches,
        micro_batches=micro_batches, parts=parts, steps=steps, compiler=compiler.versions(),
    )  # fmt: skip
    try:
        return dataclasses.replace(report, **compiled.measured(batch, micro_batches))
    except compiler.TooLarge as error:
        report = dataclasses.replace(report, needed=error.needed)
    except compiler.Refused as refusal:
        return dataclasses.replace(report, refused=str(refusal))
    if search:
        report = dataclasses.replace(report, largest=compiled.largest(batch, parts))
    return report


class _Compiled:
    """A model's programs, and what the compiler says of them."""

    def __init__(self, steps, inputs, targets, topology):
        self._steps, self._topology = steps, topology
        self._inputs, self._targets = inputs, targets
        self._too_large = {}

    def measured(self, batch, micro_batches):
        """The fields of a report on a step that fits."""
        step = self._step(batch)
        update = compiler.compile_lowered(self._steps.update())
        memory = preflight_.Memory.of(
            step, self._steps.weights, self._steps.slots, self._topology.chip.memory
        )
        work = preflight_.Work(
            flops=step.flops,
            bytes_moved=step.bytes_moved,
            update_flops=update.flops,
            # Alone, it may read what the step keeps on the chip.
            update_bytes=min(update.bytes_moved, step.bytes_moved),
            reduced=_reduced(self._topology, step),
        )
        return {
            "memory": memory,
            "needed": memory.needed,
            "work": work.times(micro_batches),
            "collectives": step.collectives,
        }

    def largest(self, batch, parts):
        """The most examples of a part that fit at once."""
        available = self._topology.chip.memory

        def needs(share):
            try:  # what compiles fits, whatever the rounding of what there is
                return min(self._step(share * parts).memory, available)
            except compiler.TooLarge as error:
                return error.needed

        return preflight_.largest(needs, available, batch // parts)

    def _step(self, batch):
        if batch in self._too_large:
            raise self._too_large[batch]
        inputs = step_data.resized(self._inputs, batch)
        targets = None if self._targets is None else step_data.resized(self._targets, batch)
        try:
            return compiler.compile_lowered(self._steps.step(inputs, targets))
        except compiler.TooLarge as error:
            self._too_large[batch] = error
            raise


def _reduced(topology, program):
    """Bytes to all-reduce over all chips that take as long at least as the program's all-reduces.

    An all-reduce over c chips sends 2 (c - 1)/c of its bytes; the replicas of a chip send nothing.
    """
    total, n = 0.0, topology.chips
    for group, size in program.read.all_reduced(topology.replicas).items():
        c = math.ceil(group / topology.chip.replicas)
        total += size * ((c - 1) / c) / ((n - 1) / n) if n > 1 else size
    return total


def _parts(distribution, topology):
    """Into how many parts a batch is split."""
    if distribution is None:
        return topology.replicas
    mesh = distribution.device_mesh
    return mesh.shape[list(mesh.axis_names).index(distribution.batch_dim_name)]


def _check_mesh(distribution, topology):
    if distribution is None:
        return
    known = (keras.distribution.DataParallel, keras.distribution.ModelParallel)
    if not isinstance(distribution, known):
        raise ValueError(
            f"distribution={distribution!r} is neither a keras.distribution.DataParallel nor a "
            "ModelParallel: leave it out for data parallelism over all replicas"
        )
    shape = tuple(distribution.device_mesh.shape)
    if math.prod(shape) != topology.replicas:
        raise ValueError(
            f"the mesh of the distribution, {shape}, has {math.prod(shape):,} devices, and "
            f"{topology} has {topology.replicas:,} replicas: make a DeviceMesh of as many"
        )


def _check_split(batch, parts, topology):
    share, rest = divmod(batch, parts)
    if rest:
        nearest = [f"{n * parts:,}" for n in (share, share + 1) if n]
        raise ValueError(
            f"a batch of {batch:,} does not split into the {parts:,} parts that {topology} takes "
            f"it in: {batch:,} = {share:,} x {parts:,} + {rest:,}. Nearest: {' or '.join(nearest)}"
        )
