"""Faults: forks, threads, interrupts, the interpreter's end. None may crash or hang the process.

Each case is a separate program with a time limit and faulthandler.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

LIMIT = 60


def program(code, **options):
    """Runs a program and returns (exit code, output)."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT, **options)
    return done.returncode, done.stdout


def passes(code):
    rc, text = program(code)
    assert rc == 0, text
    return text


def test_a_forked_child_opens_its_own(pool):
    passes("""
        import forebay, os, sys
        pool = forebay.Pool("tests"); fs = pool.filesystem(); fs.ls("/")
        session = pool.session(); field = session.create("w").create("f"); field.write(b"abc")
        chunk = field.map(); view = memoryview(chunk)
        file = pool.open("/w/g", "wb"); file.write(b"kept back by the buffer")
        if (pid := os.fork()) == 0:
            for use in [pool.listdir, field.read, lambda: session.create("x"), lambda: memoryview(chunk)]:
                try:
                    use()
                except PermissionError:
                    continue
                os._exit(9)
            assert fs.cat("/w/f") == b"abc", "a file system works after a fork"
            assert forebay.Pool("tests").read("/w/f") == b"abc"
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert field.read() == b"abc" and view[0] == 97
        file.close()
        assert pool.read("/w/g") == b"kept back by the buffer"
    """)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing(pool, method, tmp_path):
    script = tmp_path / "main.py"
    script.write_text(textwrap.dedent("""
        import fsspec, multiprocessing, sys

        def work(arguments):
            fs, i = arguments
            fs.pipe("/out/%d" % i, b"%d" % i)
            with fs.open("/out/%d" % i) as f:
                return f.read()

        if __name__ == "__main__":
            fs = fsspec.filesystem("forebay", pool="tests")
            fs.pipe("/out/first", b"used before")
            with multiprocessing.get_context(sys.argv[1]).Pool(3) as processes:
                assert processes.map(work, [(fs, i) for i in range(30)]) == [b"%d" % i for i in range(30)]
            assert len(fs.ls("/out")) == 31
    """))
    subprocess.run([sys.executable, script, method], check=True, timeout=LIMIT)


def test_threads_use_one_collection(pool):
    passes("""
        import forebay, threading
        session = forebay.Session("pool:tests"); field = session.create("w").create("f")
        def work(i):
            for k in range(300):
                field.write(bytes([i]) * 1000, i * 1000)
                assert field.read(1000, i * 1000) == bytes([i]) * 1000
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        [t.start() for t in threads]; [t.join() for t in threads]
        # Closed under their feet: an OSError, whoever is in the midst of what.
        failed = []
        def until_closed():
            try:
                while True:
                    field.read(8000); field.write(b"x" * 4096)
            except OSError as e:
                failed.append(e.errno)
        threads = [threading.Thread(target=until_closed) for i in range(4)]
        [t.start() for t in threads]; field.close(); [t.join() for t in threads]
        assert failed == [9] * 4, failed
    """)


def test_the_interpreter_ends_with_open_batches(pool):
    passes("""
        import forebay
        session = forebay.Session("pool:tests"); field = session.create("w").create("f")
        batch = session.batch()
        for i in range(200):
            batch.write(field, bytearray(100000), i * 100000)
        running = batch.start()
        left = session.batch(); left.write(field, bytearray(5))
        chunk = field.map(0, field.size or 1) if field.size else None
    """)


def test_ctrl_c_ends_a_wait(tmp_path):
    """The batch waits for a lock on the file that this process holds, so it can't end by itself."""
    code = textwrap.dedent("""
        import fcntl, forebay, sys
        session = forebay.Session("memory")
        session.attach("files", "directory", sys.argv[1])
        field = session.create("w").create("f", backend="files")
        held = open(sys.argv[1] + "/w/f", "rb")
        fcntl.flock(held, fcntl.LOCK_EX)
        batch = session.batch()
        appended = batch.append(field, b"x")
        running = batch.start()
        print("waiting", flush=True)
        try:
            running.wait()
            print("ended", flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        assert not running.wait(0.01)
        held.close()
        assert running.wait(20) and running.result(appended) == 0
    """)
    with subprocess.Popen([sys.executable, "-X", "faulthandler", "-c", code, str(tmp_path)], stdout=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.1)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - began < 5
        assert process.wait(LIMIT) == 0


def test_subinterpreters_are_refused(pool):
    passes("""
        import _xxsubinterpreters as sub
        one = sub.create()
        try:
            sub.run_string(one, "import forebay")
        except Exception as e:
            assert "ubinterpreter" in str(e), e
        else:
            raise SystemExit("it was imported")
        import forebay
        assert forebay.Pool("tests").listdir("/") == []
    """ if sys.version_info < (3, 13) else """
        import _interpreters as sub
        one = sub.create()
        failed = sub.exec(one, "import forebay")
        assert failed is not None and "ubinterpreter" in str(failed.msg), failed
        import forebay
        assert forebay.Pool("tests").listdir("/") == []
    """)


def test_a_pool_that_was_removed(pool):
    passes("""
        import forebay, subprocess
        one = forebay.Pool.start("short", media="memory:64M", force=True)
        session = one.session(); field = session.create("w").create("f"); field.write(b"abc")
        one.stop()
        for use in [one.listdir, field.read, lambda: session.create("x")]:
            try:
                use()
            except OSError:
                continue
            raise SystemExit("used after it was removed")
        try:
            forebay.Pool("short")
        except FileNotFoundError as e:
            print(e)
    """)


def test_a_killed_program_leaves_the_pool_in_order(pool):
    code = textwrap.dedent("""
        import forebay, os
        session = forebay.Session("pool:tests"); field = session.workspace("w").create("f")
        buffers = [session.buffer(1 << 20) for _ in range(20)]
        print("go", flush=True)
        while True:
            field.append(b"x" * 1000)
    """)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "go\n"
        time.sleep(0.2)
        process.kill()
    size = pool.stat("/w/f").size
    assert size > 0 and size % 1000 == 0
    pool.unlink("/w/f")
    end = time.monotonic() + 20
    while pool.capacity()[1] > 4 << 20:
        assert time.monotonic() < end, pool.capacity()
        time.sleep(0.1)


def test_under_forebay_exec(pool):
    """The library for unmodified programs and this package work in one process."""
    from forebay._command import program as command

    code = textwrap.dedent("""
        import forebay, os
        with open("/fb/by-path", "w") as f:
            f.write("one")
        pool = forebay.Pool()
        assert pool.read("/by-path") == b"one"
        pool.write("/by-package", b"two")
        assert open("/fb/by-package").read() == "two"
        assert sorted(os.listdir("/fb")) == pool.listdir("/")
        if (pid := os.fork()) == 0:
            assert open("/fb/by-path").read() == "one" and forebay.Pool().read("/by-path") == b"one"
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    """)
    done = subprocess.run([command(), "exec", "--pool", "tests", "--", sys.executable, "-c", code],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT,
                          env={**os.environ, "FOREBAY_POOL": "tests"})
    assert done.returncode == 0, done.stdout
