"""TensorFlow's HLO, made fit for the TPU's compiler.

Seams into jaxlib (0.10.2): `hlo_to_stablehlo`, and what XLA's converter leaves to be mended;
`HloPrintOptions`.
"""

import contextlib
import re

_COPY = "mhlo.copy"
_COMPUTATION = re.compile(r"^(?:ENTRY |HloModule )?([\w.\-]+)(?: \{$|, )", re.MULTILINE)
_WORD = re.compile(r"[\w.\-]+")


@contextlib.contextmanager
def module_of(hlo: bytes):
    """The module of a serialized HLO program, whose results take the place of its variables.

    Two things that XLA's converter leaves are mended: an `mhlo.copy`, which a TPU does not know and
    which means nothing here, and which results alias which arguments, which it writes down where
    nobody reads it.
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
