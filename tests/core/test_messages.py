"""Texts of messages: what processes state differently, and words in a sentence."""

import ast
import pathlib
import re
import shlex
import tomllib

import pytest

import tf_lamb
from tf_lamb.core import checks
from tf_lamb.core.messages import differences_text, join_words, optional_imports
from tf_lamb.model_garden.common import errors

ROOT = pathlib.Path(tf_lamb.__file__).parents[1]
SOURCES = [*ROOT.glob("tf_lamb/**/*.py"), *ROOT.glob("tf_lamb_extras/**/*.py")]


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BROUGHT = [text for extra in PROJECT["optional-dependencies"].values() for text in extra]


def name_of(requirement):
    return re.split(r"[=<>]", requirement)[0]


def arguments_of_pip(path):
    """What the messages in a file say to install."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and "require_installed" in ast.unparse(node.func):
            yield next(word.value for word in node.keywords if word.arg == "install")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "optional_imports":
            yield from node.args[1:2]  # without it the missing package is installed


def test_messages_install_what_the_extras_bring():
    """By the names of the packages: `".[extra]"` means something in a clone alone."""
    texts = [
        text.value for path in SOURCES for text in arguments_of_pip(path) if hasattr(text, "value")
    ]
    assert len(texts) >= 6
    for text in [*texts, errors.INSTALL.partition(",")[0]]:
        arguments = shlex.split(text)
        assert {*map(name_of, arguments)} <= {*map(name_of, BROUGHT)}, text
        # A version is named where a later one is refused.
        limited = {text for text in BROUGHT if "==" in text or "<" in text}
        assert {text for text in arguments if text != name_of(text)} <= limited


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_text_of_the_package_installs_from_a_clone(path):
    assert not re.search(r"install [\"'`]*\.\[", path.read_text())


def test_a_package_that_is_missing_is_the_one_to_install():
    message = r"this environment lacks: pip install torch\.$"
    with pytest.raises(ModuleNotFoundError, match=message), optional_imports("tf_lamb.keras"):
        raise ModuleNotFoundError(name="torch.nn")


def test_a_rate_that_is_no_number_is_answered_with_the_one_to_begin_with():
    with pytest.raises(TypeError, match=r"not '0\.01'\. Try learning_rate=0\.01\.$"):
        checks.number("learning_rate", "0.01")


def test_processes_that_agree_have_no_differences():
    assert differences_text({f"worker {i}": {"a": "1"} for i in range(3)}) == ""


def test_a_name_that_differs_is_named_once_with_the_first_process_that_differs():
    texts = {"worker 0": {"a": "1"}, "worker 1": {"a": "3"}, "worker 2": {"a": "4"}}
    assert differences_text(texts) == "a is 1 in worker 0, 3 in worker 1"


def test_a_name_that_one_process_lacks_is_not_there():
    texts = {"worker 0": {"b": "2"}, "worker 1": {"c": "5"}}
    assert differences_text(texts) == (
        "b is 2 in worker 0, not there in worker 1; c is not there in worker 0, 5 in worker 1"
    )


def test_five_differences_are_named_and_the_rest_is_counted():
    texts = {f"worker {i}": {str(name): str(i) for name in range(9)} for i in range(2)}
    assert differences_text(texts).endswith("; 4 is 0 in worker 0, 1 in worker 1; 4 more")


@pytest.mark.parametrize(
    ("words", "text"), [(["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")]
)
def test_words_are_joined_by_commas_and_the_last_by_a_conjunction(words, text):
    assert join_words(words, "or") == text
