# `make` alone says what there is.
.PHONY: help build wheel docs install dist dist-test test soak nodes suites networks powercuts models simulate simulate-planted races demo demo-gain map site bench lint clean

help:
	@echo 'make build  build everything, optimised (target/release)'
	@echo 'make wheel  the Python package: target/wheels/forebay-*.whl, with the command and its libraries'
	@echo 'make docs   the reference of the Python package: target/docs/index.html (after make wheel)'
	@echo 'make install PREFIX=/opt/forebay   install what was built, with man pages, completions, pkg-config and CMake files'
	@echo 'make dist   a release for glibc 2.28 and later: target/dist has a tarball, .deb, .rpm, SBOM, SHA256SUMS (6 minutes)'
	@echo 'make dist-test  install what make dist has made on bare systems, run a demo there, remove it (root; 5 minutes)'
	@echo 'make test   install what the tests need, build, lint, and run all tests (ONLY=pools: one step; tests/run.py --list: all steps)'
	@echo 'make soak   200,000 births and deaths of processes on one node and on four; nothing is left (some hours)'
	@echo 'make nodes  the long forms of the tests over several nodes (an hour)'
	@echo 'make suites ONLY=benchmarks   fio, dbench, stress-ng, sysbench, and what is installed of elbencho, DLIO, IOR, mdtest, IO500, BT-IO: beside tmpfs, by preload, mount and four nodes (2 minutes; fetches nothing)'
	@echo 'make suites the same, and MPI-IO, HDF5, arrays of Python and OpenFOAM through both faces, with suites of others: mpi4py, h5py, netCDF4 (25 minutes; downloads them)'
	@echo 'make networks   cases of origins on NFS and sshfs, served on this host (root; see tests/pools/networks.py)'
	@echo 'make powercuts  60 losses of power of pools with an origin on ext4 (root, loop devices)'
	@echo 'make models run the model checker on what has no locks (part of make test)'
	@echo 'make simulate SECONDS=3600   run new seeds of the simulator for so long; SEEDS=1..100: these seeds (part of make test)'
	@echo 'make simulate-planted       plant faults in the code, and see that the simulator finds them'
	@echo 'make races run the tests of the store under ThreadSanitizer (needs the nightly toolchain with rust-src)'
	@echo 'make demo   a genome pipeline in a pool, compared with the plain file system'
	@echo 'make demo-gain  a small job on an emulated slow directory: there, in copies on tmpfs, in pools (1 minute; FUSE)'
	@echo 'make map    write docs/map.md: what each folder is for, from the heads of the files'
	@echo 'make site   the documentation as a web site: target/site/index.html (CI builds it; links are checked)'
	@echo 'make bench  build and run the measurements (ONLY=nodes: those of several nodes; ONLY=kernels: use cases with their controls; ONLY=rules: programs with their rules; ONLY=instructions: instructions of each operation; ONLY=tracing: what tracepoints cost; ONLY=interference: a job beside a neighbour on a slow origin; ONLY=origins: what an origin costs and spares, beside copies by hand and caches; ONLY=etcd; ONLY=create,stat,...)'
	@echo 'make lint   formatting and clippy'
	@echo 'make clean  remove what was built'

# With the Python module, which `make wheel` packs: built together, both share all other crates.
build:
	cargo build --release --workspace --lib --bins

wheel: build
	python/build-wheel

docs:
	python3 tests/python/run.py --no-build --docs

install:
	packaging/install $(PREFIX)

dist:
	packaging/dist

# The oldest and the newest glibc that are to be had, and this machine's.
dist-test:
	python3 tests/dist/run.py --release target/dist $(addprefix --suite ,$(or $(SUITES),bullseye bookworm trixie))

lint:
	cargo fmt --all --check
	cargo clippy --profile checks --workspace --all-targets -- -D warnings
	cargo clippy --profile checks -p forebay-verbs -p forebay-cli --all-targets --no-default-features -- -D warnings

# tests/run.py has the steps, what runs beside what, and each step's time limit.
test:
	python3 tests/run.py $(addprefix --only ,$(ONLY))

