"""Steps on an accelerator, for each optimizer in a process of its own.

    python -m benchmarks.performance.accelerator --log=benchmarks/logs/accelerator.jsonl
    python -m benchmarks.performance.accelerator --network=resnet50 --batch=32 --batch=128 \\
        --batch=256
    python -m benchmarks.performance.accelerator --mode=update
    python -m benchmarks.performance.accelerator --mode=sweep --network=decoder \\
        --contestants=tf_lamb.LAMB

Each contestant builds a network of Keras layers (bfloat16 activations, float32 weights) on JAX, and
takes its step in one compiled, donated call. One process at a time compiles or runs; the others
wait with nothing on the card but their arrays. Then each runs its steps in turn, round after round.
A line of the log is one contestant's: the seconds of its first call, the milliseconds of a step by
round, their median, those of 50 steps that are waited for one by one, and the most memory that it
held. What an optimizer adds is its median less that of "gradients", which keeps them and takes no
step. `torch.*` updates the variables of BERT alone, eagerly.

Modes: "step" is the whole training step; "update" is the update alone, --steps times inside of one
compiled loop behind one pass for its gradients, which those of "gradients" show; "sweep" is the
whole step at batches of 16 to 32,768, beyond --micro by adding up gradients: a line of it has
seconds by batch.
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


def of_matrices(name, **own):
    import tf_lamb.keras

    excluded = ["embeddings", "head"]
    make = getattr(tf_lamb.keras, name)
    return make(1e-3, weight_decay=0.01, exclude_from_layer_adaptation=excluded, **own)


muon = functools.partial(of_matrices, "Muon")
muon_float32 = functools.partial(muon, dtypes={"products": "float32"})
soap = functools.partial(of_matrices, "SOAP")


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
    "tf_lamb.Muon": muon_float32,
    "tf_lamb.Muon bfloat16": functools.partial(muon, dtypes={"products": "bfloat16"}),
    "tf_lamb.Muon one by one": muon_float32,
    "tf_lamb.SOAP": soap,
    "optax.contrib.muon": optax_muon,
    "keras.Muon": keras_muon,
    "torch.AdamW": None,
    "torch.Muon": None,
}


def bert(batch, size):
    """A BERT to logits of 20 masked positions; its inputs and labels."""
    import keras

    layers, width, length, vocabulary = size
    tokens = keras.Input((length,), dtype="int32")
    masked = keras.Input((20,), dtype="int32")
    where = keras.ops.arange(length)[None]
    embed = keras.layers.Embedding
    x = embed(vocabulary, width, name="embeddings")(tokens)
    x = x + embed(length, width, name="embeddings_of_positions")(where)
    x = keras.layers.LayerNormalization(epsilon=1e-12)(x)
    for i in range(layers):
        x = _block(x, width, i, causal=False)
    x = keras.ops.take_along_axis(x, masked[..., None], axis=1)
    model = keras.Model((tokens, masked), keras.layers.Dense(vocabulary, name="head")(x))
    drawn = _drawn((batch, length), vocabulary), _drawn((batch, 20), length)
    return model, drawn, _drawn((batch, 20), vocabulary)


def decoder(batch, _):
    """Six layers of 512 that tell the next of 512 tokens; its inputs and labels."""
    import keras

    width, length, vocabulary = 512, 512, 8192
    tokens = keras.Input((length,), dtype="int32")
    x = keras.layers.Embedding(vocabulary, width, name="embeddings")(tokens)
    for i in range(6):
        x = _block(x, width, i, causal=True)
    model = keras.Model(tokens, keras.layers.Dense(vocabulary, name="head")(x))
    return model, _drawn((batch, length), vocabulary), _drawn((batch, length), vocabulary)


def _block(x, width, i, causal):
    import keras

    heads = max(width // 64, 1)
    attention = keras.layers.MultiHeadAttention(heads, width // heads, name=f"attention_{i}")
    inner = x + attention(x, x, use_causal_mask=causal)
    x = keras.layers.LayerNormalization(epsilon=1e-12)(inner)
    inner = keras.layers.Dense(4 * width, "gelu")(x)
    return keras.layers.LayerNormalization(epsilon=1e-12)(x + keras.layers.Dense(width)(inner))


def resnet50(batch, _):
    """ResNet-50 at 224 pixels, its batches normalized by themselves; its inputs and labels."""
    import jax
    import keras

    model = keras.applications.ResNet50(weights=None, classifier_activation=None)
    pictures = jax.random.normal(jax.random.key(0), (batch, 224, 224, 3), "float32")
    return model, pictures, _drawn((batch,), 1000)


def _drawn(shape, below):
    import numpy as np
    from jax import numpy as jnp

    return jnp.asarray(np.random.default_rng(0).integers(0, below, shape), "int32")


NETWORKS = {"bert": bert, "decoder": decoder, "resnet50": resnet50}


def update_of(name, model):
    """The state of the contestant, and what steps: state, gradients, weights -> weights, state."""
    make = CONTESTANTS[name]
    paths = [v.path for v in model.trainable_variables]
    optimizer = make(paths) if make is optax_muon else make()
    weights = [v.value for v in model.trainable_variables]
    if hasattr(optimizer, "stateless_apply"):
        optimizer.build(model.trainable_variables)
        if "one by one" in name:
            optimizer._update.stacks_matrices = False
        return [v.value for v in optimizer.variables], optimizer.stateless_apply
    import jax

    if optimizer is None:  # keeps the gradients
        return list(map(jax.numpy.zeros_like, weights)), lambda _, found, weights: (weights, found)
    import optax

    def apply(state, found, weights):
        updates, state = optimizer.update(found, state, weights)
        return optax.apply_updates(weights, updates), state

    return jax.jit(optimizer.init)(weights), apply


def jax_contestant(name, network, size, batch, mode, micro):
    """What takes some steps of the contestant and waits for them, and what it is."""
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import keras
    from jax import lax

    keras.utils.set_random_seed(0)
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model, inputs, labels = NETWORKS[network](min(batch, micro), size)
    weights = [v.value for v in model.trainable_variables]
    others = [v.value for v in model.non_trainable_variables]
    state, apply = update_of(name, model)

    def loss(weights, i=0):
        # In another order each time, or XLA would make the gradients of all micro-batches at once.
        x, y = jax.tree.map(lambda each: jax.numpy.roll(each, i, axis=0), (inputs, labels))
        logits, _ = model.stateless_call(weights, others, x, training=True)
        each = -jax.nn.log_softmax(logits.astype("float32"))
        return jax.numpy.mean(jax.numpy.take_along_axis(each, y[..., None], -1))

    def whole(state, weights, times):
        def add(i, sums):
            found = jax.value_and_grad(loss)(weights, i)
            return jax.tree.map(jax.numpy.add, sums, found)

        found = jax.value_and_grad(loss)(weights)
        if batch > micro:  # what is asked for is no constant: one program for all such batches
            found = lax.fori_loop(1, times, add, found)
        weights, state = apply(state, found[1], weights)
        return state, weights, found[0]

    def updates(state, weights, times):
        found = jax.grad(loss)(weights)

        def update(_, held):
            new, state = apply(held[0], found, held[1])
            return state, new

        state, weights = lax.fori_loop(0, times, update, (state, weights))
        return state, weights, weights[-1].ravel()[0]

    at_once = max(batch // micro, 1)
    compiled = jax.jit(updates if mode == "update" else whole, donate_argnums=(0, 1))
    held = [state, weights]

    def take(steps, times=at_once):
        for _ in range(1 if mode == "update" else steps):
            *held[:], value = compiled(*held, steps if mode == "update" else times)
        return float(value)

    (device, *_) = jax.devices()
    return take, lambda: {
        "device": device.device_kind, "keras": keras.__version__, "jax": jax.__version__,
        "weights": sum(w.size for w in held[1]), "variables": len(held[1]),
        "peak_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use"),
    }  # fmt: skip


def torch_contestant(name, size):
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

    of = torch.cuda.get_device_name() if device == "cuda" else device
    return take, lambda: {"torch": torch.__version__, "variables": len(weights), "device": of}


def contestant(name, given):
    """Answers each line of its input: the first call, rounds, single steps, and what it is."""
    network, size, batch, steps = given.network, numbers_of(given.size), given.batch[0], given.steps
    if name.startswith("torch."):
        take, what = torch_contestant(name, size)
    else:
        take, what = jax_contestant(name, network, size, batch, given.mode, given.micro)

    def timed(count):
        begun = time.perf_counter()
        take(count)
        return time.perf_counter() - begun

    def say(**answer):
        print(json.dumps(answer), flush=True)

    say(ready=True)
    for word in map(str.strip, sys.stdin):
        if word == "compile":
            say(first=timed(steps if given.mode == "update" else 1))
            take(2)
        elif word == "round":
            say(ms=1e3 * timed(steps) / steps)
        elif word == "singly":
            say(singly=[1e3 * timed(1) for _ in range(50)])
        else:
            say(**what())


def numbers_of(each):
    return [int(number) for number in each]


def run_in_turn(names, steps, rounds, argv, is_singly):
    """The line of each contestant: all of them in turn, one at work at a time."""
    pipe = subprocess.PIPE
    made = {
        name: subprocess.Popen(
            [sys.executable, "-m", __spec__.name, *argv, f"--alone={name}"],
            stdin=pipe,
            stdout=pipe,
            text=True,
        )
        for name in names
    }

    def answer(name):
        line = made[name].stdout.readline()
        return json.loads(line) if line else None  # where it has failed

    def ask(name, word):
        try:
            made[name].stdin.write(f"{word}\n")
            made[name].stdin.flush()
        except BrokenPipeError:
            return None
        return answer(name)

    alive = [name for name in names if answer(name)]
    first = {name: ask(name, "compile") for name in alive}
    alive = [name for name in alive if first[name]]
    found = {name: {"steps": steps, **first[name], "rounds": []} for name in alive}
    for _ in range(rounds):
        for name in alive:
            found[name]["rounds"].append(ask(name, "round")["ms"])
    for name in alive:
        found[name]["median"] = statistics.median(found[name]["rounds"])
        found[name] |= ask(name, "singly") if is_singly else {}
        found[name] |= ask(name, "what")
    for process in made.values():
        process.stdin.close()
        process.wait()
    return {name: found.get(name, {"failed": True}) for name in names}


def swept(name, given):
    """Seconds of a whole step by batch, in this process."""
    seconds, take = {}, None
    for batch in given.batch:
        if take is None or batch <= given.micro or max(seconds) <= given.micro:
            take, what = jax_contestant(
                name, given.network, numbers_of(given.size), batch, "step", given.micro
            )
            take(1)
        times = max(batch // given.micro, 1)
        own = []
        for _ in range(3):
            begun = time.perf_counter()
            take(1, times)
            own.append(time.perf_counter() - begun)
        seconds[batch] = statistics.median(own)
        print(name, batch, seconds[batch], flush=True)
    return {"micro": given.micro, "seconds": seconds, **what()}


def main(_):
    from benchmarks.shared.run_log import commit

    given = flags.FLAGS
    if given.alone:
        contestant(given.alone, given)
        return

    def note(name, **line):
        line = {"contestant": name, "mode": given.mode, "network": given.network, **line}
        line = {"commit": commit(), **line}
        if given.network == "bert":
            line["size"] = numbers_of(given.size)
        print(json.dumps(line), flush=True)
        if given.log:
            with open(given.log, "a") as file:
                file.write(json.dumps(line) + "\n")

    if given.mode == "sweep":
        for name in given.contestants:
            note(name, **swept(name, given))
        return
    for batch in given.batch:
        argv = [each for each in sys.argv[1:] if not each.startswith("--batch")]
        argv.append(f"--batch={batch}")
        is_singly = given.mode == "step"
        lines = run_in_turn(given.contestants, given.steps, given.rounds, argv, is_singly)
        for name, line in lines.items():
            note(name, batch=batch, **line)


def define():
    flags.DEFINE_string("log", None, "The file to which each contestant's line is added.")
    flags.DEFINE_list("contestants", list(CONTESTANTS), "Which take part.")
    flags.DEFINE_enum("network", "bert", list(NETWORKS), "What is trained.")
    flags.DEFINE_enum("mode", "step", ["step", "update", "sweep"], "What is timed.")
    size = ["12", "768", "128", "30522"]
    flags.DEFINE_list("size", size, "Layers, width, length, vocabulary of the BERT.")
    flags.DEFINE_multi_integer("batch", [64], "Examples of a step.")
    flags.DEFINE_integer("micro", 256, "Beyond so many, gradients are added up.")
    flags.DEFINE_integer("steps", 20, "Steps of a round.")
    flags.DEFINE_integer("rounds", 5, "Rounds, in turn.")
    flags.DEFINE_string("alone", None, "Be this contestant; used by the program itself.")


if __name__ == "__main__":
    define()
    app.run(main)
