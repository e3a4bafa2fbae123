#!/usr/bin/env bash
# jax 0.10.2 on a CPU, Python 3.11 to 3.13.
# Guess: jnp.max of an array with a NaN is NaN, as NumPy's, whatever the size; sum is, too.
# Behaviour: of 1,000 elements it is NaN. Of 4,096 the NaN is left out, by jnp.min, too, compiled or
# not; the maximum of nothing but NaN is -inf. jnp.sum, jnp.argmax and jnp.maximum see it.
# Output: 1000 nan nan nan nan
#         4096 1.0 1.0 -inf nan
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile jax==0.10.2 numpy==2.4.6
cd "$folder"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import sys

import jax.numpy as jnp
import numpy as np

seen = []
for n in (1000, 4096):
    x = np.ones(n, "float32")
    x[n // 2] = np.nan
    assert np.isnan(np.max(x)) and jnp.argmax(x) == n // 2 and jnp.isnan(jnp.maximum(x, 0)).any()
    nothing = np.full(n, np.nan, "float32")
    seen.append((n, *(float(y) for y in (jnp.max(x), jnp.min(x), jnp.max(nothing), jnp.sum(x)))))
    print(*seen[-1])
expected = "[(1000, nan, nan, nan, nan), (4096, 1.0, 1.0, -inf, nan)]"
sys.exit(str(seen) != expected)
PYTHON
