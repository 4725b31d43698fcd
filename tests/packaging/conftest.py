"""Built and installed once for this folder: both take a while."""

import pytest

from tests.packaging.built import Built, build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist, and the wheel that is made from it."""
    return build(tmp_path_factory.mktemp("built"))