soak:
	cargo build --profile soak --workspace --lib --bins
	python3 tests/soak/run.py --forebay target/soak/forebay --processes 200000

nodes:
	cargo build --release
	python3 tests/programs/run.py --nodes 4 --limit 3000
	FOREBAY_CHECK_SECONDS=300 FOREBAY_KILLS=500 python3 tests/nodes/run.py -j 1
	python3 tests/conformance/run.py -j 1 --origin
	python3 tests/programs/run.py -j 2 --origin off
	FOREBAY_CHECK_SECONDS=300 python3 tests/pools/run.py -j 1 --only origin-of-a-pool-whose-processes-are-killed
	$(MAKE) simulate SECONDS=1200
	$(MAKE) simulate-planted

suites:
	cargo build --release
	python3 tests/suites/run.py
	$(if $(filter benchmarks,$(ONLY)),,python3 tests/mpi-io/run.py -j 1 --suites --long)
	$(if $(filter benchmarks,$(ONLY)),,python3 tests/mpi-io/run.py -j 1 --suites --long --face fuse)

networks:
	cargo build --release
	python3 tests/pools/networks.py nfs
	python3 tests/pools/networks.py sshfs

powercuts:
	cargo build --release
	python3 tests/pools/powercut_origin.py 60

models:
	RUSTFLAGS='--cfg loom' cargo test --profile checks --target-dir target/loom \
	    -p forebay-media -p forebay-store --lib loom_models::

SIMULATE = target/simulate/forebay-simulate

simulate: $(SIMULATE)
	$(SIMULATE) $(if $(SEEDS),--seeds $(SEEDS) --again 4,--seconds $(or $(SECONDS),600)) $(if $(MOST),--most-seconds $(MOST))

simulate-planted: $(SIMULATE)
	$(SIMULATE) --planted

# Alone: with its features, clocks and waiting of all crates go through libc, and faults can be planted.
.PHONY: $(SIMULATE)
$(SIMULATE):
	cargo build --profile simulate -p forebay-simulator --features simulate

races:
	TSAN_OPTIONS=detect_deadlocks=0 CARGO_PROFILE_RELEASE_PANIC=unwind RUSTFLAGS='-Zsanitizer=thread' \
	cargo +nightly test -Zbuild-std --target x86_64-unknown-linux-gnu --release \
	    --target-dir target/tsan -p forebay-runtime -p forebay-media -p forebay-store --lib

demo:
	examples/bowtie2/demo.sh

demo-gain: build
	python3 examples/gain/run.py

# docs/map.md: what each folder is for.
map:
	python3 packaging/site/map.py

# Pages, man pages and the reference of the C interface.
site:
	python3 packaging/site/build.py

# Parts of their own: the use-case kernels, the rules of programs, instructions, and metadata in etcd
# (make bench ONLY=kernels, rules, instructions, tracing, interference, origins, etcd)
bench: build
	$(if $(filter kernels rules instructions tracing interference origins etcd,$(ONLY)),,target/release/forebay-bench $(if $(ONLY),--only $(ONLY)))
	$(if $(filter kernels,$(or $(ONLY),kernels)),cargo build --release -p forebay-verbs --example kernel-stream)
	$(if $(filter kernels,$(or $(ONLY),kernels)),python3 examples/kernels/run.py)
	$(if $(filter rules,$(or $(ONLY),rules)),python3 examples/rules/run.py $(RULES))
	$(if $(filter instructions,$(or $(ONLY),instructions)),python3 tools/bench/instructions/run.py $(if $(AGAINST),--against $(AGAINST)))
	$(if $(filter tracing,$(or $(ONLY),tracing)),python3 tools/bench/tracing/run.py)
	$(if $(filter interference,$(or $(ONLY),interference)),python3 examples/interference/run.py)
	$(if $(filter origins,$(or $(ONLY),origins)),python3 examples/origins/run.py)
	$(if $(filter etcd,$(or $(ONLY),etcd)),cargo bench -p forebay-verbs --bench etcd)

clean:
	cargo clean
