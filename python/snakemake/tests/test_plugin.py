"""The plug-in: the suite of Snakemake's interface, and whole workflows."""

import os
import subprocess
import sys
import textwrap

import pytest
from snakemake_interface_storage_plugins.tests import TestStorageBase

import forebay
from snakemake_storage_plugin_forebay import StorageProvider, StorageProviderSettings


class TestForebay(TestStorageBase):
    __test__ = True
    files_only = False
    touch = True

    @pytest.fixture(autouse=True)
    def running(self, pool):
        """With an empty pool."""

    def get_query(self, tmp_path):
        return "forebay://tests/some/test.txt"

    def get_query_not_existing(self, tmp_path):
        return "forebay://tests/absent.txt"

    def get_storage_provider_cls(self):
        return StorageProvider

    def get_storage_provider_settings(self):
        return StorageProviderSettings()


@pytest.mark.parametrize("query, valid", [
    ("forebay://tests/a/{sample}.txt", True), ("forebay:///a", True), ("/a/b", True),
    ("forebay://tests", False), ("forebay://tests/", False), ("a/b", False), ("forebay://tests/../x", False),
])
def test_queries(query, valid):
    result = StorageProvider.is_valid_query(query)
    assert bool(result) == valid and (valid or result.reason)


WORKFLOW = textwrap.dedent("""
    SAMPLES = ["s%d" % i for i in range(20)]

    rule all:
        input: storage.forebay("forebay://tests/result.txt")

    rule sort:
        input: storage.forebay("forebay://tests/in/{s}.txt")
        output: storage.forebay("forebay://tests/sorted/{s}.txt")
        shell: "sort {input} > {output}"

    rule join:
        input: storage.forebay(expand("forebay://tests/sorted/{s}.txt", s=SAMPLES))
        output: storage.forebay("forebay://tests/result.txt")
        shell: "cat {input} > {output}"
""")


@pytest.mark.parametrize("inside", [False, True], ids=["copied", "in the pool"])
def test_a_workflow(pool, tmp_path, inside):
    from forebay._command import program

    (tmp_path / "Snakefile").write_text(WORKFLOW)
    pool.mkdir("/in")
    for i in range(20):
        pool.write("/in/s%d.txt" % i, b"b%d\na%d\n" % (i, i))
    snakemake = [sys.executable, "-m", "snakemake", "--cores", "2", "--nolock"]
    if inside:
        snakemake = [program(), "exec", "--pool", "tests", "--", *snakemake,
                     "--local-storage-prefix", "/fb/.snakemake"]
    environment = {**os.environ, "FOREBAY_POOL": "tests", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(snakemake, cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=110)
    assert done.returncode == 0, done.stdout
    assert pool.read("/result.txt") == b"".join(b"a%d\nb%d\n" % (i, i) for i in range(20))
    assert pool.listdir("/sorted") == sorted("s%d.txt" % i for i in range(20))
    # Again: nothing is to be done.
    done = subprocess.run([*snakemake, "--dry-run"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=110)
    assert done.returncode == 0 and "rule sort" not in done.stdout, done.stdout
