"""Reads and checks the environment variable TF_CONFIG before TensorFlow reads it.

TF_CONFIG lists the processes that train one model together, and says which of them this one is.
TensorFlow would wait forever for a listed process that nobody starts, and would report a mistake in
the text with a traceback.
"""

import json
import os

from tf_lamb.model_garden.common.errors import UserError, did_you_mean

# The types of processes that train.
_TRAINING = ("chief", "worker")
_EXAMPLE = (
    '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}, and in '
    "a shell put single quotes around it"
)
# Type of a process in TF_CONFIG that is an error here -> why, and what to do instead, as the end of
# the error.
_NO_USE = {
    "ps": "keeps weights as a parameter server, which no run of this command uses. Leave it out",
    "evaluator": "does not train. Leave it out, and evaluate with --mode=continuous_eval in a "
    "process without TF_CONFIG",
}


def read() -> dict:
    """Returns the content of TF_CONFIG, as a dict; {} if it is not set.

    Raises:
        UserError: if it is not a JSON object, or its cluster has no lists of addresses.
    """
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        config = json.loads(text)
    except ValueError as error:
        raise _error(f"which is no JSON ({error})", text) from error
    if not isinstance(config, dict):
        raise _error("which is no JSON object", text)
    cluster = config.get("cluster") or {}
    if not isinstance(cluster, dict):
        raise _error("whose cluster is no JSON object", text)
    for job in _TRAINING:
        if not _are_addresses(cluster.get(job, [])):
            raise _error(f"whose {job} is no list of addresses", text)
    return config


def _are_addresses(value) -> bool:
    """Returns whether a value is a list of strings."""
    return isinstance(value, list) and all(isinstance(address, str) for address in value)


def check() -> None:
    """Checks TF_CONFIG, if it has a cluster.

    Raises:
        UserError: if the cluster cannot train a model, or if it does not list this process.
    """
    config = read()
    if not (cluster := config.get("cluster")):
        return  # a run in a single process
    task = config.get("task")
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
    if not isinstance(kind, str):
        raise _error(f"whose task has the type {kind!r}, which is no text")
    if kind in _NO_USE:
        raise UserError(f"TF_CONFIG makes this process of the type {kind!r}, which {_NO_USE[kind]}")
    if kind not in cluster:
        raise UserError(
            f"TF_CONFIG makes this process of the type {kind!r}, which its cluster has not. "
            f"{did_you_mean(kind, list(cluster))}"
        )
    _check_index(kind, index, len(cluster[kind]))
    all_addresses = [address for addresses in cluster.values() for address in addresses]
    if duplicate := next(
        (address for address in all_addresses if all_addresses.count(address) > 1), None
    ):
        raise UserError(f"TF_CONFIG gives {duplicate} to two processes. Give every one its own")


def _check_index(kind: str, index, count: int) -> None:
    """Raises `UserError` if the cluster has no process of this type and index.

    Args:
        kind: the type of this process, such as "worker".
        index: the index of this process, as a number or as text.
        count: the number of processes of this type in the cluster.
    """
    if not count:
        raise UserError(
            f"TF_CONFIG makes this process {kind} {index!r}, and its cluster has none. Write the "
            f"address of each {kind} into its list"
        )
    is_whole = isinstance(index, int | str) and not isinstance(index, bool)
    is_whole = is_whole and str(index).isdecimal()
    if not is_whole or int(index) >= count:
        indices = f"from 0 to {count - 1}" if count > 1 else "0"
        raise UserError(
            f"TF_CONFIG makes this process {kind} {index!r}, and its cluster has {count} of them. "
            f"Write an index {indices}"
        )


def _error(why: str, text: str | None = None) -> UserError:
    """Makes the error for a TF_CONFIG of another form, for the reason `why`."""
    text = os.environ.get("TF_CONFIG") if text is None else text
    return UserError(f"TF_CONFIG is {text!r}, {why}. Write {_EXAMPLE}")
