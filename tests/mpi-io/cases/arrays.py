"""Arrays in files, from Python: NumPy's memmap, Zarr, safetensors, and PyTorch's DataLoader with forked workers.

Packages come from PyPI as those of suites.py do. PyTorch is large (5 GB unpacked): only with --torch."""
import os
import subprocess

from harness import Lines, case

from .faces import NODES, SUITES, face
from .suites import environment, same_outcomes

TORCH = bool(os.environ.get("FOREBAY_TEST_TORCH"))
NUMPY, ZARR, SAFETENSORS, TORCH_VERSION = "2.4.6", "3.1.6", "0.8.0", "2.15.0"


def packages(t):
    names = ["numpy==" + NUMPY, "zarr==" + ZARR, "safetensors==" + SAFETENSORS, "pytest==9.2.0", "hypothesis==6.170.15"]
    return environment(t, "zarr-%s-safetensors-%s" % (ZARR, SAFETENSORS), names)


def on_all_nodes(t, f, python, script, *arguments):
    """Runs the script on all nodes at once: argv is the arguments, then the node's number. Waits until each
    has printed a line, then lets all go on."""
    running = []
    for node in range(NODES):
        p = t.start(f.on(node, python, "-c", script, *arguments, str(node)), env={**f.env, "PYTHONDONTWRITEBYTECODE": "1"},
                    stdin=subprocess.PIPE)
        running.append((p, Lines(p)))
    for _, lines in running:
        lines.wait_for(1, 100)
    for p, _ in running:
        p.stdin.write(b"go\n")
        p.stdin.flush()
    said = []
    for p, lines in running:
        p.wait(100)
        said += lines.all()[1:]
        t.ok(p.returncode == 0, p.stderr.read().decode())
    return said


ZARR_SCRIPT = r"""
import multiprocessing, numpy, sys, zarr
top, node = sys.argv[1], int(sys.argv[2])
NODES, ROWS, COLUMNS = 3, 60, 500

def values(rows):
    return numpy.add.outer(numpy.arange(rows.start, rows.stop) * 1000, numpy.arange(COLUMNS)).astype("f8")

def write(part):
    # Chunks of 5 rows: each belongs to one process of one node.
    rows = slice(part * 5, part * 5 + 5)
    for name in ("plain", "sharded", "v2"):
        zarr.open_group(top + "/group.zarr", mode="r+")[name][rows] = values(rows)

if node == 0:
    g = zarr.open_group(top + "/group.zarr", mode="w")
    g.create_array("plain", shape=(ROWS, COLUMNS), chunks=(5, 100), dtype="f8")
    g.create_array("sharded", shape=(ROWS, COLUMNS), chunks=(1, 100), shards=(5, 500), dtype="f8")
    zarr.create_array(top + "/group.zarr/v2", shape=(ROWS, COLUMNS), chunks=(5, 500), dtype="f8", zarr_format=3, attributes={"unit": "K"})
print("there", flush=True)
sys.stdin.readline()
with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.map(write, range(node, ROWS // 5, NODES))
print("written", flush=True)
"""

ZARR_CHECK = r"""
import glob, numpy, sys, zarr
g = zarr.open_group(sys.argv[1] + "/group.zarr", mode="r")
want = numpy.add.outer(numpy.arange(60) * 1000, numpy.arange(500)).astype("f8")
for name in ("plain", "sharded", "v2"):
    numpy.testing.assert_array_equal(g[name][:], want)
    numpy.testing.assert_array_equal(g[name][7:50:3, ::7], want[7:50:3, ::7])
assert g["v2"].attrs["unit"] == "K" and sorted(g.array_keys()) == ["plain", "sharded", "v2"]
print("there", flush=True); sys.stdin.readline(); print(len(glob.glob(sys.argv[1] + "/**", recursive=True)), "entries")
"""


def zarr(t):
    python = packages(t) + "/venv/bin/python"
    f = face(t)
    for striped in (False, True):
        directory = f.directory("striped" if striped else "local", striped)
        on_all_nodes(t, f, python, ZARR_SCRIPT, directory)
        said = on_all_nodes(t, f, python, ZARR_CHECK, directory)
        t.ok(len(said) == NODES and len(set(said)) == 1, repr(said))
    print("3 nodes, 6 processes: chunked and sharded arrays, %s" % said[0])
    f.down()


MEMMAP = r"""
import mmap, multiprocessing, numpy, os, sys
top, node = sys.argv[1], int(sys.argv[2])
N = 200_000
own = top + "/own%d.npy" % node
a = numpy.lib.format.open_memmap(own, mode="w+", dtype="f8", shape=(N,))
a[:] = numpy.arange(N) * (node + 1)

def add(part):
    # A forked worker, through the inherited mapping, and through its own.
    a[part::8] += 0.5
    b = numpy.load(own, mmap_mode="r+")
    b[part::8] += 0.25
    b.flush()

with multiprocessing.get_context("fork").Pool(4) as pool:
    pool.map(add, range(8), chunksize=1)
a.flush()
numpy.testing.assert_array_equal(numpy.load(own), numpy.arange(N) * (node + 1) + 0.75)
c = numpy.memmap(own, mode="c", dtype="f8", offset=128, shape=(N,))
c[:] = 0
assert numpy.load(own)[3] == 3 * (node + 1) + 0.75
print("written", flush=True)
sys.stdin.readline()
# The writes of the other ranks, mapped for reading, on another node.
for other in range(3):
    b = numpy.load(top + "/own%d.npy" % other, mmap_mode="r")
    numpy.testing.assert_array_equal(b, numpy.arange(N) * (other + 1) + 0.75)
    numpy.testing.assert_array_equal(b[5:N:1001], numpy.fromfile(top + "/own%d.npy" % other, "f8", offset=128)[5:N:1001])
print("the same", flush=True)
"""


