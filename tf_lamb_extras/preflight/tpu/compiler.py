"""libtpu through JAX's compile-only topologies: a program goes in, memory and operations come out.

TensorFlow's HLO is made fit for it first.

Seams into jax and jaxlib (0.10.2): `jax.experimental.topologies`, `client.compile` of a
compile-only device, the wording of two refusals; `hlo_to_stablehlo`, what XLA's converter leaves to
be mended, and `HloPrintOptions`.
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

_COPY = "mhlo.copy"
_COMPUTATION = re.compile(r"^(?:ENTRY |HloModule )?([\w.\-]+)(?: \{$|, )", re.MULTILINE)
_WORD = re.compile(r"[\w.\-]+")


@contextlib.contextmanager
def module_of(hlo: bytes):
    """The module of a serialized HLO program, with what XLA's converter leaves mended.

    That is an `mhlo.copy`, which a TPU does not know and which means nothing here; and which
    results take the place of which arguments, which it writes down where nobody reads it.
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
    """A serialized HLO program as text, without what differs each time that it is made.

    Left out are the lines of source and the names of instructions and computations, which
    TensorFlow counts.
    """
    from jaxlib import _hlo, xla_client

    module = xla_client.XlaComputation(hlo).get_hlo_module()
    text = module.to_string(_hlo.HloPrintOptions.canonical())
    numbers = {name: str(i) for i, name in enumerate(_COMPUTATION.findall(text))}
    return _WORD.sub(lambda word: numbers.get(word[0], word[0]), text)


def _alias(ir, module):
    attributes = module.operation.attributes
    (main,) = (f for f in module.body.operations if f.attributes["sym_name"].value == "main")
    arguments: list[dict] = [{} for _ in main.type.inputs]
    number = ir.IntegerType.get_signless(32)
    known = "mhlo.input_output_alias" in attributes
    for pair in attributes["mhlo.input_output_alias"] if known else ():
        pair = ir.DictAttr(pair)
        (result,) = ir.DenseI64ArrayAttr(pair["output_index"])
        argument = ir.IntegerAttr(ir.DictAttr(pair["alias"])["parameter_number"]).value
        arguments[argument]["tf.aliasing_output"] = ir.IntegerAttr.get(number, result)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in arguments])
    for name in [str(name) for name in attributes]:
        if name.startswith("mhlo."):
            del attributes[name]


def _drop_copies(ir, module):
    copies = []

    def collect(op):
        if op.name == _COPY:
            copies.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    for op in copies:
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()


# libtpu looks for the TPU of this machine unless it is told where it is, and locks it, though it
# compiles only.
_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v3-8", "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}  # fmt: skip
# Both cores of a v4 run one program, as they do for a v5p without being asked.
_OPTIONS = {"v4": {"chip_config_name": "megacore"}}


class Refused(ValueError):
    """The compiler takes this program for no TPU of this kind; the message says why."""


class TooLarge(Refused):
    """The program needs more memory, in bytes of one replica, than there is."""

    def __init__(self, needed: float, available: float):
        super().__init__(f"it needs {needed / 2**30:.2f} GiB of {available / 2**30:.2f}")
        self.needed, self.available = needed, available


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiler's figures of a program, for one replica.

    Attributes:
        arguments, outputs, aliased, temporaries: bytes; what is aliased is an output that takes the
            place of an argument.
        flops: operations.
        bytes_moved: bytes read from HBM and written to it; what stays on the chip is not counted.
        exchanges: the collectives, those that are alike as one.
        text: the compiled program, in XLA's own notation.
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
        """The bytes that it holds at once."""
        return self.arguments + self.outputs - self.aliased + self.temporaries

    @property
    def collectives(self) -> dict[str, tuple[int, int]]:
        """By kind, such as all-reduce: how many there are, and the bytes of their results."""
        return programs.collectives(self.exchanges)


def require() -> None:
    """Raises, in no time, where the compiler is not installed."""
    messages.require_installed(
        "the TPU's compiler, of Linux on x86-64,", "jax", "libtpu", extra="preflight"
    )


def versions() -> str:
    """The versions of the compiler."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("libtpu", "jax"))


@functools.cache
def devices(topology: Topology) -> tuple:
    """The devices of a topology, one a replica: for compiling, not for running."""
    require()
    for name, value in _NO_TPU.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # it would look for a TPU, too
    from jax.experimental import topologies

    options = _OPTIONS.get(topology.chip.name, {})
    try:
        found = topologies.get_topology_desc(str(topology), "tpu", **options).devices
    except Exception as error:
        # The compiler's own sentence, such as "not divisible by chips_per_host_bounds 2x2x1".
        reason = str(error).splitlines()[0]
        raise ValueError(f"topology '{topology}' is none for libtpu: {reason}") from error
    return tuple(found)


def compile_lowered(lowered: Any) -> Program:
    """Compiles what `jax.jit(...).lower(...)` made for the devices of a topology."""
    with _refusals(), warnings.catch_warnings():
        # JAX keeps what was compiled for a topology, too, and cannot read it again (0.10.2).
        warnings.filterwarnings("ignore", "Error reading persistent compilation cache")
        compiled = lowered.compile()
    return _program(compiled.memory_analysis(), compiled.cost_analysis(), compiled.as_text())


def compile_hlo(hlo: bytes, device: Any) -> Program:
    """Compiles a serialized HLO module, as TensorFlow gives it, for one device."""
    from jaxlib import xla_client

    with module_of(hlo) as module, _refusals():
        options = xla_client.CompileOptions()
        options.num_replicas = options.num_partitions = 1
        client, on = device.client, xla_client.DeviceList((device,))
        # A CPU runs what it compiles; XLA's own account of that is what the tests hold this to.
        compile_ = client.compile_and_load if device.platform == "cpu" else client.compile
        compiled = compile_(module, on, options)
    text = compiled.hlo_modules()[0].to_string()
    return _program(compiled.get_compiled_memory_stats(), compiled.cost_analysis(), text)


def _program(memory, cost, text):
    cost, read = cost[0] if isinstance(cost, list) else cost, programs.Text(text)
    return Program(
        arguments=memory.argument_size_in_bytes, outputs=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes, temporaries=memory.temp_size_in_bytes,
        flops=max(cost.get("flops", 0.0), 0.0), bytes_moved=read.bytes_moved(),
        exchanges=read.exchanges(), text=text,
    )  # fmt: skip


_SIZE = r"([\d.]+)([KMGTP]?)"
# Of what is seen before the program is laid out in memory, and of what only that shows.
_TOO_LARGE = re.compile(
    rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"
    rf"|Used {_SIZE} of {_SIZE} hbm. Exceeded hbm capacity by {_SIZE}"
)
_OPERATION = re.compile(r'%?([\w.-]+) = \S+ ([\w-]+)\(.*?op_name="([^"]*)"', re.DOTALL)


@contextlib.contextmanager
def _refusals():
    """Has the compiler's errors say what a person can act on."""
    try:
        yield
    except RuntimeError as error:
        message = str(error)
        if found := _TOO_LARGE.search(message):
            sizes = [part for part in found.groups() if part is not None]
            needed, available, *over = map(_bytes, sizes[::2], sizes[1::2])
            # Both are rounded, and may read the same.
            raise TooLarge(max(needed, available + (sum(over) or 1)), available) from error
        if found := _OPERATION.search(message):
            _, operation, layer = found.groups()
            message = f"{operation} of {layer}: {message}"
        raise Refused(message.splitlines()[0][:600]) from error


def _bytes(number: str, unit: str) -> float:
    return float(number) * 1024.0 ** " KMGTP".index(unit or " ")
