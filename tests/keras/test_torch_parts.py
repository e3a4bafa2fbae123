"""Several processes on torch: whole weights train as on one device, those in parts are refused."""

import functools
import re

import keras
import numpy as np
import pytest
from support import clusters, torch_processes
from support.frontends import BACKEND
from support.references import NAMES

import tf_lamb.keras

if BACKEND != "torch":
    pytest.skip("needs torch", allow_module_level=True)

import torch
from torch.distributed import device_mesh, tensor


@pytest.fixture(scope="module")
def mesh():
    """One process that has all parts: what a `DTensor` is does not depend on their number."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("placement", [tensor.Shard(0), tensor.Replicate()], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_weight_in_parts_is_refused_before_any_step(mesh, name, placement):
    bias, kernel = (keras.Variable(np.ones(shape), name=str(shape)) for shape in ((6,), (4, 6)))
    parts = tensor.distribute_tensor(kernel.value.detach(), mesh, [placement])
    kernel._value = torch.nn.Parameter(parts)
    optimizer = getattr(tf_lamb.keras, name)(0.1)
    with pytest.raises(ValueError, match=re.escape("'(4, 6)' is a DTensor")) as error:
        optimizer.apply([keras.ops.ones(6), parts], [bias, kernel])
    assert "\n" not in str(error.value) and not optimizer.built
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(bias), 1)


@pytest.mark.skipif(
    not hasattr(keras.src.backend.torch, "distribution_lib"), reason="since Keras 3.16"
)
def test_two_processes_of_data_parallel_are_one_device():
    """Torch sums the gradients before the step, so each process has the norms of the whole."""
    names = ["LAMB", "Muon"]
    expected = torch_processes.trained(names)
    found = clusters.results(
        functools.partial(torch_processes.trained, names), clusters.torch_processes(2), timeout=300
    )
    for name in names:
        assert found[0][name] == found[1][name]  # to the last bit
        np.testing.assert_allclose(found[0][name], expected[name], rtol=1e-5, atol=1e-6)