def memmap(t):
    python = packages(t) + "/venv/bin/python"
    f = face(t)
    said = on_all_nodes(t, f, python, MEMMAP, f.directory("memmap"))
    t.ok(said == ["the same"] * NODES, repr(said))
    print("3 nodes, each with 4 forked workers in its mapping; read by all")
    f.down()


TENSORS = r"""
import numpy, sys
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
top, node = sys.argv[1], int(sys.argv[2])
rng = numpy.random.default_rng(node)
made = {"layer.%d" % k: rng.standard_normal((257, 64 + k)).astype("f4") for k in range(20)}
save_file(made, top + "/model-%d.safetensors" % node, metadata={"node": str(node)})
print("written", flush=True)
sys.stdin.readline()
for other in range(3):
    path = top + "/model-%d.safetensors" % other
    rng = numpy.random.default_rng(other)
    want = {"layer.%d" % k: rng.standard_normal((257, 64 + k)).astype("f4") for k in range(20)}
    got = load_file(path)
    # safe_open maps the file.
    with safe_open(path, framework="numpy") as f:
        assert f.metadata() == {"node": str(other)} and sorted(f.keys()) == sorted(want)
        for name, value in want.items():
            numpy.testing.assert_array_equal(got[name], value)
            numpy.testing.assert_array_equal(f.get_tensor(name), value)
            numpy.testing.assert_array_equal(f.get_slice(name)[10:20, 3:9], value[10:20, 3:9])
print("the same", flush=True)
"""


def safetensors(t):
    python = packages(t) + "/venv/bin/python"
    f = face(t)
    for striped in (False, True):
        said = on_all_nodes(t, f, python, TENSORS, f.directory("striped" if striped else "local", striped))
        t.ok(said == ["the same"] * NODES, repr(said))
    print("3 nodes: each wrote a file, all read all, by mapping and by reading")
    f.down()


LOADER = r"""
import json, numpy, os, sys, torch
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
top, node = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
SAMPLES = 600
if node == 0:
    os.makedirs(top + "/samples")
    numpy.save(top + "/all.npy", numpy.arange(SAMPLES * 64, dtype="f4").reshape(SAMPLES, 64))
    for i in range(SAMPLES):
        torch.save({"x": torch.full((64,), float(i)), "y": i}, top + "/samples/%d.pt" % i)
    save_file({"w": torch.arange(64.0)}, top + "/w.safetensors")
print("written", flush=True)
sys.stdin.readline()

class Files(Dataset):
    def __len__(self):
        return SAMPLES
    def __getitem__(self, i):
        s = torch.load(top + "/samples/%d.pt" % i, weights_only=True)
        return s["x"], s["y"]

class Mapped(Dataset):
    # Opened before the workers are forked: they share the mapping.
    def __init__(self):
        self.all = numpy.load(top + "/all.npy", mmap_mode="r")
    def __len__(self):
        return SAMPLES
    def __getitem__(self, i):
        return torch.from_numpy(numpy.array(self.all[i])), i

class Lines(IterableDataset):
    def __iter__(self):
        w = get_worker_info()
        with open(top + "/log-%d-%d" % (node, w.id), "a") as log:
            for i in range(w.id, SAMPLES, w.num_workers):
                log.write("%d\n" % i)
                yield i

w = load_file(top + "/w.safetensors")["w"]
assert torch.equal(w, torch.arange(64.0))
for sharing in ("file_descriptor", "file_system"):
    torch.multiprocessing.set_sharing_strategy(sharing)
    for data in (Files(), Mapped()):
        seen = []
        loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=3, persistent_workers=True, multiprocessing_context="fork")
        for epoch in range(2):
            for x, y in loader:
                want = y[:, None].expand(-1, 64).float() if isinstance(data, Files) else y[:, None] * 64.0 + torch.arange(64.0)
                assert torch.equal(x, want), (x, y)
                seen += y.tolist()
        assert sorted(seen) == sorted(list(range(SAMPLES)) * 2)
        del loader
got = sorted(int(i) for b in DataLoader(Lines(), batch_size=8, num_workers=3) for i in b)
assert got == list(range(SAMPLES))
assert sum(len(open(top + "/log-%d-%d" % (node, k)).readlines()) for k in range(3)) == SAMPLES
# A checkpoint, and one that is mapped when it is loaded; a tensor whose memory is the file.
model = torch.nn.Linear(64, 8)
torch.save(model.state_dict(), top + "/checkpoint-%d.pt" % node)
again = torch.load(top + "/checkpoint-%d.pt" % node, mmap=True, weights_only=True)
assert all(torch.equal(again[k], v) for k, v in model.state_dict().items())
t = torch.from_file(top + "/raw-%d" % node, shared=True, size=10000, dtype=torch.float32)
t[:] = float(node)
assert (numpy.fromfile(top + "/raw-%d" % node, "f4") == node).all()
print("all seen", flush=True)
"""


def torch(t):
    top = environment(t, "torch-" + TORCH_VERSION, ["torch==" + TORCH_VERSION, "numpy==" + NUMPY, "safetensors==" + SAFETENSORS])
    f = face(t)
    said = on_all_nodes(t, f, top + "/venv/bin/python", LOADER, f.directory("torch"))
    t.ok(said == ["all seen"] * NODES, repr(said))
    print("3 nodes, each with 3 forked workers: files, a mapped array, an iterable; both ways of sharing; checkpoints")
    f.down()


if SUITES:
    case(400)(zarr)
    case(150)(memmap)
    case(150)(safetensors)

    @case(400)
    def numpy(t):
        same_outcomes(t, packages(t), "numpy._core.tests.test_memmap", 15)

if TORCH:
    case(600)(torch)
