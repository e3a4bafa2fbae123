"""A whole training step of BERT-base on an accelerator, for each optimizer in a process of its own.

    python benchmarks/accelerator.py --log=benchmarks/logs/accelerator.jsonl

Each contestant builds a BERT of Keras layers (bfloat16 activations, float32 weights, 20 masked
positions an example) on JAX, and takes its step in one compiled, donated call. One process at a
time compiles or runs; the others wait with nothing on the card but their arrays. Then each runs its
steps in turn, round after round. A line of the log is one contestant's: the seconds of its first
call, the milliseconds of a step by round, and their median. What an optimizer adds is its median
less that of "gradients", which keeps them and takes no step. `torch.*` updates such variables
alone, eagerly.
"""

import functools
import json
import os
import statistics
import subprocess
import sys
import time

from absl import app, flags


def gradients():
    return None


def keras_adamw():
    import keras

    return keras.optimizers.AdamW(1e-3, weight_decay=0.01)


def keras_muon():
    import keras

    return keras.optimizers.Muon(1e-3, exclude_layers=["embeddings", "head"])


def lamb(**own):
    import tf_lamb.keras

    return tf_lamb.keras.LAMB(1e-3, weight_decay=0.01, **own)


def muon(**own):
    import tf_lamb.keras

    return tf_lamb.keras.Muon(
        1e-3, weight_decay=0.01, exclude_from_layer_adaptation=["embeddings", "head"], **own
    )


def optax_lamb():
    import optax

    return optax.lamb(1e-3, weight_decay=0.01)


def optax_muon(paths):
    import optax

    def dimensions(parameters):
        as_matrix = optax.contrib.MuonDimensionNumbers
        rows = {2: as_matrix(0, 1), 3: as_matrix(0, (1, 2))}
        numbers = []
        for path, p in zip(paths, parameters, strict=True):
            is_matrix = path.endswith("kernel") and "head" not in path.split("/")[0]
            rank = getattr(p, "ndim", 0)  # of what AdamW steps, a node that hides it
            out = "attention_output" in path and rank == 3
            own = as_matrix((0, 1), 2) if out else rows.get(rank)
            numbers.append(own if is_matrix else None)
        return numbers

    return optax.contrib.muon(1e-3, muon_weight_dimension_numbers=dimensions)


CONTESTANTS = {
    "gradients": gradients,
    "keras.AdamW": keras_adamw,
    "tf_lamb.LAMB": lamb,
    "tf_lamb.LAMB propagate": functools.partial(lamb, on_nonfinite="propagate"),
    "optax.lamb": optax_lamb,
    "tf_lamb.Muon": muon,
    "tf_lamb.Muon bfloat16": functools.partial(muon, dtypes={"products": "bfloat16"}),
    "tf_lamb.Muon one by one": muon,
    "optax.contrib.muon": optax_muon,
    "keras.Muon": keras_muon,
    "torch.AdamW": None,
    "torch.Muon": None,
}


