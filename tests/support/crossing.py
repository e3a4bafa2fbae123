"""The other backend: a process that goes on with a training from a file, and writes another.

A line of its input is {"from": path, "batches": [[kind, seed], ...], "to": path} in JSON. One of
its output that begins with `@` is "done", or what the error says.
"""

import json
import os
import pathlib
import subprocess
import sys

TESTS = pathlib.Path(__file__).parents[1]


class Other:
    """The process, which is started when it is first asked.

    Args:
        backend: Its backend of Keras 3.
    """

    def __init__(self, backend):
        self.backend, self._process = backend, None

    def go_on(self, source, batches, target):
        """Raises `ValueError` with what a refusal there says, `RuntimeError` for another error."""
        if self._process is None:
            env = {**os.environ, "KERAS_BACKEND": self.backend, "PYTHONPATH": str(TESTS.parent)}
            self._process = subprocess.Popen(
                [sys.executable, __file__], env=env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        job = {"from": str(source), "batches": batches, "to": str(target)}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("@"):
                if (answer := json.loads(line[1:])) != "done":
                    kind, _, text = answer.partition(": ")
                    if kind == "ValueError":
                        raise ValueError(text)
                    raise RuntimeError(f"on {self.backend}: {answer}")
                return
        raise RuntimeError(f"the process of {self.backend} has ended")

    def end(self):
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()


def serve():
    from support import promised, stateful
    from support.frontends import FRONTENDS, uncompiled

    host, _ = FRONTENDS["keras"]
    for line in sys.stdin:
        job = json.loads(line)
        try:
            loss = {"tilted": stateful.loss_of(host)}
            model = host.models.load_model(job["from"], custom_objects=loss)
            variables = stateful.variables_of(model)
            roles = [r for r, v in variables.items() if v.trainable]
            with uncompiled():
                for kind, seed in job["batches"]:
                    gradients = promised.gradients_of(promised.batch_of(kind, seed))
                    own = [variables[role] for role in roles]
                    stateful.take(model.optimizer, [gradients[role] for role in roles], own)
            model.save(job["to"])
            answer = "done"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(f"@{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    serve()
