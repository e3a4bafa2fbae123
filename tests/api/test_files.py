"""A file is the old one or the new one, and a failed write leaves nothing beside it."""

import pytest
from support.crashing import full_disk

from tf_lamb.api import files

pytestmark = pytest.mark.once


def test_it_takes_the_place_of_the_old_one(tmp_path):
    path = tmp_path / "file"
    for text in ("old", "new"):
        with files.atomic_write(str(path)) as file:
            file.write(text)
        assert path.read_text() == text
    assert [*tmp_path.iterdir()] == [path]


def test_a_full_disk_leaves_the_old_one_alone(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with full_disk(), pytest.raises(OSError, match="large"), files.atomic_write(str(path)) as file:
        file.write("new" * 4096)
    assert [*tmp_path.iterdir()] == [path] and path.read_text() == "old"
