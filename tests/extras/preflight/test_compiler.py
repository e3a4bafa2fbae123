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


def test_without_libtpu_the_extra_is_named(monkeypatch):
    for name in ("jax", "libtpu"):
        monkeypatch.setitem(sys.modules, name, None)
    line = r'needs jax and libtpu, which this .* lacks: pip install "\.\[preflight\]"'
    with pytest.raises(ModuleNotFoundError, match=line):
        compiler.require()
