"""Compiles programs with libtpu, the TPU's compiler, for TPUs that this machine does not have.

The result is the memory and the operations that a program needs. HLO programs of TensorFlow are
converted first (see `module_of`).

This file uses API of jax and jaxlib 0.10.2 that is private or may change:
`jax.experimental.topologies`, `client.compile` of a compile-only device, the wording of two errors,
`hlo_to_stablehlo`, and `HloPrintOptions`.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import os
import re
import warnings
from typing import Any

from tf_lamb.core import messages
from tf_lamb_extras.preflight.tpu import programs
from tf_lamb_extras.preflight.tpu.roofline import Topology

_COPY = "mhlo.copy"  # an operation that the TPU's compiler does not know
# Regular expressions for the text of an HLO program: the names of its computations, and any word.
_COMPUTATION = re.compile(r"^(?:ENTRY |HloModule )?([\w.\-]+)(?: \{$|, )", re.MULTILINE)
_WORD = re.compile(r"[\w.\-]+")


@contextlib.contextmanager
def module_of(hlo: bytes):
    """Converts a serialized HLO program to an MLIR module, and yields it.

    Two faults in the output of XLA's converter are corrected. First, the output has operations
    `mhlo.copy`, which the TPU's compiler does not know. They are removed, because they change no
    value. Second, the pairs of results and arguments that share memory are in an attribute of the
    module. They are moved to attributes of the arguments, from which the compiler reads them.

    Args:
        hlo: The serialized HLO program.
    """
    from jax.interpreters import mlir
    from jaxlib import _jax
    from jaxlib.mlir import ir

    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo))
        _alias(ir, module)
        _drop_copies(ir, module)
        yield module


def text_of(hlo: bytes) -> str:
    """Returns a serialized HLO program as text, which is the same each time it is built.

    The text has no source lines. Instructions and computations are renumbered, because TensorFlow
    puts counters of the process into their names.
    """
    from jaxlib import _hlo, xla_client

    module = xla_client.XlaComputation(hlo).get_hlo_module()
    text = module.to_string(_hlo.HloPrintOptions.canonical())
    numbers = {name: str(i) for i, name in enumerate(_COMPUTATION.findall(text))}
    return _WORD.sub(lambda match: numbers.get(match[0], match[0]), text)


def _alias(ir, module):
    """Moves the pairs of results and arguments that share memory to attributes of the arguments.

    Args:
        ir: The module `jaxlib.mlir.ir`.
        module: The MLIR module. The arguments are those of its function `main`.
    """
    attributes = module.operation.attributes
    (main,) = (
        function
        for function in module.body.operations
        if function.attributes["sym_name"].value == "main"
    )
    arguments: list[dict] = [{} for _ in main.type.inputs]
    int32 = ir.IntegerType.get_signless(32)
    has_aliases = "mhlo.input_output_alias" in attributes
    for pair in attributes["mhlo.input_output_alias"] if has_aliases else ():
        pair = ir.DictAttr(pair)
        (result,) = ir.DenseI64ArrayAttr(pair["output_index"])
        argument = ir.IntegerAttr(ir.DictAttr(pair["alias"])["parameter_number"]).value
        arguments[argument]["tf.aliasing_output"] = ir.IntegerAttr.get(int32, result)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(
        [ir.DictAttr.get(argument_attributes) for argument_attributes in arguments]
    )
    for name in [str(name) for name in attributes]:
        if name.startswith("mhlo."):
            del attributes[name]


def _drop_copies(ir, module):
    """Removes the operations `mhlo.copy` from an MLIR module.

    What used the result of a copy then uses the operand.
    """
    copies = []

    def collect(op):
        if op.name == _COPY:
            copies.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    for op in copies:
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()


# Environment variables that keep libtpu from looking for a TPU in this machine and from locking it.
# Compiling needs no TPU.
_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v3-8", "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}  # fmt: skip
# With this option, the two cores of a v4 run one program together. The cores of a v5p do so without
# an option.
_OPTIONS = {"v4": {"chip_config_name": "megacore"}}


class Refused(ValueError):
    """Is raised if the compiler rejects a program for this kind of TPU; its text is the reason."""


class TooLarge(Refused):
    """Is raised if a program needs more memory than a replica has.

    Args:
        needed: The bytes that the program needs.
        available: The bytes that a replica has.
    """

    def __init__(self, needed: float, available: float):
        super().__init__(f"it needs {needed / 2**30:.2f} GiB of {available / 2**30:.2f}")
        self.needed, self.available = needed, available


@dataclasses.dataclass(frozen=True)
class Program:
    """Holds the memory, the operations and the collectives of a compiled program, for one replica.

    Attributes:
        arguments: The bytes of the arguments.
        outputs: The bytes of the outputs.
        aliased: The bytes of those outputs that share the memory of an argument.
        temporaries: The bytes of temporary buffers.
        flops: The number of arithmetic operations.
        bytes_moved: The bytes read from HBM and written to it. Data that stay on the chip are not
            counted.
        exchanges: The collectives. An `Exchange` stands for all collectives of one kind and group.
        text: The compiled program, in XLA's text format. Defaults to "".
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    flops: float
    bytes_moved: float
    exchanges: tuple[programs.Exchange, ...]
    text: str = dataclasses.field(default="", repr=False)

    @property
    def memory(self) -> int:
        """The bytes of memory that the program needs."""
        return self.arguments + self.outputs - self.aliased + self.temporaries

    @property
    def collectives(self) -> dict[str, tuple[int, int]]:
        """Kind of collective, such as all-reduce -> (their number, the bytes of their arrays).

        The bytes are those of all arrays of the kind together. An array that is split over replicas
        counts in full.
        """
        return programs.collectives(self.exchanges)


