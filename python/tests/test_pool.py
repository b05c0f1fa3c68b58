"""Files of a pool by path."""

import ctypes
import errno
import io
import os
import stat

import numpy
import pytest

import forebay


def test_a_file_object_is_as_that_of_open(pool, tmp_path):
    """The same operations on a pool's file and on a host's file give the same results."""

    def use(opener):
        seen = []
        with opener("wb") as f:
            seen += [f.write(b"0123456789" * 1000), f.tell(), f.seek(5), f.write(b"abc")]
        with opener("rb") as f:
            seen += [f.read(12), f.seek(-3, os.SEEK_END), f.read(), f.read(), f.readable(), f.writable()]
        with opener("r+b") as f:
            seen += [f.seek(9990), f.write(b"x" * 20), f.truncate(10005), f.seek(0), len(f.read())]
        with opener("ab") as f:
            seen += [f.write(b"end"), f.tell()]
        with opener("r") as f:
            text = f.read()
            seen += [text[:10], text[-5:], len(text)]
        with opener("w") as f:
            f.write("eins\nzwei\n")
        with opener("r") as f:
            seen.append(list(f))
        with pytest.raises(io.UnsupportedOperation):
            opener("rb").write(b"x")
        with pytest.raises(FileExistsError):
            opener("xb")
        return seen

    def in_pool(mode):
        return pool.open("/file", mode)

    def outside(mode):
        return open(tmp_path / "file", mode)

    assert use(in_pool) == use(outside)


def test_errors_carry_errno_path_and_a_sentence(pool):
    with pytest.raises(FileNotFoundError) as e:
        pool.open("/absent/file")
    assert (e.value.errno, e.value.filename) == (errno.ENOENT, "/absent/file")
    pool.mkdir("/d")
    with pytest.raises(FileExistsError):
        pool.mkdir("/d")
    with pytest.raises(IsADirectoryError):
        pool.read("/d")
    with pytest.raises(IsADirectoryError):
        pool.open("/d")
    pool.write("/d/f", b"")
    with pytest.raises(OSError) as e:
        pool.rmdir("/d")
    assert e.value.errno == errno.ENOTEMPTY
    with pytest.raises(NotADirectoryError):
        pool.list("/d/f")
    with pytest.raises(OSError) as e:
        pool.write("/" + "n" * 300, b"")
    assert e.value.errno == errno.ENAMETOOLONG
    with pytest.raises(FileNotFoundError, match="no pool"):
        forebay.Pool("absent")


def test_names_and_attributes(pool):
    pool.makedirs("/a/b/c")
    pool.makedirs("/a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        pool.makedirs("/a/b/c")
    pool.write("/a/f", b"12345")
    pool.symlink("f", "/a/link")
    pool.link("/a/f", "/a/hard")
    assert pool.readlink("/a/link") == "f"
    assert pool.stat("/a/link").size == 5
    assert pool.stat("/a/link", follow=False).is_symlink
    assert pool.stat("/a/f").nlink == 2
    assert pool.listdir("/a") == ["b", "f", "hard", "link"]
    assert [name for name, _ in pool.scandir("/a")] == pool.listdir("/a")
    assert list(pool.walk("/a"))[0] == ("/a", ["b"], ["f", "hard", "link"])
    pool.chmod("/a/f", 0o640)
    assert stat.S_IMODE(pool.stat("/a/f").mode) == 0o640
    pool.set_times("/a/f", 5, 10**18)
    assert pool.stat("/a/f").mtime_ns == 10**18
    pool.set_xattr("/a/f", "user.step", b"3")
    assert (pool.xattrs("/a/f"), pool.xattr("/a/f", "user.step")) == (["user.step"], b"3")
    pool.remove_xattr("/a/f", "user.step")
    pool.rename("/a/f", "/a/g")
    assert pool.copy("/a/g", "/a/copy") == 5
    assert pool.read("/a/copy") == b"12345"
    assert pool.read("/a/copy", 1, 3) == b"23"
    assert pool.read("/a/copy", 4, 99) == b"5"
    assert pool.read("/a/copy", 99) == b""
    pool.truncate("/a/copy", 2)
    assert pool.read("/a/copy") == b"12"
    pool.rmtree("/a")
    assert not pool.exists("/a") and not pool.exists("/a/b")


def test_any_buffer_is_written(pool):
    array = numpy.arange(1000, dtype="f8").reshape(10, 100)
    for data in [array, memoryview(array), bytearray(array.tobytes()), array.tobytes()]:
        pool.write("/array", data)
        assert pool.read("/array") == array.tobytes()
    for wrong in ["text", None, 5, [1, 2]]:
        with pytest.raises(TypeError):
            pool.write("/array", wrong)
    with pytest.raises((BufferError, ValueError), match="contiguous"):
        pool.write("/array", array.T)


def test_memory_of_a_file(pool):
    pool.write("/array", numpy.arange(100000.0))
    chunk = pool.map("/array")
    view = numpy.frombuffer(chunk)
    assert view.sum() == numpy.arange(100000.0).sum()
    assert not view.flags.writeable and chunk.readonly
    with pytest.raises(BufferError, match="1 views"):
        chunk.close()
    del view
    chunk.close()
    with pytest.raises(OSError) as e:
        memoryview(chunk)
    assert e.value.errno == errno.EBADF
    # Readers see writes to the mapping at once.
    with pool.map("/array", 8, 8, writable=True) as chunk:
        numpy.frombuffer(chunk)[:] = 7
        assert numpy.frombuffer(pool.read("/array", 8, 16))[0] == 7
    with pytest.raises(OSError):
        pool.map("/array", 10**9, 5)


def test_mapped_memory_outlives_what_it_was_opened_by():
    with forebay.run(media="memory:64M", force=True) as pool:
        pool.write("/array", numpy.arange(1000.0))
        view = numpy.frombuffer(pool.map("/array"))
        files = pool.filesystem()
        file = pool.open("/array")
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    # The pool is removed, but the memory of the array stays.
    assert view.sum() == 499500
    for use in [lambda: pool.listdir("/"), lambda: files.ls("/"), lambda: file.read()]:
        with pytest.raises(OSError):
            use()
    assert not [p for p in os.listdir(os.environ["FOREBAY_HOME"]) if p.startswith("run-")]


def test_an_address_kept_without_a_view_stays_mapped(pool):
    """PyTorch's frombuffer keeps the object and the address, but releases the view."""
    pool.write("/array", b"abcdefgh")
    chunk = pool.map("/array")
    array = numpy.frombuffer(chunk, "u1")
    address = array.ctypes.data
    del array
    chunk.close()
    with pytest.raises(OSError):
        memoryview(chunk)
    assert ctypes.string_at(address, 8) == b"abcdefgh"


def test_a_closed_pool_and_a_closed_file(pool):
    other = forebay.Pool(pool.name)
    file = other.open("/f", "wb", buffering=0)
    other.close()
    other.close()
    assert other.closed and "closed" in repr(other)
    with pytest.raises(OSError) as e:
        other.listdir("/")
    assert e.value.errno == errno.EBADF
    assert file.write(b"still open") == 10
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed file"):
        file.write(b"x")
    assert pool.read("/f") == b"still open"


def test_declared_controls(pool):
    pool.mkdir("/logs")
    pool.declare("/logs", forebay.Controls(mutability="append"))
    assert pool.declared("/logs") == "mutability=append"
    with pool.open("/logs/a", "ab", buffering=0) as f:
        f.write(b"one")
    with pytest.raises(OSError) as e, pool.open("/logs/a", "r+b", buffering=0) as f:
        f.write(b"over")
    assert e.value.errno == errno.EPERM
    with pytest.raises(ValueError, match="colour"):
        pool.declare("/logs", "colour=red")
    with pytest.raises(ValueError, match="soft"):
        forebay.Controls(mutability="soft")
    assert str(forebay.Controls.parse(" mutability = append,temporality=once")) == (
        "mutability=append,temporality=once")


def test_staging(pool, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    (source / "f").write_bytes(b"x" * 100000)
    pool.stage_in(source, "/case")
    assert pool.read("/case/f") == b"x" * 100000
    pool.stage_out("/case", tmp_path / "out")
    assert (tmp_path / "out" / "f").read_bytes() == b"x" * 100000
    with pytest.raises(OSError, match="absent"):
        pool.stage_in(tmp_path / "absent", "/case")
