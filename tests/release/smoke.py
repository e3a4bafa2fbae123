"""Uses an installed tf_lamb as its first user does: `make release` runs it from the wheel.

    python smoke.py [--garden] [--adopt]

It is no test of pytest: it runs where nothing but the wheel and one extra is installed.
"""

import argparse
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def check_installed():
    """Asserts that the package is the installed one, with its configs and its types."""
    import tf_lamb

    root = pathlib.Path(tf_lamb.__file__).parent
    assert "site-packages" in root.parts, f"tf_lamb is not the installed one: {root}"
    assert importlib.metadata.version("tf_lamb") == tf_lamb.__version__
    assert (root / "py.typed").exists()
    assert len([*(root / "model_garden" / "configs").glob("*.yaml")]) > 10


def train(host, ours):
    """Trains, saves and loads a small model with each optimizer."""
    import numpy as np

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 4)), rng.normal(size=(64, 2))
    for name in ("LAMB", "LANS", "LARS", "Muon", "SOAP", "AdamP", "SGDP"):
        model = host.Sequential([host.Input((4,)), host.layers.Dense(2)])
        model.compile(optimizer=getattr(ours, name)(0.01), loss="mse")
        model.fit(x, y, batch_size=16, epochs=2, verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.keras")
            model.save(path)
            loaded = host.models.load_model(path)
        assert type(loaded.optimizer) is type(model.optimizer), name
        assert int(np.asarray(loaded.optimizer.iterations)) == 8, name
        print(f"{host.__name__} {name}: trained, saved, loaded", flush=True)


def command(*arguments):
    """Runs a module of the package, and returns what it prints."""
    done = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True)
    # absl ends in 1 after --help.
    assert done.returncode == (1 if "--help" in arguments else 0), done.stderr[-2000:]
    return done.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tf_keras", action="store_true", help="also train in tf_keras")
    parser.add_argument("--garden", action="store_true", help="also ask the Model Garden's command")
    parser.add_argument("--adopt", action="store_true", help="rewrite a script, and no more")
    options = parser.parse_args()
    check_installed()
    if options.adopt:
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "train.py"
            script.write_text("import keras\noptimizer = keras.optimizers.Lamb(1e-3)\n")
            assert "+optimizer = tf_lamb.keras.LAMB(1e-3)" in command("tf_lamb.adopt", str(script))
        return
    import keras

    import tf_lamb.keras

    print("Keras", keras.__version__, "on", keras.backend.backend())
    train(keras, tf_lamb.keras)
    if options.tf_keras:
        import tf_keras

        import tf_lamb.tf_keras

        print("tf_keras", tf_keras.__version__)
        train(tf_keras, tf_lamb.tf_keras)
    if options.garden:
        assert "--global_batch_size" in command("tf_lamb.model_garden.train", "--help")


if __name__ == "__main__":
    main()
