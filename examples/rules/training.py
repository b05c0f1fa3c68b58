#!/usr/bin/env python3
"""Training with a loader that reads samples at random, as PyTorch's DataLoader does, without PyTorch: the program of training.toml
that run.py measures.

    training.py make    the data: small files, as of pictures, and shards with many samples each
    training.py use     as rank RANK of RANKS: epochs over all samples, each in an order of its own; metrics; rank 0 writes checkpoints
    training.py digest  what all results are, in one line

AT is the directory, SCALE how much there is.
"""
import hashlib
import json
import os
import random
import sys
import zlib

AT, SCALE = os.environ["AT"], int(os.environ["SCALE"])
RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ["RANKS"])
FILES, FILE = 100 * SCALE, 40_000
SHARDS, SHARD, SAMPLE = 4, SCALE << 20, 32_768
EPOCHS, CHECKPOINT = 6, 2 << 20
RUN = os.path.join(AT, "runs/1")


def make():
    for directory in ("data/files", "data/shards", "runs/1/checkpoints"):
        os.makedirs(os.path.join(AT, directory))
    bytes_of = random.Random(1).randbytes
    for n in range(FILES):
        with open("%s/data/files/%d.bin" % (AT, n), "wb") as f:
            f.write(bytes_of(FILE))
    for n in range(SHARDS):
        with open("%s/data/shards/%d.tar" % (AT, n), "wb") as f:
            for _ in range(SHARD >> 20):
                f.write(bytes_of(1 << 20))


def use():
    shards = [os.open("%s/data/shards/%d.tar" % (AT, n), os.O_RDONLY) for n in range(SHARDS)]
    samples = [(None, n) for n in range(FILES)]
    samples += [(shard, at) for shard in range(SHARDS) for at in range(0, SHARD, SAMPLE)]
    metrics = open("%s/metrics-%d.jsonl" % (RUN, RANK), "a", buffering=1)
    for epoch in range(EPOCHS):
        order = list(samples)
        random.Random(epoch).shuffle(order)
        total = 0
        for step, (shard, n) in enumerate(order[RANK::RANKS]):
            if shard is None:
                with open("%s/data/files/%d.bin" % (AT, n), "rb") as f:
                    total ^= zlib.adler32(f.read())
            else:
                total ^= zlib.adler32(os.pread(shards[shard], SAMPLE, n))
            if step % 20 == 0:
                metrics.write(json.dumps({"epoch": epoch, "step": step, "sum": total}) + "\n")
        if RANK == 0:
            with open("%s/checkpoints/%d.pt" % (RUN, epoch), "wb") as f:
                for n in range(CHECKPOINT >> 16):
                    f.write(bytes([n & 255]) * (1 << 16))
                f.flush()
                os.fsync(f.fileno())
    metrics.close()


def digest():
    sums = hashlib.sha256()
    for at, directories, names in os.walk(RUN):
        directories.sort()
        for name in sorted(names):
            with open(os.path.join(at, name), "rb") as f:
                sums.update(name.encode() + f.read())
    print(sums.hexdigest())


{"make": make, "use": use, "digest": digest}[sys.argv[1]]()
