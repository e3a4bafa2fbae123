"""Compiles programs with libtpu, through JAX's compile-only topologies.

The result is the memory and the operations that a program needs. TensorFlow's HLO has to be adapted
first.

Seams into jax and jaxlib (0.10.2): `jax.experimental.topologies`, `client.compile` of a
compile-only device, the wording of two errors; `hlo_to_stablehlo` and two faults of its output (see
`module_of`), and `HloPrintOptions`.
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

_COPY = "mhlo.copy"  # an operation that a TPU does not know
# The names of computations, and all words, in the text of an HLO program.
_COMPUTATION = re.compile(r"^(?:ENTRY |HloModule )?([\w.\-]+)(?: \{$|, )", re.MULTILINE)
_WORD = re.compile(r"[\w.\-]+")


@contextlib.contextmanager
def module_of(hlo: bytes):
    """Converts a serialized HLO program to an MLIR module, and yields it.

    Two faults in the output of XLA's converter are repaired. It keeps operations `mhlo.copy`, which
    a TPU's compiler does not know; they are removed, as they do nothing. And it writes the pairs of
    results and arguments that share memory into an attribute of the module, while the compiler
    reads them from the arguments.
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
    """Returns a serialized HLO program as text that is the same for each build of one program.

    It leaves out source lines, and renumbers instructions and computations, because TensorFlow puts
    running counters into their names.
    """
    from jaxlib import _hlo, xla_client

    module = xla_client.XlaComputation(hlo).get_hlo_module()
    text = module.to_string(_hlo.HloPrintOptions.canonical())
    numbers = {name: str(i) for i, name in enumerate(_COMPUTATION.findall(text))}
    return _WORD.sub(lambda match: numbers.get(match[0], match[0]), text)


def _alias(ir, module):
    """Moves the pairs of results and arguments that share memory to the arguments of `main`."""
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
    """Replaces every `mhlo.copy` in a module with its operand."""
    copies = []

    def collect(op):
        if op.name == _COPY:
            copies.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    for op in copies:
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()


# Without these variables libtpu would look for this machine's TPU and lock it, though it only
# compiles.
_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v3-8", "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}  # fmt: skip
# Both cores of a v4 run one program with this option. Those of a v5p do so without one.
_OPTIONS = {"v4": {"chip_config_name": "megacore"}}


class Refused(ValueError):
    """Means that the compiler does not take a program for this kind of TPU, with the reason."""


class TooLarge(Refused):
    """Means that the program needs more memory than a replica has.

    Args:
        needed: The bytes that it needs.
        available: The bytes that a replica has.
    """

    def __init__(self, needed: float, available: float):
        super().__init__(f"it needs {needed / 2**30:.2f} GiB of {available / 2**30:.2f}")
        self.needed, self.available = needed, available


@dataclasses.dataclass(frozen=True)
class Program:
    """Holds the compiler's figures of a program, for one replica.

    Attributes:
        arguments: The bytes of the arguments.
        outputs: The bytes of the outputs.
        aliased: The bytes of those outputs that share the memory of an argument.
        temporaries: The bytes of temporary buffers.
        flops: The number of operations.
        bytes_moved: The bytes read from HBM and written to it, without those that stay on the chip.
        exchanges: The collectives, those that are alike in one `Exchange`.
        text: The compiled program, in XLA's own notation. Defaults to "".
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
        """The number of collectives and the bytes of their whole arrays, by kind."""
        return programs.collectives(self.exchanges)


def require() -> None:
    """Raises ModuleNotFoundError if the compiler is not installed; loads nothing."""
    messages.require_installed(
        "the TPU's compiler, of Linux on x86-64,", "jax", "libtpu", extra="preflight"
    )


def versions() -> str:
    """Returns the versions of the compiler and of JAX, as text."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("libtpu", "jax"))


