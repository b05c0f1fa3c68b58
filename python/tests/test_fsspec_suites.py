"""fsspec's own abstract suites, on a pool."""

import pytest
from fsspec.implementations.local import LocalFileSystem, make_path_posix
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)


class ForebayFixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self, pool):
        return pool.filesystem()

    @pytest.fixture
    def fs_path(self):
        return "/suite"

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def local_fs(self):
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def local_path(self, tmpdir):
        return make_path_posix(str(tmpdir))

    @pytest.fixture
    def local_join(self):
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def supports_empty_directories(self):
        return True


class TestCopy(AbstractCopyTests, ForebayFixtures):
    pass


class TestGet(AbstractGetTests, ForebayFixtures):
    pass


class TestPut(AbstractPutTests, ForebayFixtures):
    pass


class TestOpen(AbstractOpenTests, ForebayFixtures):
    pass


class TestPipe(AbstractPipeTests, ForebayFixtures):
    pass