def require() -> None:
    """Raises ModuleNotFoundError if libtpu or JAX is not installed; does not import them."""
    messages.require_installed(
        "the TPU's compiler, of Linux on x86-64,", "jax", "libtpu", install='"jax[tpu]"'
    )


def versions() -> str:
    """Returns the versions of the compiler and of JAX, as text."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("libtpu", "jax"))


@functools.cache
def devices(topology: Topology) -> tuple:
    """Returns the devices of a topology, one per replica, for which programs can be compiled.

    Programs cannot be run on them.

    The function sets environment variables of the process, such as JAX_PLATFORMS=cpu, unless they
    are set already.

    Raises:
        ModuleNotFoundError: If libtpu is not installed.
        ValueError: If libtpu does not know the topology.
    """
    require()
    for name, value in _NO_TPU.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # keeps JAX, too, from looking for a TPU
    from jax.experimental import topologies

    options = _OPTIONS.get(topology.chip.name, {})
    try:
        descriptions = topologies.get_topology_desc(str(topology), "tpu", **options).devices
    except Exception as error:
        # The first line is the reason, such as "not divisible by chips_per_host_bounds 2x2x1".
        reason = str(error).splitlines()[0]
        raise ValueError(f"topology '{topology}' is none for libtpu: {reason}") from error
    return tuple(descriptions)


def compile_lowered(lowered: Any) -> Program:
    """Compiles the result of `jax.jit(...).lower(...)`, which is for devices of a topology.

    Raises:
        Refused: If the compiler rejects the program.
    """
    with _refusals(), warnings.catch_warnings():
        # JAX 0.10.2 saves the compiled program in its persistent cache, if there is one, but warns
        # when it reads it, because a program for TPUs cannot be loaded here.
        warnings.filterwarnings("ignore", "Error reading persistent compilation cache")
        compiled = lowered.compile()
    return _program(compiled.memory_analysis(), compiled.cost_analysis(), compiled.as_text())


def compile_hlo(hlo: bytes, device: Any) -> Program:
    """Compiles a serialized HLO program of TensorFlow for one device.

    Args:
        hlo: The program.
        device: A device of a topology, or the CPU.

    Raises:
        Refused: If the compiler rejects the program.
    """
    from jaxlib import xla_client

    with module_of(hlo) as module, _refusals():
        options = xla_client.CompileOptions()
        options.num_replicas = options.num_partitions = 1
        client, device_list = device.client, xla_client.DeviceList((device,))
        # The tests compile for a CPU, which can also load the program, to compare the results with
        # XLA's own analysis.
        compile_ = client.compile_and_load if device.platform == "cpu" else client.compile
        compiled = compile_(module, device_list, options)
    text = compiled.hlo_modules()[0].to_string()
    return _program(compiled.get_compiled_memory_stats(), compiled.cost_analysis(), text)


def _program(memory, cost, text):
    """Returns a `Program`.

    Args:
        memory: XLA's analysis of the program's memory.
        cost: XLA's analysis of its cost, a dict or a list with one dict.
        text: The compiled program in XLA's text format.
    """
    cost, parsed = cost[0] if isinstance(cost, list) else cost, programs.Text(text)
    return Program(
        arguments=memory.argument_size_in_bytes, outputs=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes, temporaries=memory.temp_size_in_bytes,
        flops=max(cost.get("flops", 0.0), 0.0), bytes_moved=parsed.bytes_moved(),
        exchanges=parsed.exchanges(), text=text,
    )  # fmt: skip


# A size with its unit in an error message of the compiler, such as 15.48G.
_SIZE = r"([\d.]+)([KMGTP]?)"
# The two messages of the compiler for a program that is too large. The compiler raises the first
# before it lays out the program in memory, and the second after.
_TOO_LARGE = re.compile(
    rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"
    rf"|Used {_SIZE} of {_SIZE} hbm. Exceeded hbm capacity by {_SIZE}"
)
_OPERATION = re.compile(r'%?([\w.-]+) = \S+ ([\w-]+)\(.*?op_name="([^"]*)"', re.DOTALL)


@contextlib.contextmanager
def _refusals():
    """Turns an error of the compiler into `TooLarge` or `Refused`, in the context.

    The message of `Refused` names the operation and its layer, if the error does.
    """
    try:
        yield
    except RuntimeError as error:
        message = str(error)
        if match := _TOO_LARGE.search(message):
            sizes = [part for part in match.groups() if part is not None]
            needed, available, *excess = map(_bytes, sizes[::2], sizes[1::2])
            # Both sizes are rounded and may be equal. `needed` must be above `available`.
            raise TooLarge(max(needed, available + (sum(excess) or 1)), available) from error
        if match := _OPERATION.search(message):
            _, operation, layer = match.groups()
            message = f"{operation} of {layer}: {message}"
        raise Refused(message.splitlines()[0][:600]) from error


def _bytes(number: str, unit: str) -> float:
    """Returns the bytes of a size, such as 1.5 with the unit G, where units are powers of 1,024."""
    return float(number) * 1024.0 ** " KMGTP".index(unit or " ")
