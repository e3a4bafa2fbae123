"""Texts of messages: what processes state differently, and words in a sentence."""

import pytest

from tf_lamb.core.messages import differences_text, join_words


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
