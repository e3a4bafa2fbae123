"""What is read of compiled programs: by hand from XLA's notation, and as XLA itself counts."""

import pytest

from tf_lamb_extras.preflight.tpu.programs import Exchange, Text

pytestmark = pytest.mark.once

HBM, CHIP = "", "S(1)"  # marks of a layout, the second that of the chip's own memory


def entry(*lines, before=""):
    """A program of these instructions; the last is the root."""
    *others, root = lines
    body = "".join(f"  {line}\n" for line in (*others, f"ROOT {root}"))
    return Text(f"{before}\nENTRY %main (p: f32[]) -> f32[] {{\n{body}}}\n")


def vector(length, memory=HBM, dtype="f32"):
    return f"{dtype}[{length}]{{0:T(1024){memory}}}"


READS = {HBM: 4 * 1024, CHIP: 0}  # the bytes of a slice, by where its source or its target is


@pytest.mark.parametrize("target", [HBM, CHIP])
@pytest.mark.parametrize("source", [HBM, CHIP])
@pytest.mark.parametrize("operation", ["slice", "dynamic-slice", "gather", "slice-start"])
def test_a_slice_costs_what_of_it_is_in_hbm(operation, source, target):
    whole, part = vector(4096, source), vector(1024, target)
    result = f"(({whole}), {part}, s32[]{{:S(2)}})" if operation == "slice-start" else part
    program = entry(f"%p = {whole} parameter(0)", f"%s = {result} {operation}(%p), slice={{[0:1]}}")
    assert program.bytes_moved() == READS[source] + READS[target]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("target", [HBM, CHIP])
@pytest.mark.parametrize("source", [HBM, CHIP])
def test_a_replaced_slice_costs_what_of_it_is_in_hbm(source, target, fused):
    whole, part = vector(4096, target), vector(1024, source)
    lines = [f"%p = {whole} parameter(0)", f"%q = {part} parameter(1)", "%i = s32[] constant(0)"]
    update = "dynamic-update-slice(%p, %q, %i)"
    if fused:
        # Inside a fusion, layouts name no memory.
        inner = [line.replace(source, "").replace(target, "") for line in lines]
        inner.append(f"ROOT %r = {vector(4096)} {update}")
        body = "".join(f"  {line}\n" for line in inner)
        before = f"%fused (p: f32[4096], q: f32[1024]) -> f32[4096] {{\n{body}}}\n"
        program = entry(*lines, f"%f = {whole} fusion(%p, %q), calls=%fused", before=before)
    else:
        program = entry(*lines, f"%r = {whole} {update}")
    assert program.bytes_moved() == READS[source] + READS[target]


