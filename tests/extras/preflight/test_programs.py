"""What is read of a compiled program's text."""

import pytest

from tf_lamb_extras.preflight.tpu import programs

pytestmark = pytest.mark.once

TEXT = """HloModule m

%fused (p0: f32[100,8], p1: s32[]) -> f32[1,8] {
  %p0 = f32[100,8]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  ROOT %d = f32[1,8]{1,0} dynamic-slice(%p0, %p1, %p1), dynamic_slice_sizes={1,8}
}

%yes (a: f32[64]) -> f32[64] {
  %a = f32[64]{0} parameter(0)
  ROOT %n = f32[64]{0} negate(%a)
}

%no (b: f32[64]) -> f32[64] {
  ROOT %b = f32[64]{0} parameter(0)
}

ENTRY %main (x: f32[100,8], i: s32[], y: f32[64], q: pred[]) -> f32[64] {
  %x = f32[100,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %y = f32[64]{0} parameter(2)
  %q = pred[] parameter(3)
  %row = f32[1,8]{1,0} fusion(%x, %i), kind=kLoop, calls=%fused
  %near = (f32[64]{0:S(1)}, f32[64]{0}, u32[]{:S(2)}) copy-start(%y)
  %here = f32[64]{0:S(1)} copy-done(%near)
  %twice = f32[64]{0:S(1)} add(%here, %here)
  %sum = f32[64]{0} all-reduce(%y), replica_groups={}, to_apply=%no
  ROOT %c = f32[64]{0} conditional(%q, %sum, %sum), true_computation=%yes, false_computation=%no
}
"""


def test_only_what_passes_the_edge_of_the_chip_is_moved():
    # A row of the table read and written, its index, y to the chip, the sum there and back, and
    # the dearer branch. What is added on the chip costs nothing.
    expected = (32 + 32 + 4) + 256 + (256 + 256) + (256 + 256)
    assert programs.Text(TEXT).bytes_moved() == expected
    exchanges = programs.Text(TEXT).exchanges()
    assert exchanges == (programs.Exchange("all-reduce", None, False, 1, 256),)
    assert programs.collectives(exchanges) == {"all-reduce": (1, 256)}
    assert programs.reduced(exchanges, 8, in_branches=False) == {8: 256}
    assert programs.reduced(exchanges, 8, in_branches=True) == {}
