"""Data loaders: files and collections as numbered samples, in this process and in workers."""

import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import tarfile
import textwrap

import numpy
import pytest

import forebay
from forebay import data

LIMIT = 100


@pytest.fixture
def files(pool):
    """Makes 40 files in two directories. The i-th has i*100 bytes."""
    pool.makedirs("/train/deep")
    for i in range(40):
        pool.write("/train/%s%02d.bin" % ("deep/" if i % 2 else "", i), bytes([i]) * (i * 100))
    pool.write("/train/README", b"not a sample")
    return pool


def contents(samples):
    return sorted(bytes(sample) for sample in samples)


EXPECTED = sorted(bytes([i]) * (i * 100) for i in range(40))


@pytest.mark.parametrize("form, copy", [("bytes", True), ("numpy", True), ("numpy", False)])
def test_files_of_a_directory(files, form, copy):
    samples = data.Files(files, "/train", pattern="*.bin", form=form, copy=copy)
    assert len(samples) == 40 and samples.names == tuple(sorted(samples.names))
    assert contents(samples) == EXPECTED
    assert contents(samples.__getitems__([3, 1])) == sorted([bytes(samples[3]), bytes(samples[1])])
    assert bytes(samples[-1]) == bytes(samples[39])
    with pytest.raises(IndexError, match="sample 40 of 40"):
        samples[40]
    if form == "numpy":
        assert samples[5].dtype == numpy.uint8 and not samples[5].flags.writeable


@pytest.mark.parametrize("form, copy", [("bytes", True), ("numpy", True), ("numpy", False)])
def test_files_that_are_kept_open(files, form, copy):
    samples = data.Files(files, "/train", pattern="*.bin", form=form, copy=copy, keep_open=10)
    for _ in range(2):
        assert contents(samples) == EXPECTED
        assert contents(samples[i] for i in reversed(range(40))) == EXPECTED
        assert len(samples._kept) <= 10
    # Kept files aren't looked up again.
    name = samples.names[0]
    before = bytes(samples[0])
    files.write("/new", b"another")
    files.rename("/new", name)
    assert bytes(samples[0]) == before and bytes(data.Files(files, names=[name])[0]) == b"another"
    if (pid := os.fork()) == 0:
        os._exit(0 if bytes(samples[0]) == b"another" else 1)
    assert os.waitpid(pid, 0)[1] == 0
    with pytest.raises(ValueError, match="keep_open"):
        data.Files(files, "/train", keep_open=-1)


@pytest.mark.parametrize("samples, batch, workers", [(100, 8, 4), (7, 2, 3), (1, 5, 4), (64, 8, 8)])
def test_batches_for_each_worker(samples, batch, workers):
    batches = data.Batches(samples, batch, workers)
    first, second = list(batches), list(batches)
    assert len(first) == len(batches) == len(second)
    for epoch in (first, second):
        assert sorted(sum(epoch, [])) == list(range(samples))
        for turn, indices in enumerate(epoch):
            assert {i % workers for i in indices} == {turn % workers} and len(indices) <= batch
    assert first != second or samples < 20
    batches.set_epoch(0)
    assert list(batches) == first
    with pytest.raises(ValueError, match="at least 1"):
        data.Batches(samples, 0, workers)


def test_the_listing_is_made_once(files, monkeypatch):
    calls = []
    for name in ("list", "scan", "stat"):
        monkeypatch.setattr(forebay.Pool, name, lambda self, *a, _n=name, _f=getattr(forebay.Pool, name): (
            calls.append(_n), _f(self, *a))[1])
    samples = data.Files(files, "/train")
    assert calls == ["list", "list"], "one for each directory"
    list(samples)
    assert len(calls) == 2
    # The listing isn't updated: a later file isn't a sample, and a removed one is an error.
    files.write("/train/later", b"")
    files.unlink("/train/00.bin")
    assert len(samples) == 41
    with pytest.raises(FileNotFoundError):
        samples[samples.names.index("/train/00.bin")]


def test_given_names_and_transform(files):
    samples = data.Files("tests", names=["/train/02.bin", "/train/deep/01.bin"], transform=len)
    assert list(samples) == [200, 100]
    with pytest.raises(FileNotFoundError):
        data.Files(files, "/absent")
    with pytest.raises(NotADirectoryError):
        data.Files(files, "/train/README")
    with pytest.raises(ValueError, match="form 'text'"):
        data.Files(files, "/train", form="text")
    with pytest.raises(ValueError, match="always a copy"):
        data.Files(files, "/train", copy=False)


def test_collections_by_a_predicate(pool):
    with pool.session() as session:
        workspace = session.create("set")
        for i in range(10):
            with workspace.create("s%d" % i, meta={"split": "train" if i % 3 else "test", "label": str(i)}) as c:
                c.write(bytes([i]) * 1000)
    for options in [{}, {"form": "numpy", "copy": False}]:
        samples = data.Collections("pool:tests", "set", 'split = "train"', **options)
        assert samples.names == ("s1", "s2", "s4", "s5", "s7", "s8")
        assert [bytes(sample)[0] for sample in samples] == [int(meta["label"]) for meta in samples.meta]
    with pytest.raises(FileNotFoundError):
        data.Collections("pool:tests", "absent")


def read_all(samples):
    return contents(samples)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(files, method):
    samples = data.Files(files, "/train", pattern="*.bin")
    samples[0]
    with multiprocessing.get_context(method).Pool(2) as workers:
        assert workers.map(read_all, [samples, samples]) == [EXPECTED] * 2
    assert contents(pickle.loads(pickle.dumps(samples))) == EXPECTED


def test_a_view_outlives_its_samples_and_the_pool():
    with forebay.run(media="memory:64M") as pool:
        pool.write("/a", bytes(range(256)) * 1000)
        shown = data.Files(pool, "/", form="numpy", copy=False)[0]
    assert shown[-1] == 255 and shown.sum() == 255 * 128 * 1000


