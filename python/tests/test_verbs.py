"""Sessions, workspaces, collections and batches."""

import asyncio
import errno
import threading
import time
import uuid

import numpy
import pytest

import forebay


def test_collections_have_bytes_metadata_and_controls(session):
    campaign = session.create("campaign", {"project": "mcse"})
    field = campaign.create("pressure.3", meta={"step": "3"}, controls=forebay.Controls(temporality="once"))
    values = numpy.linspace(0, 1, 5000)
    assert field.write(values) == len(field) == field.size == 40000
    assert numpy.frombuffer(field.read()).tolist() == values.tolist()
    assert field.read(8, 8) == values[1].tobytes()
    assert field.append(b"tail") == 40000
    into = numpy.zeros(5000)
    assert field.readinto(into) == 40000 and into.tolist() == values.tolist()
    field.truncate(16)
    field.sync()
    field.set_meta({"step": None}, owner="me")
    assert (field.meta, field.size) == ({"owner": "me"}, 16)
    record = campaign.lookup("pressure.3")
    assert record.controls == "temporality=once"
    assert campaign.open(uuid.UUID(record.uuid)).uuid == field.uuid
    other = campaign.create("copy")
    assert field.copy(other) == 16
    assert other.read() == field.read()
    assert sorted(r.name for r in campaign) == ["copy", "pressure.3"]
    assert "copy" in campaign and "absent" not in campaign
    assert session.workspace("campaign").uuid == campaign.uuid
    assert [r.name for r in session.search('project = "mcse"')] == ["campaign"]
    with pytest.raises(OSError) as e:
        campaign.remove()
    assert e.value.errno == errno.ENOTEMPTY
    for name in ["copy", "pressure.3"]:
        campaign.delete(name)
    campaign.remove()


def test_search_by_metadata(session):
    campaign = session.create("campaign")
    for step in range(20):
        campaign.create("f-%d" % step, meta={"step": str(step), "kind": "odd" if step % 2 else "even"}).close()
    assert len(campaign.search("step >= 10 and step < 15")) == 5
    assert sorted(r.name for r in campaign.search('kind = "odd" and step > 16')) == ["f-17", "f-19"]
    with pytest.raises(ValueError, match="column"):
        campaign.search("step >=")


def test_views_of_a_closed_collection(session):
    campaign = session.create("campaign")
    field = campaign.create("f")
    field.write(numpy.arange(1000.0))
    chunk = field.map(0, 800, writable=True)
    view = numpy.frombuffer(chunk)
    field.close()
    field.close()
    assert field.closed and "closed" in repr(field)
    for use in [field.read, lambda: field.size, lambda: field.meta, field.map, lambda: field.append(b"")]:
        with pytest.raises(OSError) as e:
            use()
        assert e.value.errno == errno.EBADF
    view[0] = 5
    assert numpy.frombuffer(campaign.open("f").read(8))[0] == 5
    with pytest.raises(BufferError):
        session.close()
    assert session.closed
    assert view[0] == 5
    del view
    chunk.close()


def test_memory_of_the_pool_goes_by_token(session):
    buffer = session.buffer(1 << 20)
    numpy.frombuffer(buffer, "u1")[:] = 9
    other = forebay.Session("pool:tests")
    same = other.attach_chunk(buffer.token())
    assert len(same) == 1 << 20 and numpy.frombuffer(same, "u1").min() == 9
    for wrong in [b"", b"x" * 48, b"x" * 47]:
        with pytest.raises((OSError, ValueError)):
            other.attach_chunk(wrong)


def test_a_batch_runs_in_the_background(session):
    campaign = session.create("campaign")
    batch = session.batch()
    made, field = batch.create(campaign, "f", meta={"step": "1"})
    written = batch.write(field, numpy.ones(100))
    read = batch.read(field, 16)
    batch.after(read, written)
    appended = batch.append(field, b"xyz")
    batch.after(appended, written)
    assert len(batch) == 4
    running = batch.start()
    assert running.wait(10) and running.test()
    running.check()
    assert running.result(made) is None and running.status(made) == "done"
    assert running.result(read) == numpy.ones(2).tobytes()
    assert running.result(appended) == 800
    assert field.size == 803
    with pytest.raises(ValueError, match="started"):
        batch.write(field, b"x")
    with pytest.raises(OSError, match="no operation 99"):
        running.result(99)
    with session.batch() as again:
        again.write(field, b"abc")
    assert field.read(3) == b"abc"


