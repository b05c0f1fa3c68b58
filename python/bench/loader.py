#!/usr/bin/env python3
"""PyTorch's DataLoader over many small files: a pool beside tmpfs, shards and a slow directory.

    python python/bench/loader.py [--files 4000] [--workers 4,8] [--nodes 1,4] [--epochs 5]

The files are like ImageNet's: sizes are lognormal with a mean of 109 KiB. Each epoch reads each of
them once, in random order; a worker joins the bytes of a batch into one tensor and passes it on.
Needs the wheel, torch, numpy; with webdataset also shards.

Sources: `tmpfs` is files below /dev/shm by open().read(); `pool` is forebay.data.Files, `view` the
same with copy=False, `kept` with files kept open and each worker's samples its own (data.Batches); `shards` are tar files of 256 samples on tmpfs, `pool shards` in the pool, by
webdataset (in order); `slow` is tmpfs with a delay before each open (simulated: a sleep). With
several nodes (daemons on this host) each has written a share of the files, which are declared
immutable: the first epoch copies the files of other nodes, the later ones are warm.

Sources take turns, epoch by epoch, so that a busy machine affects all alike. Prints the median of
the warm epochs, and the processor time of workers and trainer, which a busy machine affects less.
"""
import argparse
import io
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings

import forebay
from forebay import data

SHARD = 256  # Samples.
MEAN = 109 << 10  # Bytes.
SIGMA = 0.5  # Of the logarithm of a size.

WRITER = """
import sys
sys.path.insert(0, %r)
import loader, forebay
pool = forebay.Pool("loader")
node, nodes, files = map(int, sys.argv[1:])
for i in range(node, files, nodes):
    pool.write("/set/%%05d" %% i, loader.content(i))
""" % os.path.dirname(os.path.abspath(__file__))


def content(i):
    rng = random.Random(i)
    return rng.randbytes(max(1, int(rng.lognormvariate(math.log(MEAN) - SIGMA**2 / 2, SIGMA))))


class Directory:
    """A data set over a directory, as users write it."""

    def __init__(self, path, delay=0.0):
        self.paths = sorted(os.path.join(path, name) for name in os.listdir(path))
        self.delay = delay

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        if self.delay:
            time.sleep(self.delay)
        with open(self.paths[i], "rb") as f:
            return data.tensor(f.read())


def join(samples):
    import torch

    sizes = [len(sample) for sample in samples]
    # As torch's own collate function does in a worker: directly into shared memory that is passed
    # on.
    joined = samples[0].new(torch.UntypedStorage._new_shared(sum(sizes))).resize_(sum(sizes))
    torch.cat(samples, out=joined)
    return joined, torch.tensor(sizes)


def one_thread(_worker=None):
    import torch

    torch.set_num_threads(1)
    data.register_webdataset()


def from_tar(sample):
    return data.tensor(sample["bin"])


def cpu_of(pid):
    """Returns the processor time that a process has used. Seconds."""
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Source:
    """A DataLoader with persistent workers, and the times of its epochs."""

    def __init__(self, samples, options, shards=False, kept=False):
        from torch.utils.data import DataLoader

        self.wall, self.cpu = [], []
        common = {"num_workers": options.now, "worker_init_fn": one_thread, "persistent_workers": True,
                  "multiprocessing_context": "fork"}
        if shards:
            samples = samples.map(from_tar).batched(options.batch, collation_fn=join, partial=True)
            self.loader = DataLoader(samples, batch_size=None, **common)
        elif kept:
            batches = data.Batches(len(samples), options.batch, options.now)
            self.loader = DataLoader(samples, batch_sampler=batches, collate_fn=join, **common)
        else:
            self.loader = DataLoader(samples, batch_size=options.batch, shuffle=True, collate_fn=join, **common)

    def epoch(self, files):
        workers = [w.pid for w in getattr(self.loader._iterator, "_workers", [])]
        before = time.process_time() + sum(map(cpu_of, workers))
        began, steps, seen = time.perf_counter(), 0, 0
        for joined, sizes in self.loader:
            steps += 1
            seen += len(sizes)
            assert int(sizes.sum()) == len(joined)
        self.wall.append(time.perf_counter() - began)
        workers = [w.pid for w in self.loader._iterator._workers]
        self.cpu.append(time.process_time() + sum(map(cpu_of, workers)) - before)
        assert seen == files, (seen, files)
        self.steps = steps


