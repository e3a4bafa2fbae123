"""TF_CONFIG: the processes that train one model together, and which of them this one is.

TensorFlow reads it too. It waits for ever for a process that nobody starts, and of a mistake in
the text it gives a traceback: so it is checked before TensorFlow sees it.
"""

import json
import os

from tf_lamb.model_garden.common.errors import UserError, did_you_mean

_TRAINING = ("chief", "worker")
_EXAMPLE = (
    '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}, and in '
    "a shell put single quotes around it"
)
_NO_USE = {
    "ps": "keeps weights for a parameter server, and no run of this command asks one. Leave it out",
    "evaluator": "does not train. Leave it out, and evaluate with --mode=continuous_eval in a "
    "process without TF_CONFIG",
}


def read() -> dict:
    """Reads TF_CONFIG; {} where it is not set.

    Raises:
        UserError: where it is no JSON object, or its cluster has no lists of addresses.
    """
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _error(f"which is no JSON ({error})", text) from error
    if not isinstance(found, dict):
        raise _error("which is no JSON object", text)
    cluster = found.get("cluster") or {}
    if not isinstance(cluster, dict):
        raise _error("whose cluster is no JSON object", text)
    for job in _TRAINING:
        if not _are_addresses(cluster.get(job, [])):
            raise _error(f"whose {job} is no list of addresses", text)
    return found


def _are_addresses(value) -> bool:
    return isinstance(value, list) and all(isinstance(address, str) for address in value)


def check() -> None:
    """Raises `UserError` where TF_CONFIG names no cluster that can train, or no place in it."""
    found = read()
    if not (cluster := found.get("cluster")):
        return  # one process alone
    task = found.get("task")
    if not isinstance(task, dict) or not {"type", "index"} <= set(task):
        raise _error("which does not say which of the processes this one is")
    kind, index = task["type"], task["index"]
    for job in cluster:
        if job in _NO_USE:
            raise UserError(f"TF_CONFIG names a process of the type {job!r}, which {_NO_USE[job]}")
        if job not in _TRAINING:
            raise UserError(f"TF_CONFIG names a cluster of {job!r}. {did_you_mean(job, _TRAINING)}")
    if len(cluster.get("chief", ())) > 1:
        raise UserError("TF_CONFIG names more than one chief. Make the others workers")
    if kind in _NO_USE:
        raise UserError(f"TF_CONFIG makes this process of the type {kind!r}, which {_NO_USE[kind]}")
    if kind not in cluster:
        raise UserError(
            f"TF_CONFIG makes this process of the type {kind!r}, which its cluster has not. "
            f"{did_you_mean(kind, list(cluster))}"
        )
    _check_index(kind, index, len(cluster[kind]))
    every = [address for addresses in cluster.values() for address in addresses]
    if twice := next((address for address in every if every.count(address) > 1), None):
        raise UserError(f"TF_CONFIG gives {twice} to two processes. Give every one its own")


def _check_index(kind: str, index, count: int) -> None:
    """Raises where there is no process of that number; the number may stand in quotes."""
    is_whole = isinstance(index, int | str) and not isinstance(index, bool)
    is_whole = is_whole and str(index).isdecimal()
    if not is_whole or int(index) >= count:
        last = f"from 0 to {count - 1}" if count > 1 else "0"
        raise UserError(
            f"TF_CONFIG makes this process {kind} {index!r}, and its cluster has {count} of them. "
            f"Write an index {last}"
        )


def _error(why: str, text: str | None = None) -> UserError:
    text = os.environ.get("TF_CONFIG") if text is None else text
    return UserError(f"TF_CONFIG is {text!r}, {why}: it describes no cluster. Write {_EXAMPLE}")
