"""The data of the smallest BERT, written once."""

import pytest


@pytest.fixture(scope="session")
def records(tmp_path_factory):
    from support import garden

    return garden.write_records(tmp_path_factory.mktemp("data"))