def compare(title, sources, base, options):
    for name, source in sources.items():
        source.epoch(options.files)  # The first: workers start, files are copied.
    first = {name: source.wall[0] for name, source in sources.items()}
    order = list(sources)
    for _ in range(options.epochs):
        random.shuffle(order)
        for name in order:
            sources[name].epoch(options.files)
    print("\n%s, %d workers" % (title, options.now))
    print("%-14s %9s %9s %10s %11s %9s %9s" % (
        "", "ms/step", "files/s", "of " + base, "us CPU/file", "of " + base, "first s"))
    medians = {name: statistics.median(source.wall[1:]) for name, source in sources.items()}
    cpus = {name: statistics.median(source.cpu[1:]) for name, source in sources.items()}
    for name, source in sources.items():
        print("%-14s %9.2f %9.0f %10.2f %11.1f %9.2f %9.2f" % (
            name, medians[name] / source.steps * 1e3, options.files / medians[name], medians[base] / medians[name],
            cpus[name] / options.files * 1e6, cpus[base] / cpus[name], first[name]), flush=True)
    return medians, cpus


def fill(pool, nodes, files):
    pool.mkdir("/set")
    pool.declare("/set", "mutability=immutable")
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(node), str(nodes), str(files)],
                                env={**os.environ, "FOREBAY_NODE": str(node)}) for node in range(nodes)]
    assert all(w.wait() == 0 for w in writers)


def pack(files, put):
    for first in range(0, files, SHARD):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for i in range(first, min(first + SHARD, files)):
                info = tarfile.TarInfo("%05d.bin" % i)
                info.size = len(content(i))
                tar.addfile(info, io.BytesIO(content(i)))
        put("%03d.tar" % (first // SHARD), packed.getvalue())


def main():
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=4000)
    parser.add_argument("--workers", type=numbers, default=[4, 8])
    parser.add_argument("--nodes", type=numbers, default=[1, 4])
    parser.add_argument("--epochs", type=int, default=5, help="warm epochs of each source")
    parser.add_argument("--batch", type=int, default=64, help="files per step")
    parser.add_argument("--delay", type=float, default=2.0, help="of the slow directory, ms per file")
    parser.add_argument("--no-slow", action="store_true")
    options = parser.parse_args()
    # More workers than cores are intended.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    try:
        import webdataset
    except ImportError:
        webdataset = None
    one_thread() if webdataset else None
    top = tempfile.mkdtemp(prefix="loader-", dir="/dev/shm")
    media = "memory:%dM" % (options.files * MEAN * 3 // (1 << 20) + 256)
    try:
        os.makedirs(top + "/set")
        for i in range(options.files):
            with open("%s/set/%05d" % (top, i), "wb") as f:
                f.write(content(i))
        for nodes in options.nodes:
            with forebay.run("loader", nodes=nodes, media=media, force=True) as pool:
                fill(pool, nodes, options.files)
                shards = webdataset is not None and nodes == 1
                if shards:
                    os.makedirs(top + "/shards", exist_ok=True)
                    pool.mkdir("/shards")
                    pack(options.files, lambda name, b: pool.write("/shards/" + name, b))
                    for name in pool.listdir("/shards"):
                        with open("%s/shards/%s" % (top, name), "wb") as f:
                            f.write(pool.read("/shards/" + name))
                for options.now in options.workers:
                    sources = {
                        "tmpfs": Source(Directory(top + "/set"), options),
                        "pool": Source(data.Files(pool, "/set", form="tensor"), options),
                        "view": Source(data.Files(pool, "/set", form="tensor", copy=False), options),
                        "kept": Source(data.Files(pool, "/set", form="tensor", keep_open=options.files), options, kept=True),
                    }
                    if shards:
                        urls = sorted(os.path.join(top, "shards", name) for name in os.listdir(top + "/shards"))
                        inside = ["forebay://loader/shards/" + name for name in pool.listdir("/shards")]
                        for name, of in [("shards", urls), ("pool shards", inside)]:
                            read = webdataset.WebDataset(of, shardshuffle=False)
                            sources[name] = Source(read, options, shards=True)
                    if not options.no_slow:
                        sources["slow"] = Source(Directory(top + "/set", options.delay / 1e3), options)
                    compare("%d node%s" % (nodes, "s" * (nodes > 1)), sources, "tmpfs", options)
                    del sources
    finally:
        shutil.rmtree(top)


if __name__ == "__main__":
    main()
