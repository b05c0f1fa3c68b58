"""Recipes of docs/howto/python.md: other programs with their temporary files in a pool."""

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

from forebay._command import program

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 110


def in_pool(code, place):
    """Runs a program that sees the tests' pool below /fb."""
    script = place / "main.py"
    script.write_text(textwrap.dedent(code))
    done = subprocess.run([program(), "exec", "--pool", "tests", "--", sys.executable, "-X", "faulthandler", script],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT, cwd=place)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_temporary_directory_of_dask(pool, tmp_path):
    """The files of a shuffle on disk, and those that a worker spills, are in the pool."""
    pytest.importorskip("distributed")
    pool.mkdir("/tmp")
    in_pool("""
        import glob, os
        import dask, dask.array, dask.dataframe, numpy, pandas
        from distributed import Client, LocalCluster

        dask.config.set({"temporary_directory": "/fb/tmp"})

        def main():
            frame = pandas.DataFrame({"k": numpy.arange(20000) % 7, "v": numpy.arange(20000)})
            parts = dask.dataframe.from_pandas(frame, npartitions=8)
            made = []
            def sums(part):
                made.extend(glob.glob("/fb/tmp/*.partd"))
                return part.groupby("k").v.sum()
            with dask.config.set(scheduler="threads"):
                found = parts.shuffle("k", shuffle_method="disk").map_partitions(sums, meta=("v", "i8")).compute()
            assert found.sort_index().equals(frame.groupby("k").v.sum())
            assert made, "the shuffle was not in the pool"
            options = dict(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None)
            with LocalCluster(memory_limit="8GB", **options) as cluster, Client(cluster) as client:
                values = client.persist(dask.array.ones((1000, 1000), chunks=250))
                assert values.sum().compute() == 1e6
                (worker,) = cluster.workers.values()
                assert worker.local_directory.startswith("/fb/tmp/")
                worker.data.evict()
                spilled = [f for f in glob.glob("/fb/tmp/*/*/storage/*") if os.path.isfile(f)]
                assert spilled and values.sum().compute() == 1e6

        if __name__ == "__main__":
            main()
    """, tmp_path)


def test_memory_of_joblib(pool, tmp_path):
    pytest.importorskip("joblib")
    in_pool("""
        import joblib, numpy

        memory = joblib.Memory("/fb/cache", mmap_mode="r", verbose=0)
        calls = []

        @memory.cache
        def squares(n):
            calls.append(n)
            return numpy.arange(n) ** 2

        if __name__ == "__main__":
            first = squares(100000)
            again = squares(100000)
            assert calls == [100000] and (first == again).all()
            # The second one is a mapping of the pool's memory.
            assert isinstance(again, numpy.memmap)
            assert sum(joblib.Parallel(n_jobs=2)(joblib.delayed(len)(squares(n)) for n in (10, 20))) == 30
    """, tmp_path)
    assert [d for d in pool.listdir("/cache/joblib") if d.startswith("__main__")]


@pytest.mark.skipif(shutil.which("nextflow") is None and shutil.which("mvn") is None,
                    reason="neither nextflow nor mvn, which fetches it, is there")
def test_nextflow(pool, tmp_path):
    pytest.importorskip("joblib", reason="once: with the Python that has the libraries")
    inputs = tmp_path / "in"
    inputs.mkdir()
    for i in range(3):
        (inputs / ("s%d.txt" % i)).write_text("b%d\na%d\n" % (i, i))
    environment = {**os.environ, "FOREBAY": program(), "FOREBAY_POOL": "tests"}
    done = subprocess.run([ROOT / "examples/nextflow/run.sh", inputs, tmp_path / "out"], env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "out" / "merged.txt").read_text().split() == ["a0", "a1", "a2", "b0", "b1", "b2"]
    # Tasks ran in the pool, and their inputs were linked.
    assert pool.listdir("/scratch") == []
    work = ["/".join((top, name)) for top, _, others in pool.walk("/work") for name in others]
    assert [f for f in work if f.endswith(".command.sh")] and [f for f in work if f.endswith(".sorted")]
