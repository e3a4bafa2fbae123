"""What `shard_update` and `per_replica` save of BERT-large, as the TPU's compiler says.

    python -m benchmarks.performance.sharded_update --log=benchmarks/logs/sharded_update.jsonl

No TPU is needed and nothing runs. The model is of Keras's own layers: 24 layers of 1,024, sequences
of 128, words read and written by one table, a loss on every token, mixed_bfloat16, on eight chips
under `DataParallel`. Every row is a line of the log, and one that the log has is not compiled
again. A step of BERT-large takes minutes and 15 GB to compile; `--layers` makes a smaller one,
`--update_only` leaves out all but the update.
"""

import json
import os
import time

from absl import app, flags

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SWITCHES = {  # shard_update, per_replica, micro-batches
    "neither": (False, False, 1),
    "shard_update": (True, False, 1),
    "neither, 8 micro-batches": (False, False, 8),
    "shard_update, 8 micro-batches": (True, False, 8),
    "per_replica, 8 micro-batches": (False, True, 8),
    "both, 8 micro-batches": (True, True, 8),
}


def bert(depth, width=1024, heads=16, vocabulary=30522, length=128):
    """Tokens to logits."""
    from keras import Input, Model, layers, ops

    tokens = Input((length,), dtype="int32", name="tokens")
    places = ops.multiply(ops.ones_like(tokens), ops.arange(length)[None])
    words = layers.ReversibleEmbedding(vocabulary, width, reverse_dtype="float32", name="words")
    x = words(tokens)
    x = layers.LayerNormalization()(x + layers.Embedding(512, width, name="positions")(places))
    for i in range(depth):
        attention = layers.MultiHeadAttention(heads, width // heads, name=f"attention_{i}")(x, x)
        x = layers.LayerNormalization(name=f"after_attention_{i}")(x + attention)
        up = layers.Dense(4 * width, activation="gelu", name=f"up_{i}")(x)
        down = layers.Dense(width, name=f"down_{i}")(up)
        x = layers.LayerNormalization(name=f"after_{i}")(x + down)
    return Model(tokens, words(x, reverse=True), name="bert")


def ask(switches, topology, examples, depth, search, update_only):
    """A row."""
    import keras

    import tf_lamb.keras
    from tf_lamb_extras.preflight import preflight

    shared, apart, steps = SWITCHES[switches]
    keras.config.set_dtype_policy("mixed_bfloat16")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf_lamb.keras.LAMB(
        1e-3, weight_decay=0.01, exclude_from_weight_decay="norm_and_bias",
        shard_update=shared, gradient_accumulation_steps=steps,
    )  # fmt: skip
    # On the host one device stands for them all; the report compiles for the topology's.
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    model = bert(depth)
    if apart:
        model.compile(optimizer, loss)
        tf_lamb.keras.per_replica(model)
    start = time.perf_counter()
    shape = (examples * 8, 128)
    if update_only:
        found = update_alone(model, optimizer, loss, shape, topology)
    else:
        found = preflight(model, optimizer, loss, shape, topology, largest_batch=search).as_dict()
    return {
        **found, "switches": switches, "asked": examples, "layers": depth, "search": search,
        "topology": topology, "update_only": update_only,
        "seconds": round(time.perf_counter() - start),
    }  # fmt: skip


def update_alone(model, optimizer, loss, shape, topology):
    """What the compiler says of the update alone, as preflight lowers it."""
    from tf_lamb_extras.preflight import shapes, step_programs
    from tf_lamb_extras.preflight.tpu import compiler, roofline

    inputs = shapes.inputs(shape, model)
    targets = shapes.targets_of(loss, step_programs.predictions(model, inputs))
    devices = compiler.devices(roofline.topology(topology))
    distribution = step_programs.on_devices(None, devices)
    optimizer = step_programs.copy_of(optimizer, model)
    steps = step_programs.Steps(model, optimizer, loss, inputs, targets, distribution)
    program = compiler.compile_lowered(steps.update())
    return {
        "parameters": model.count_params(), "weights": steps.weights, "slots": steps.slots,
        "bytes_moved": program.bytes_moved, "temporaries": program.temporaries,
        "collectives": program.collectives, "compiler": compiler.versions(),
    }  # fmt: skip


def main(_):
    """Each row, unless the log has it."""
    args = flags.FLAGS
    known = set()
    if os.path.exists(args.log):
        with open(args.log) as file:
            known = {key(row) for row in map(json.loads, file)}
    for switches in args.switches:
        asked = {"switches": switches, "topology": args.topology, "layers": args.layers,
                 "asked": args.examples, "search": args.search,
                 "update_only": args.update_only}  # fmt: skip
        if key(asked) in known:
            continue
        row = ask(
            switches, args.topology, args.examples, args.layers, args.search, args.update_only
        )
        with open(args.log, "a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def key(row):
    """What a row is of."""
    return tuple(
        row[name] for name in ("switches", "topology", "layers", "asked", "search", "update_only")
    )


if __name__ == "__main__":
    flags.DEFINE_multi_enum("switches", list(SWITCHES), list(SWITCHES), "Which rows.")
    flags.DEFINE_string("topology", "v4:2x2x2", "Eight chips.")
    flags.DEFINE_integer("examples", 32, "Of a chip, at once.")
    flags.DEFINE_integer("layers", 24, "Of the BERT.")
    flags.DEFINE_bool("search", False, "Whether to look for the largest batch, from one too large.")
    flags.DEFINE_bool("update_only", False, "Whether to compile the update and nothing else.")
    flags.DEFINE_string("log", "benchmarks/logs/sharded_update.jsonl", "Where the rows are.")
    app.run(main)
