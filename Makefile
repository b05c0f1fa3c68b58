# `make` alone says what there is.
.PHONY: help build test demo bench lint clean

help:
	@echo 'make build  build everything, optimised (target/release)'
	@echo 'make test   install what the tests need, build, lint, and run all tests'
	@echo 'make demo   a genome pipeline in a pool, compared with the plain file system'
	@echo 'make bench  build and run the measurements'
	@echo 'make lint   formatting and clippy'
	@echo 'make clean  remove what was built'

build:
	cargo build --release

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

test:
	tests/install-packages
	cargo build --release
	$(MAKE) lint
	cargo test --release --workspace
	python3 tests/programs/run.py
	python3 tests/pools/run.py -j 2
	python3 tests/conformance/run.py

demo:
	examples/bowtie2/demo.sh

bench:
	cargo build --release
	target/release/forebay-bench

clean:
	cargo clean
