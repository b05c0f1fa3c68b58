"""Fixtures for the tests: a pool, and helpers.

Each run has a separate directory for its pools below /dev/shm, so that two runs can go on at once.
"""

import os
import shutil
import tempfile

import pytest

HOME = tempfile.mkdtemp(prefix="fbpy-", dir="/dev/shm")
os.environ["FOREBAY_HOME"] = os.path.join(HOME, "home")
for name in ("FOREBAY_POOL", "FOREBAY_METADATA", "FOREBAY_NODE"):
    os.environ.pop(name, None)

import forebay  # noqa: E402 (reads the environment above)


def pytest_unconfigure():
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def session_pool():
    with forebay.run("tests", media="memory:512M", force=True) as pool:
        yield pool


@pytest.fixture
def pool(session_pool):
    """An empty pool."""
    for name in session_pool.listdir("/"):
        path = "/" + name
        if session_pool.stat(path, follow=False).is_dir:
            session_pool.rmtree(path)
        else:
            session_pool.unlink(path)
    return session_pool


@pytest.fixture
def session(pool):
    with pool.session() as session:
        yield session