def test_a_failing_batch(session):
    campaign = session.create("campaign")
    batch = session.batch("rollback", "chain")
    _, field = batch.create(campaign, "f")
    batch.write(field, b"x")
    wrong = batch.delete(campaign, "absent")
    running = batch.start()
    assert running.wait(10)
    with pytest.raises(FileNotFoundError):
        running.check()
    with pytest.raises(FileNotFoundError):
        running.result(wrong)
    assert "f" not in campaign
    with pytest.raises(FileNotFoundError), session.batch() as batch:
        batch.delete(campaign, "absent")
    for wrong in [("sometimes", "free"), ("stop", "backwards")]:
        with pytest.raises(ValueError):
            session.batch(*wrong)


def test_a_session_is_closed_while_a_batch_calls_python(pool):
    """Closing waits for the session's threads without the interpreter's lock, which the call needs."""
    begun = threading.Event()

    def slow():
        begun.set()
        time.sleep(0.3)

    session = pool.session()
    field = session.create("campaign").create("f")
    batch = session.batch()
    for i in range(200):
        batch.write(field, bytes(1 << 20), i << 20)
    running = batch.start()
    assert running._native.when_done(slow)
    assert begun.wait(10)
    del batch, field, running
    session.close()


async def test_coroutines(session):
    campaign = session.create("campaign")
    field = await campaign.acreate("f", meta={"step": "9"})
    await asyncio.gather(*(field.awrite(bytes([i]) * 4096, i * 4096) for i in range(50)))
    assert await field.aread(1, 49 * 4096) == bytes([49])
    assert await field.aappend(b"x") == 50 * 4096
    assert [r.name for r in await campaign.asearch("step = 9")] == ["f"]
    assert (await (await campaign.aopen("f")).aread())[-1:] == b"x"
    await field.async_close()
    await campaign.adelete("f")
    with pytest.raises(FileNotFoundError):
        await campaign.aopen("f")


def test_other_back_ends(tmp_path):
    session = forebay.Session("memory")
    session.attach("scratch", "directory", str(tmp_path))
    assert session.backends()["scratch"] == "directory"
    campaign = session.create("campaign")
    field = campaign.create("f", backend="scratch")
    field.write(b"abc")
    assert (tmp_path / "campaign" / "f").read_bytes() == b"abc"
    with pytest.raises(OSError) as e:
        campaign.create("g", controls="persistence=durable", backend="memory")
    assert "persistence" in str(e.value)
    session.choose("/campaign/raw-*", "temporality=once", "scratch")
    assert campaign.create("raw-1", controls="temporality=once").workspace.lookup("raw-1").backend == "scratch"


def test_wrong_arguments(session):
    campaign = session.create("campaign")
    field = campaign.create("f")
    for use in [
        lambda: campaign.create(5),
        lambda: campaign.open(5),
        lambda: campaign.create("g", meta={"a": 5}),
        lambda: campaign.create("g", controls=5),
        lambda: field.write("text"),
        lambda: field.readinto(b"read only"),
        lambda: field.read("x"),
        lambda: session.batch().write("no collection", b""),
        lambda: field.copy("no collection"),
    ]:
        with pytest.raises((TypeError, BufferError)):
            use()
    for use in [lambda: field.read(-1), lambda: field.write(b"", -1), lambda: field.truncate(1 << 70)]:
        with pytest.raises(OverflowError):
            use()
    for use in [lambda: campaign.create("a/b"), lambda: campaign.create(""), lambda: campaign.create("n" * 256)]:
        with pytest.raises(OSError):
            use()
    with pytest.raises(ValueError):
        campaign.create("g", controls="colour=red")