def test_nodes(tmp_path):
    """Samples of all nodes; samples on another node are copies."""
    with forebay.run("loader", nodes=2, media="memory:64M", force=True) as pool:
        pool.mkdir("/d")
        for node in ("0", "1"):
            code = "import forebay; forebay.Pool('loader').write('/d/%s', b'%s' * 5000)" % (node, node)
            subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env={**os.environ, "FOREBAY_NODE": node})
        for copy in (True, False):
            samples = data.Files(pool, "/d", form="numpy", copy=copy)
            assert [bytes(sample) for sample in samples] == [b"0" * 5000, b"1" * 5000]


def shards(pool):
    """Makes two shards of five samples each."""
    pool.makedirs("/shards", exist_ok=True)
    for shard in range(2):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for i in range(5):
                content = b"%d" % (shard * 5 + i)
                for suffix in ("txt", "cls"):
                    info = tarfile.TarInfo("%d%d.%s" % (shard, i, suffix))
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        pool.write("/shards/%d.tar" % shard, packed.getvalue())


def test_webdataset(pool):
    webdataset = pytest.importorskip("webdataset")
    shards(pool)
    data.register_webdataset()
    read = webdataset.WebDataset("forebay://tests/shards/{0..1}.tar", shardshuffle=False).decode()
    assert [sample["txt"] for sample in read] == [str(i) for i in range(10)]
    with data.gopen("forebay://tests/out.tar", "wb") as f, webdataset.TarWriter(f) as out:
        out.write({"__key__": "a", "txt": "one"})
    assert tarfile.open(fileobj=io.BytesIO(pool.read("/out.tar"))).getnames() == ["a.txt"]
    for wrong, mode in [("http://tests/a", "rb"), ("forebay://tests", "rb"), ("forebay://tests/a", "ab")]:
        with pytest.raises(ValueError):
            data.gopen(wrong, mode)
    with pytest.raises(FileNotFoundError):
        data.gopen("forebay://tests/absent.tar")


# ---- PyTorch ----

WITH_TORCH = """
    import sys, torch
    import forebay
    from forebay import data
    torch.set_num_threads(1)
"""


def with_torch(code):
    """Runs code in a separate program: PyTorch is large, and its threads don't survive forks."""
    pytest.importorskip("torch", reason="PyTorch isn't installed: tests/python/run.py --torch")
    code = textwrap.dedent(WITH_TORCH) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-W", "error", "-c", code], text=True, timeout=LIMIT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout


def test_tensors_without_a_copy(files):
    with_torch("""
        pool = forebay.Pool("tests")
        for copy in (True, False):
            for sample in data.Files(pool, "/train", pattern="*.bin", form="tensor", copy=copy):
                assert sample.dtype == torch.uint8 and (len(sample) == 0 or len(sample) == int(sample[0]) * 100)
        # The memory is the pool's: what is stored there is seen.
        pool.write("/x", bytes(8192))
        shown = data.Files(pool, names=["/x"], form="tensor", copy=False)[0]
        with pool.open("/x", "r+b") as f:
            f.write(b"7")
        assert shown[0] == ord("7")
        # It is kept while the tensor lives.
        chunk = pool.map("/x")
        shown = data.tensor(chunk)
        part = shown[4096:]
        del shown
        try:
            chunk.close()
        except BufferError:
            pass
        else:
            raise SystemExit("closed under a tensor")
        assert part.sum() == 0
        del part
        chunk.close()
        pinned = data.tensor(b"abc", pin=True)
        assert pinned.is_pinned() == torch.cuda.is_available()
    """)


def test_a_tensor_outlives_the_pool():
    with_torch("""
        with forebay.run(media="memory:64M") as pool:
            pool.write("/a", bytes(range(256)) * 100)
            shown = data.Files(pool, "/", form="tensor", copy=False)[0]
        assert shown[255] == 255 and len(shown) == 25600
    """)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("copy", [True, False], ids=["copy", "view"])
def test_the_data_loader(files, tmp_path, method, copy):
    pytest.importorskip("torch", reason="PyTorch isn't installed: tests/python/run.py --torch")
    script = tmp_path / "main.py"
    script.write_text(textwrap.dedent("""
        import sys, torch
        from torch.utils.data import DataLoader
        from forebay import data

        if __name__ == "__main__":
            samples = data.Files("tests", "/train", pattern="*.bin", form="tensor", copy=%r)
            loader = DataLoader(samples, batch_size=8, shuffle=True, num_workers=2, collate_fn=list,
                                multiprocessing_context=%r, persistent_workers=True,
                                pin_memory=torch.cuda.is_available())
            samples[0]
            for epoch in range(2):
                seen = sorted(bytes(sample.numpy()) for batch in loader for sample in batch)
                assert seen == sorted(bytes([i]) * (i * 100) for i in range(40))
    """ % (copy, method)))
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_webdataset_in_workers(pool, tmp_path, method):
    pytest.importorskip("torch", reason="PyTorch isn't installed: tests/python/run.py --torch")
    pytest.importorskip("webdataset")
    shards(pool)
    script = tmp_path / "main.py"
    script.write_text(textwrap.dedent("""
        import webdataset
        from torch.utils.data import DataLoader
        from forebay import data

        if __name__ == "__main__":
            read = webdataset.WebDataset("forebay://tests/shards/{0..1}.tar", shardshuffle=False).decode()
            loader = DataLoader(read, batch_size=None, num_workers=2, multiprocessing_context=%r,
                                worker_init_fn=data.register_webdataset)
            assert sorted(int(sample["txt"]) for sample in loader) == list(range(10))
    """ % method))
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout
