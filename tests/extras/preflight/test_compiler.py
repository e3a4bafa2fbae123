"""libtpu: what it knows of each chip, and what a person is told of its refusals."""

import sys

import pytest

pytest.importorskip("libtpu")

from tf_lamb_extras.preflight.tpu import compiler, roofline

pytestmark = pytest.mark.once

GIB = 2**30


def test_a_shape_that_the_compiler_does_not_know_is_refused_in_its_words():
    with pytest.raises(ValueError, match=r"'v3:3x5' is none for libtpu: .*not divisible"):
        compiler.devices(roofline.topology("v3:3x5"))


@pytest.mark.parametrize("name", roofline.CHIPS)
def test_the_compiler_knows_every_chip_as_the_table_does(name):
    """As many replicas a chip, and as much memory: the compiler's refusal says how much it has."""

    chip = roofline.CHIPS[name]
    smallest = roofline.topology(f"{name}:{'x'.join(['2', '2', '1'][: chip.dimensions])}")
    devices = compiler.devices(smallest)
    import jax  # which looks for a TPU, unless told by now that there is none

    assert len(devices) == smallest.replicas
    place = jax.sharding.SingleDeviceSharding(devices[0])
    x = jax.ShapeDtypeStruct((2 * int(chip.memory) // 4096, 1024), "float32", sharding=place)
    with pytest.raises(compiler.TooLarge) as error:
        compiler.compile_lowered(jax.jit(lambda x: (x + 1) @ x.T).lower(x))
    assert error.value.available == pytest.approx(chip.memory, rel=1e-9)


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        ("memory required for HLO temporaries (20.50G) exceeds available HBM (15.48G).", 20.5),
        ("Used 15.48G of 15.48G hbm. Exceeded hbm capacity by 512.00M.", 15.98),
    ],
)
def test_both_ways_of_saying_that_it_is_too_large_are_read(message, needed):
    with pytest.raises(compiler.TooLarge) as error, compiler._refusals():
        raise RuntimeError(f"RESOURCE_EXHAUSTED: {message}")
    assert error.value.needed == pytest.approx(needed * GIB)
    assert error.value.available == pytest.approx(15.48 * GIB)


def test_what_the_compiler_refuses_is_named_with_its_layer():
    message = (
        "UNIMPLEMENTED: too many indices. This error occurred for %scatter.1 = f32[9]{0} "
        'scatter(%a, %b), metadata={op_name="model/embedding/Gather" source_line=3}.'
    )
    says = "scatter of model/embedding/Gather: UNIMPLEMENTED"
    with pytest.raises(compiler.Refused, match=says), compiler._refusals():
        raise RuntimeError(message)


def test_without_libtpu_the_extra_is_named(monkeypatch):
    for name in ("jax", "libtpu"):
        monkeypatch.setitem(sys.modules, name, None)
    line = r'needs jax and libtpu, which this .* lacks: pip install "\.\[preflight\]"'
    with pytest.raises(ModuleNotFoundError, match=line):
        compiler.require()