@functools.cache
def devices(topology: Topology) -> tuple:
    """Returns the devices of a topology, one per replica, for compiling and not for running.

    Sets environment variables of the process, such as JAX_PLATFORMS=cpu, that are not set yet.

    Raises:
        ModuleNotFoundError: If libtpu is not installed.
        ValueError: If libtpu does not know the topology.
    """
    require()
    for name, value in _NO_TPU.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # JAX would look for a TPU, too
    from jax.experimental import topologies

    options = _OPTIONS.get(topology.chip.name, {})
    try:
        descriptions = topologies.get_topology_desc(str(topology), "tpu", **options).devices
    except Exception as error:
        # The compiler's own sentence, such as "not divisible by chips_per_host_bounds 2x2x1".
        reason = str(error).splitlines()[0]
        raise ValueError(f"topology '{topology}' is none for libtpu: {reason}") from error
    return tuple(descriptions)


def compile_lowered(lowered: Any) -> Program:
    """Compiles the result of `jax.jit(...).lower(...)` for the devices of a topology."""
    with _refusals(), warnings.catch_warnings():
        # JAX (0.10.2) caches programs for a topology, too, but cannot read them again.
        warnings.filterwarnings("ignore", "Error reading persistent compilation cache")
        compiled = lowered.compile()
    return _program(compiled.memory_analysis(), compiled.cost_analysis(), compiled.as_text())


def compile_hlo(hlo: bytes, device: Any) -> Program:
    """Compiles a serialized HLO module of TensorFlow for one device.

    Args:
        hlo: The module.
        device: The device: of a topology, or the CPU.

    Raises:
        Refused: If the compiler does not take the program.
    """
    from jaxlib import xla_client

    with module_of(hlo) as module, _refusals():
        options = xla_client.CompileOptions()
        options.num_replicas = options.num_partitions = 1
        client, device_list = device.client, xla_client.DeviceList((device,))
        # A CPU can run the program; the tests compare the figures with XLA's own account of it.
        compile_ = client.compile_and_load if device.platform == "cpu" else client.compile
        compiled = compile_(module, device_list, options)
    text = compiled.hlo_modules()[0].to_string()
    return _program(compiled.get_compiled_memory_stats(), compiled.cost_analysis(), text)


def _program(memory, cost, text):
    """Returns a `Program` from XLA's analyses of memory and cost, and the compiled text."""
    cost, parsed = cost[0] if isinstance(cost, list) else cost, programs.Text(text)
    return Program(
        arguments=memory.argument_size_in_bytes, outputs=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes, temporaries=memory.temp_size_in_bytes,
        flops=max(cost.get("flops", 0.0), 0.0), bytes_moved=parsed.bytes_moved(),
        exchanges=parsed.exchanges(), text=text,
    )  # fmt: skip


# A size with its unit, in the compiler's errors.
_SIZE = r"([\d.]+)([KMGTP]?)"
# The first error comes before the program is laid out in memory, the second one after.
_TOO_LARGE = re.compile(
    rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"
    rf"|Used {_SIZE} of {_SIZE} hbm. Exceeded hbm capacity by {_SIZE}"
)
_OPERATION = re.compile(r'%?([\w.-]+) = \S+ ([\w-]+)\(.*?op_name="([^"]*)"', re.DOTALL)


@contextlib.contextmanager
def _refusals():
    """Turns the compiler's errors into `TooLarge`, or `Refused` with the layer if it is known."""
    try:
        yield
    except RuntimeError as error:
        message = str(error)
        if match := _TOO_LARGE.search(message):
            sizes = [part for part in match.groups() if part is not None]
            needed, available, *excess = map(_bytes, sizes[::2], sizes[1::2])
            # Both sizes are rounded, and may be equal.
            raise TooLarge(max(needed, available + (sum(excess) or 1)), available) from error
        if match := _OPERATION.search(message):
            _, operation, layer = match.groups()
            message = f"{operation} of {layer}: {message}"
        raise Refused(message.splitlines()[0][:600]) from error


def _bytes(number: str, unit: str) -> float:
    """Returns the bytes of a size such as 1.5 with the unit G."""
    return float(number) * 1024.0 ** " KMGTP".index(unit or " ")
