"""Pools of several nodes."""

import errno
import os
import signal
import subprocess
import sys
import time

import numpy
import pytest

import forebay


@pytest.fixture(scope="module")
def nodes():
    with forebay.run("nodes", nodes=3, media="memory:64M", force=True) as pool:
        yield pool


def on_node(node, code):
    """Runs a program on a node of the pool."""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=60, env={**os.environ, "FOREBAY_NODE": str(node)})
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_files_and_collections_of_other_nodes(nodes):
    for node in range(3):
        on_node(node, """if 1:
            import forebay, os
            pool = forebay.Pool("nodes"); node = os.environ["FOREBAY_NODE"]
            pool.makedirs("/d", exist_ok=True)
            pool.write("/d/" + node, node.encode() * 100000)
            workspace = pool.session().workspace("w")
            with workspace.create("f." + node, meta={"node": node}) as field:
                field.write(bytes(100000))
        """)
    assert nodes.listdir("/d") == ["0", "1", "2"]
    for node in range(3):
        assert nodes.read("/d/%d" % node) == b"%d" % node * 100000
    workspace = nodes.session().load("w")
    assert sorted(r.name for r in workspace.search("node >= 1")) == ["f.1", "f.2"]
    assert [r.name for r in workspace] and all(workspace.open(r.name).size == 100000 for r in workspace)
    fs = nodes.filesystem()
    assert fs.du("/d") == 300000


def test_memory_of_another_node_cannot_be_mapped(nodes):
    on_node(2, "import forebay; forebay.Pool('nodes').write('/there', bytes(1 << 20))")
    on_node(0, """if 1:
        import errno, forebay
        pool = forebay.Pool("nodes")
        try:
            pool.map("/there")
        except OSError as e:
            assert e.errno == errno.EREMOTE, e
        else:
            raise SystemExit("it was mapped")
        pool.write("/here", bytes(1 << 20)); assert len(pool.map("/here")) == 1 << 20
    """)


def test_a_node_that_is_gone(nodes):
    """Operations on a lost node fail with an error in bounded time; the other nodes work."""
    with forebay.run("dying", nodes=2, media="memory:32M", force=True,
                     options=["--request-timeout", "2"]) as pool:
        subprocess.run([sys.executable, "-c", "import forebay; forebay.Pool('dying').write('/there', bytes(100000))"],
                       check=True, timeout=60, env={**os.environ, "FOREBAY_NODE": "1"})
        nodes_of = pool.status()
        daemon = [n for n in nodes_of["nodes"] if n["node"] == 1][0]
        os.kill(daemon["keeper"], signal.SIGSTOP)
        try:
            with pytest.raises(OSError) as e:
                pool.read("/there")
            assert e.value.errno == errno.EHOSTDOWN
            made = 0
            for i in range(16):
                try:
                    pool.write("/here-%d" % i, numpy.ones(10))
                    made += 1
                except OSError as failed:
                    # Only names whose entry would be on the lost node fail.
                    assert failed.errno == errno.EHOSTDOWN
            assert made > 0
        finally:
            os.kill(daemon["keeper"], signal.SIGCONT)
        # The node gets requests again when it is back.
        end = time.monotonic() + 30
        while True:
            try:
                assert len(pool.read("/there")) == 100000
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.1)
