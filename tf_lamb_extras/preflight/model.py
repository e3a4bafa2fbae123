"""Checks the memory and the minimum time of a Keras model's training step on a TPU, without a TPU.

The TPU's own compiler, libtpu, compiles the step on a CPU.
"""

import functools
import math
import os
import time
from collections.abc import Callable
from typing import Any

import keras

from tf_lamb.api.variables import unwrapped
from tf_lamb_extras.preflight import shapes, step_programs
from tf_lamb_extras.preflight.tpu import compiler, roofline
from tf_lamb_extras.preflight.tpu.answers import ask_compiler
from tf_lamb_extras.preflight.tpu.cache import Cache
from tf_lamb_extras.preflight.tpu.programs import reduced
from tf_lamb_extras.preflight.tpu.report import Report


def preflight(
    model: Any,
    optimizer: Any,
    loss: Any,
    input_shapes: Any,
    topology: str,
    *,
    target_shapes: Any = None,
    batch_size: int | None = None,
    distribution: Any = None,
    steps: int | None = None,
    largest_batch: bool = True,
    cache_dir: str | os.PathLike | None = None,
    print_fn: Callable[[str], Any] | None = None,
) -> Report:
    """Checks memory and time of a model's training step with the TPU's compiler; needs no TPU.

    The compiler, libtpu, compiles the sharded step of `fit` on Keras's JAX backend for the full TPU
    slice. It runs on a CPU, and is installed by `pip install "jax[tpu]"`. The report shows
    whether the step fits in memory, the parts of its memory, the collectives of the compiled
    program, and the minimum time of the step. The model's weights, its compile state and the
    optimizer do not change. A model that is not built yet is built, as in its first step.

    Args:
        model: A `keras.Model`, functional, `Sequential` or a subclass, on the JAX backend.
        optimizer: An optimizer, as for `compile`. The function makes a copy from its config.
        loss: A loss, as for `compile`.
        input_shapes: The shapes of one full batch, over all replicas, in the structure of the
            model's input: `(4096, 128)`, or a list or dict of shapes. To set a dtype, pass a pair
            `((4096, 128), "int32")`, a `keras.KerasTensor` or a `jax.ShapeDtypeStruct` in place of
            a shape. Otherwise the dtype is that of the model's inputs, or Keras's default. With
            `batch_size` you can pass `model.input_shape`.
        topology: The TPU slice: "v3:32x32", "v4:4x4x4", "v5e:4x8", ...
        target_shapes: The shapes of the loss's targets, in the form of `input_shapes`. Defaults to
            the targets that a loss of Keras takes for the model's predictions. It must be passed
            for other losses.
        batch_size: The number of examples in the full batch, if a first axis is None. Defaults to
            None.
        distribution: A `keras.distribution.DataParallel` or `ModelParallel`. Its mesh must have a
            device for each replica of the topology, with any names, such as
            `[f"tpu:{i}" for i in range(8)]`. It decides the layout of the variables, also of
            existing ones. Defaults to data parallelism over all replicas.
        steps: The number of updates of the full training schedule, for which the report then has a
            minimum time. Defaults to None.
        largest_batch: Whether to search for the largest batch that fits; this takes at most three
            more compilations. Defaults to True.
        cache_dir: A folder in which the compiler's results are saved, about 1 kB each. The same
            step is then not compiled again, so that a second call continues an interrupted search.
            Defaults to None: nothing is saved.
        print_fn: A function such as `print`, called with a line after each compilation. The line
            has the name of the program, its memory, and the seconds of the compilation. Defaults
            to None: nothing is printed.

    Returns:
        A `Report`: print it, or see `as_dict()`. Sizes are bytes of one replica. `memory.rest`
        includes the padding of memory tiles. XLA counts the operations of a loop, such as an
        LSTM's, only once; the minimum time is then too low. With `gradient_accumulation_steps`, the
        shapes are those of one micro-batch, and `work` is that of a full update. If the batch grows
        during training, it is that of the largest update. `work.reduced` is the bytes of one
        all-reduce over all chips that would take the same minimum time as the program's
        all-reduces, reduce-scatters and all-gathers together. Under `ModelParallel`, several
        replicas may share the examples of a part of the batch; `examples_a_replica` is then the
        examples of a part.

    Raises:
        ModuleNotFoundError: If libtpu is not installed.
        ValueError: For all errors that can be detected before a compilation: a backend other than
            JAX, an unknown topology, a mesh that does not have a device for each replica, shapes
            that are incomplete or that the model does not take, a batch that does not divide evenly
            among the replicas, or an optimizer that is built for another model.

    Example:

    >>> import keras, tf_lamb
    >>> from tf_lamb_extras.preflight import preflight
    >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(8)])
    >>> report = preflight(
    ...     model, tf_lamb.keras.LAMB(1e-3), "mse", (4096, 64), "v3:4x4", steps=1000
    ... )
    >>> report.fits
    True
    """
    # Quick checks come first, then checks that load the compiler, then checks that use the model.
    slice_ = roofline.topology(topology)
    if keras.backend.backend() != "jax":
        raise ValueError(
            f"Keras runs on {keras.backend.backend()!r}, and what trains on a TPU this way is its "
            "JAX backend: set KERAS_BACKEND=jax before Keras is imported"
        )
    compiler.require()
    _check_mesh(distribution, slice_)
    inputs = shapes.inputs(input_shapes, model, batch_size)
    targets = None if target_shapes is None else shapes.targets(target_shapes, batch_size)
    batch = shapes.batch_of(inputs if targets is None else [inputs, targets])
    parts = _parts(distribution, slice_)
    _check_split(batch, parts, slice_)
    optimizer = step_programs.copy_of(optimizer, model)
    devices = compiler.devices(slice_)

    predictions = step_programs.predictions(model, inputs)
    if targets is None:
        targets = shapes.targets_of(loss, predictions)
    distribution = step_programs.on_devices(distribution, devices)
    programs = step_programs.Steps(model, optimizer, loss, inputs, targets, distribution)
    micro_batches = unwrapped(optimizer).gradient_accumulation_steps or 1
    report = Report(
        subject=model.name, topology=slice_, batch_size=batch * micro_batches,
        micro_batches=micro_batches, parts=parts, steps=steps, compiler=compiler.versions(),
    )  # fmt: skip
    cache = Cache(cache_dir, str(slice_), lambda lowered: lowered.as_text())
    compiled = _Compiled(programs, inputs, targets, slice_, parts, cache, print_fn)
    return ask_compiler(report, compiled, largest_batch=largest_batch)


