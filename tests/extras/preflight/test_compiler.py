"""libtpu: what it knows of each chip."""

import pytest

pytest.importorskip("libtpu")

from tf_lamb_extras.preflight.tpu import compiler, roofline

pytestmark = pytest.mark.once


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