def bert(layers, width, length, vocabulary):
    """Tokens and the masked positions to logits of these."""
    import keras

    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    tokens = keras.Input((length,), dtype="int32")
    masked = keras.Input((20,), dtype="int32")
    where = keras.ops.arange(length)[None]
    embed = keras.layers.Embedding
    x = embed(vocabulary, width, name="embeddings")(tokens)
    x = x + embed(length, width, name="embeddings_of_positions")(where)
    x = keras.layers.LayerNormalization(epsilon=1e-12)(x)
    for i in range(layers):
        heads = max(width // 64, 1)
        attention = keras.layers.MultiHeadAttention(heads, width // heads, name=f"attention_{i}")
        x = keras.layers.LayerNormalization(epsilon=1e-12)(x + attention(x, x))
        inner = keras.layers.Dense(4 * width, "gelu")(x)
        x = keras.layers.LayerNormalization(epsilon=1e-12)(x + keras.layers.Dense(width)(inner))
    x = keras.ops.take_along_axis(x, masked[..., None], axis=1)
    return keras.Model((tokens, masked), keras.layers.Dense(vocabulary, name="head")(x))


def jax_contestant(name, size, batch):
    """What takes some steps of the contestant and waits for them."""
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import keras
    import numpy as np
    from jax import numpy as jnp

    keras.utils.set_random_seed(0)
    model = bert(*size)
    _, _, length, vocabulary = size
    rng = np.random.default_rng(0)
    tokens = jnp.asarray(rng.integers(0, vocabulary, (batch, length)), "int32")
    masked = jnp.asarray(rng.integers(0, length, (batch, 20)), "int32")
    labels = jnp.asarray(rng.integers(0, vocabulary, (batch, 20)), "int32")
    weights = [v.value for v in model.trainable_variables]
    others = [v.value for v in model.non_trainable_variables]
    make = CONTESTANTS[name]
    paths = [v.path for v in model.trainable_variables]
    optimizer = make(paths) if make is optax_muon else make()

    def loss(weights):
        logits, _ = model.stateless_call(weights, others, (tokens, masked))
        each = -jax.nn.log_softmax(logits.astype("float32"))
        return jnp.mean(jnp.take_along_axis(each, labels[..., None], -1))

    if optimizer is None:
        state = list(map(jnp.zeros_like, weights))

        def step(_, weights):
            value, found = jax.value_and_grad(loss)(weights)
            return found, weights, value
    elif hasattr(optimizer, "stateless_apply"):
        optimizer.build(model.trainable_variables)
        if "one by one" in name:
            optimizer._update.stacks = False
        state = [v.value for v in optimizer.variables]

        def step(state, weights):
            value, found = jax.value_and_grad(loss)(weights)
            weights, state = optimizer.stateless_apply(state, found, weights)
            return state, weights, value
    else:
        import optax

        state = jax.jit(optimizer.init)(weights)

        def step(state, weights):
            value, found = jax.value_and_grad(loss)(weights)
            updates, state = optimizer.update(found, state, weights)
            return state, optax.apply_updates(weights, updates), value

    compiled = jax.jit(step, donate_argnums=(0, 1))
    held = [state, weights]

    def take(steps):
        for _ in range(steps):
            *held[:], value = compiled(*held)
        return float(value)

    return take, {
        "device": jax.devices()[0].device_kind, "keras": keras.__version__, "jax": jax.__version__,
        "weights": sum(int(np.prod(w.shape)) for w in weights), "variables": len(weights),
    }  # fmt: skip


def torch_contestant(name, size, _):
    """Its update alone: the gradients are there."""
    import torch

    layers, width, length, vocabulary = size
    block = [(width, width), (width,)] * 4 + [(width,)] * 4
    block += [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    shapes = [(vocabulary, width), (length, width), (width,), (width,)] + block * layers
    shapes += [(width, vocabulary), (vocabulary,)]
    if name == "torch.Muon":
        shapes = [s for s in shapes if len(s) == 2 and max(s) <= 4 * width and min(s) == width]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weights = [torch.nn.Parameter(torch.randn(s, device=device) * 0.02) for s in shapes]
    for w in weights:
        w.grad = torch.randn_like(w) * 1e-3
    make = functools.partial(torch.optim.AdamW, fused=True)
    optimizer = (torch.optim.Muon if name == "torch.Muon" else make)(weights, lr=1e-3)

    def take(steps):
        for _ in range(steps):
            optimizer.step()
        return float(weights[0].reshape(-1)[0].detach())

    return take, {"torch": torch.__version__, "variables": len(weights), "device": device}


def contestant(name, size, batch, steps):
    """Answers each line of its input: the first call, then a round for every further line."""
    make = torch_contestant if name.startswith("torch.") else jax_contestant
    take, what = make(name, size, batch)
    print(json.dumps(what), flush=True)
    sys.stdin.readline()
    begun = time.perf_counter()
    take(1)
    print(json.dumps({"first": time.perf_counter() - begun}), flush=True)
    take(2)
    while sys.stdin.readline().strip() == "round":
        begun = time.perf_counter()
        take(steps)
        print(json.dumps({"ms": 1e3 * (time.perf_counter() - begun) / steps}), flush=True)


LOG = flags.DEFINE_string("log", None, "The file to which each contestant's line is added.")
OF = flags.DEFINE_list("contestants", list(CONTESTANTS), "Which take part.")
SIZE = flags.DEFINE_list(
    "size", ["12", "768", "128", "30522"], "Layers, width, length, vocabulary."
)
BATCH = flags.DEFINE_integer("batch", 64, "Examples of a step.")
STEPS = flags.DEFINE_integer("steps", 20, "Steps of a round.")
ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds, in turn.")
COMMIT = flags.DEFINE_string("commit", None, "Where there is no checkout to ask.")
ALONE = flags.DEFINE_string("alone", None, "Be this contestant; used by the program itself.")


def answer(process):
    """The next answer of a contestant, or None where it has failed."""
    line = process.stdout.readline()
    return json.loads(line) if line else None


def main(_):
    size = [int(each) for each in SIZE.value]
    if ALONE.value:
        contestant(ALONE.value, size, BATCH.value, STEPS.value)
        return
    from run_log import commit

    made = {}
    for name in OF.value:
        own = [*sys.argv, f"--alone={name}"]
        pipe = subprocess.PIPE
        made[name] = subprocess.Popen([sys.executable, *own], stdin=pipe, stdout=pipe, text=True)
    lines = {name: answer(process) for name, process in made.items()}

    def ask(name, word):
        try:
            made[name].stdin.write(f"{word}\n")
            made[name].stdin.flush()
            return answer(made[name])
        except BrokenPipeError:
            return None

    for name in [name for name, line in lines.items() if line]:
        found = ask(name, "compile")
        lines[name] = found and {**lines[name], **found, "rounds": []}
    for _ in range(ROUNDS.value):
        for name in [name for name, line in lines.items() if line]:
            lines[name]["rounds"].append(ask(name, "round")["ms"])
    for name, line in lines.items():
        of = {"contestant": name, "commit": COMMIT.value or commit(), "size": size}
        of["batch"] = BATCH.value
        if line:
            of |= {**line, "steps": STEPS.value, "median": statistics.median(line["rounds"])}
        else:
            of["failed"] = True
        print(json.dumps(of), flush=True)
        if LOG.value:
            with open(LOG.value, "a") as file:
                file.write(json.dumps(of) + "\n")
        made[name].stdin.close()
        made[name].wait()


if __name__ == "__main__":
    app.run(main)