class _Compiled:
    """Compiles a model's programs, and reports each compilation with `print_fn`.

    Args:
        programs: The `step_programs.Steps` of the model, which lower its programs.
        inputs: The inputs of a batch, as `keras.KerasTensor`s.
        targets: The targets of the batch, as `keras.KerasTensor`s; or None.
        topology: The topology to compile for.
        parts: The number of parts that a batch is split into.
        cache: The `Cache` of the compiler's results.
        print_fn: A function that prints a line, or None.

    Attributes:
        weights: The bytes of the model's variables on one device.
        slots: The bytes of the optimizer's variables on one device.
    """

    def __init__(self, programs, inputs, targets, topology, parts, cache, print_fn):
        self._programs, self._topology, self._parts = programs, topology, parts
        self._inputs, self._targets = inputs, targets
        self._cache, self._print_fn = cache, print_fn
        self.weights, self.slots = programs.weights, programs.slots

    def step(self, share):
        """Returns the compiled training step for a batch of `share` examples per part.

        A batch is split into parts, usually one for each replica.
        """
        batch = share * self._parts
        inputs = shapes.resized(self._inputs, batch)
        targets = None if self._targets is None else shapes.resized(self._targets, batch)
        make = functools.partial(self._programs.step, inputs, targets)
        return self._compile(f"{batch:,} examples", make)

    def update(self):
        """Returns the compiled update of the optimizer, without the rest of the step."""
        return self._compile("the update alone", self._programs.update)

    def _compile(self, name, make):
        """Returns a compiled program, from the cache or by compiling it.

        Args:
            name: The name of the program, in the cache and in the printed line.
            make: A function that returns the lowered program. It is called if the cache needs the
                program.

        Raises:
            Refused: If the compiler rejects the program.
        """
        start, outcome = time.perf_counter(), "refused"
        try:
            program = self._cache.compiled(name, make, compiler.compile_lowered)
            outcome = roofline.gib(program.memory)
            return program
        except compiler.TooLarge as error:
            outcome = f"too large, {roofline.gib(error.needed)}"
            raise
        finally:
            if self._print_fn is not None:
                self._print_fn(f"compiled {name}: {outcome}, {time.perf_counter() - start:.0f} s")

    def network(self, program):
        """Returns what a compiled step sends over the network.

        The only branches of a step's program are around the optimizer's update, which runs only
        when accumulation ends, or only if the gradients are finite. So the collectives inside of
        branches belong to the update.

        Args:
            program: The compiled step.

        Returns:
            A triple: the bytes to all-reduce in the step, the bytes to all-reduce in its update,
            and the collectives of the program by kind.
        """
        unconditional, update = (
            _reduced(self._topology, program, branch) for branch in (False, True)
        )
        return unconditional + update, update, program.collectives


def _reduced(topology, program, in_branches):
    """Returns the bytes of one all-reduce over all chips that would take as long as a program's.

    A program has several collectives, over groups of chips. An all-reduce over c chips sends
    2 (c - 1)/c times its bytes through the links of a chip. Replicas on the same chip send nothing
    to each other.

    Args:
        topology: The TPU slice.
        program: The compiled program.
        in_branches: Whether to count the collectives inside branches, or all other ones.
    """
    total, n = 0.0, topology.chips
    group_sizes = reduced(program.exchanges, topology.replicas, in_branches=in_branches)
    for group, size in group_sizes.items():
        chips = math.ceil(group / topology.chip.replicas)
        total += size * ((chips - 1) / chips) / ((n - 1) / n) if n > 1 else size
    return total


def _parts(distribution, topology):
    """Returns the number of parts that a batch is split into, one per replica by default."""
    if distribution is None:
        return topology.replicas
    mesh = distribution.device_mesh
    return mesh.shape[list(mesh.axis_names).index(distribution.batch_dim_name)]


def _check_mesh(distribution, topology):
    """Raises ValueError for a distribution that is not supported.

    It must be a `DataParallel` or `ModelParallel` whose mesh has a device for each replica, or
    None.
    """
    if distribution is None:
        return
    supported = (keras.distribution.DataParallel, keras.distribution.ModelParallel)
    if not isinstance(distribution, supported):
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
    """Raises ValueError if the batch does not divide evenly into parts; it names the nearest sizes.

    Args:
        batch: The number of examples in the batch.
        parts: The number of parts.
        topology: The TPU slice, for the error.
    """
    share, remainder = divmod(batch, parts)
    if remainder:
        nearest = [f"{n * parts:,}" for n in (share, share + 1) if n]
        raise ValueError(
            f"a batch of {batch:,} does not split into the {parts:,} parts that {topology} takes "
            f"it in: {batch:,} = {share:,} x {parts:,} + {remainder:,}. "
            f"Nearest: {' or '.join(nearest)}"
        )
