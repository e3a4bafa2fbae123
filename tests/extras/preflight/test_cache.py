"""The compiler's answers in a folder: found again, or made anew, and never an error."""

import json

import pytest

from tf_lamb_extras.preflight.tpu import cache, compiler
from tf_lamb_extras.preflight.tpu.programs import Exchange

pytestmark = pytest.mark.once

PROGRAM = compiler.Program(1, 2, 3, 4, 5.5, 6.25, (Exchange("all-reduce", None, False, 2, 8),))


@pytest.fixture(autouse=True)
def version(monkeypatch):
    monkeypatch.setattr(compiler, "versions", lambda: "libtpu 0")


class Question:
    """One process's question: a step and, of the same model, a larger one."""

    def __init__(self, folder, place="v3", program="p", answer=PROGRAM):
        self._cache = cache.Cache(folder, place, str)
        self._program, self._answer = program, answer
        self.made, self.compiled = [], []

    def ask(self, name="step"):
        def make():
            self.made.append(name)
            return self._program

        def compile_(program):
            self.compiled.append(name)
            if isinstance(self._answer, Exception):
                raise self._answer
            return self._answer

        return self._cache.compiled(name, make, compile_)


def asked(*arguments, **options):
    """How often a question of two programs compiles."""
    question = Question(*arguments, **options)
    assert [question.ask(), question.ask("larger")] == 2 * [PROGRAM]
    return len(question.compiled)


def test_the_same_question_is_compiled_once_and_its_later_programs_are_not_even_made(tmp_path):
    assert asked(tmp_path) == 2
    again = Question(tmp_path)
    assert [again.ask(), again.ask("larger")] == 2 * [PROGRAM]
    assert again.compiled == [] and again.made == ["step"]
    assert len(list(tmp_path.iterdir())) == 2
    assert all(file.stat().st_size < 1024 for file in tmp_path.iterdir())


@pytest.mark.parametrize("other", [{"program": "q"}, {"place": "v4"}], ids=["program", "place"])
def test_another_program_or_place_is_another_question(other, tmp_path):
    assert asked(tmp_path) == 2
    assert asked(tmp_path, **other) == 2


CHANGES = {
    "XLA_FLAGS": lambda patch: patch.setenv("XLA_FLAGS", "--another"),
    "LIBTPU_INIT_ARGS": lambda patch: patch.setenv("LIBTPU_INIT_ARGS", "--another"),
    "compiler": lambda patch: patch.setattr(compiler, "versions", lambda: "libtpu 1"),
    "package": lambda patch: patch.setattr(cache, "_sources", lambda: "another release"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_compiler_package_or_flag_is_another_question(change, tmp_path, monkeypatch):
    assert asked(tmp_path) == 2
    CHANGES[change](monkeypatch)
    assert asked(tmp_path) == 2


@pytest.mark.parametrize(
    ("error", "kept"), [(compiler.TooLarge(3.5, 2.0), True), (compiler.Refused("no"), False)]
)
def test_that_a_program_is_too_large_is_kept_and_no_other_refusal(error, kept, tmp_path):
    for compiles in (True, not kept):
        question = Question(tmp_path, answer=error)
        with pytest.raises(type(error), match=str(error)) as refusal:
            question.ask()
        assert vars(refusal.value) == vars(error)
        assert question.compiled == ["step"] * compiles


DAMAGE = {
    "empty": lambda text: "",
    "cut": lambda text: text[:-9],
    "no JSON": lambda text: "\x80" + text,
    "another type": lambda text: "[" * 100_000,
    "a list": lambda text: "[]",
    "another number": lambda text: text.replace("6.25", "7.25"),
    "no program": lambda text: json.dumps(json.loads(text) | {"answer": None}),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_compiled_again_and_replaced(name, tmp_path):
    assert asked(tmp_path) == 2
    for file in tmp_path.iterdir():
        file.write_text(DAMAGE[name](file.read_text()), encoding="latin-1")
    assert asked(tmp_path) == 2
    assert asked(tmp_path) == 0


def test_a_file_under_the_name_of_another_is_compiled_again(tmp_path):
    assert asked(tmp_path) == 2
    one, other = tmp_path.iterdir()
    other.write_bytes(one.read_bytes())
    assert asked(tmp_path) == 1


def test_a_folder_that_cannot_be_written_to_is_one_warning(tmp_path):
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.warns(UserWarning, match="is not kept: .*cache_dir, or leave it out") as warned:
        assert asked(taken / "inside") == 2
    assert len(warned) == 1


@pytest.mark.parametrize("none", [None, ""])
def test_without_a_folder_nothing_is_kept(none, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert [asked(none), asked(none)] == [2, 2]
    assert not list(tmp_path.iterdir())


def test_a_folder_may_be_named_from_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert asked("~/answers") == 2
    assert len(list((tmp_path / "answers").iterdir())) == 2