# Of a fusion with operands of 4,096 and 1,024 numbers, p and q, its instructions, its result and
# the numbers that it moves.
PAIR = "(f32[4096]{0}, f32[1024]{0})"
FUSIONS = {
    "one of two results": (
        ["%r = f32[4096]{0} dynamic-update-slice(%p, %q, %i)", "%n = f32[1024]{0} negate(%q)",
         f"ROOT %t = {PAIR} tuple(%r, %n)"], PAIR, 3 * 1024,
    ),
    "of a slice that it reads": (
        ["%s = f32[1024]{0} dynamic-slice(%p, %i)", "%a = f32[1024]{0} add(%s, %q)",
         "ROOT %r = f32[4096]{0} dynamic-update-slice(%p, %a, %i)"], "f32[4096]{0}", 3 * 1024,
    ),
    "of another operand that it reads whole": (
        ["%n = f32[1024]{0} reduce(%p)", "%a = f32[1024]{0} add(%n, %q)",
         "ROOT %r = f32[4096]{0} dynamic-update-slice(%p, %a, %i)"], "f32[4096]{0}", 6 * 1024,
    ),
    "that is read again": (
        ["%r = f32[4096]{0} dynamic-update-slice(%p, %q, %i)", "%n = f32[1024]{0} reduce(%r)",
         f"ROOT %t = {PAIR} tuple(%r, %n)"], PAIR, (4 + 1 + 4 + 1) * 1024,
    ),
    "of what is computed": (
        ["%n = f32[4096]{0} negate(%p)", "ROOT %r = f32[4096]{0} dynamic-update-slice(%n, %q, %i)"],
        "f32[4096]{0}", (4 + 1 + 4) * 1024,
    ),
    "none, and two results of one instruction": (
        [f"ROOT %r = {PAIR} sort(%p, %q)"], PAIR, (4 + 1 + 4 + 1) * 1024,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FUSIONS)
def test_a_fusion_moves_a_slice_that_it_only_replaces(case):
    inner, result, moved = FUSIONS[case]
    arguments = [
        "%p = f32[4096]{0} parameter(0)", "%q = f32[1024]{0} parameter(1)",
    ]  # fmt: skip
    body = "".join(f"  {line}\n" for line in (*arguments, "%i = s32[] constant(0)", *inner))
    before = f"%fused (p: f32[4096], q: f32[1024]) -> f32[4096] {{\n{body}}}\n"
    program = entry(*arguments, f"%f = {result} fusion(%p, %q), calls=%fused", before=before)
    assert program.bytes_moved() == 4 * moved


def jax_programs():
    """Functions of a large array, which they replace, and of a smaller one."""
    from jax import lax
    from jax import numpy as jnp

    def layers(weights, x):
        def one(x, w):
            return (y := jnp.tanh(x @ w)), y

        return lax.scan(one, x, weights)

    return {
        "replaced": lambda x, y: lax.dynamic_update_slice(x, 2 * y + 1, (8, 0)),
        "copied": lambda x, y: lax.dynamic_update_slice(x, y, (8, 0)),
        "added": lambda x, y: x.at[8:24].add(y),
        "summed": lambda x, y: lax.dynamic_update_slice(x, 2 * y + 1, (8, 0)).sum(),
        "sliced": lambda x, y: 2 * x[8:24] + y,
        "in a loop": lambda x, y: layers(x.reshape(-1, 64, 64), y.reshape(-1, 64)),
    }


NAMES = ("replaced", "copied", "added", "summed", "sliced", "in a loop")


@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.parametrize("name", NAMES)
def test_slices_count_as_xla_counts_them(name):
    """XLA counts one turn of a loop."""
    jax = pytest.importorskip("jax")
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((512, 256), (16, 256))]
    with jax.default_device(jax.devices("cpu")[0]):
        program = jax.jit(jax_programs()[name], donate_argnums=0).lower(*shapes).compile()
    found = Text(program.as_text().replace("known_trip_count", "")).bytes_moved()
    assert found == pytest.approx(program.cost_analysis()["bytes accessed"], rel=0.01)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("pred", 1000), ("s4", 500), ("u4", 500), ("s2", 250), ("s8", 1000), ("u16", 2000),
        ("bf16", 2000), ("f32", 4000), ("f64", 8000), ("c64", 8000), ("c128", 16000),
        ("f4e2m1fn", 500), ("f8e4m3", 1000), ("f8e4m3fn", 1000), ("f8e4m3b11fnuz", 1000),
        ("f8e5m2", 1000), ("f8e5m2fnuz", 1000), ("f8e8m0fnu", 1000), ("token", 0), ("opaque", 0),
    ],
)  # fmt: skip
def test_a_number_has_the_bytes_of_its_dtype(dtype, size):
    assert entry(f"%p = {vector(1000, dtype=dtype)} parameter(0)", "%n = f32[] negate(%p)"
                 ).bytes_moved() == size + 4  # fmt: skip


A, B = vector(1024), vector(4096)
COLLECTIVES = {
    "all-reduce": (A, 4096),
    "all-reduce-start": (A, 4096),
    "all-gather": (B, 4 * 4096),
    "all-gather-start": (f"({A}, {B})", 4 * 4096),
    "collective-permute": (A, 4096),
    "collective-permute-start": (f"({A}, {A}, u32[]{{:S(2)}}, u32[]{{:S(2)}})", 4096),
    "all-to-all": (A, 4096),
}


@pytest.mark.parametrize("operation", COLLECTIVES)
def test_a_collective_has_the_bytes_of_its_array_once(operation):
    result, size = COLLECTIVES[operation]
    program = entry(f"%p = {A} parameter(0)", f"%c = {result} {operation}(%p), channel_id=1")
    kind = operation.removesuffix("-start")
    assert program.exchanges() == (Exchange(kind, None, False, 1, size),)


@pytest.mark.parametrize(
    ("known", "times"), [('{"known_trip_count":{"n":"5"}}', 5), ("{}", 1)], ids=["known", "unknown"]
)
def test_a_loop_counts_as_often_as_it_is_known_to_run(known, times):
    """Its exchanges and its bytes, here in a branch inside it."""
    before = f"""%branch (p: f32[1024]) -> f32[1024] {{
  %p = {A} parameter(0)
  ROOT %c = {A} all-reduce(%p), to_apply=%add
}}

%other (p: f32[1024]) -> f32[1024] {{
  ROOT %p = {A} parameter(0)
}}

%body (p: f32[1024]) -> f32[1024] {{
  %p = {A} parameter(0)
  %n = {A} negate(%p)
  ROOT %r = {A} conditional(%i, %n, %n), branch_computations={{%branch, %other}}
}}
"""
    loop = f"%w = {A} while(%p), condition=%less, body=%body, backend_config={known}"
    program = entry(f"%p = {A} parameter(0)", loop, before=before)
    assert program.exchanges() == (Exchange("all-reduce", None, True, times, times * 4096),)
    assert program.bytes_moved() == times * 4 * 4096
