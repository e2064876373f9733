# `make demo` needs Rust and a C compiler, on a clean clone; `make test` a C++ compiler and Python 3.9+ with pip as well.

PYTHON ?= python3
CARGO ?= cargo

EFFORT ?= quick

TARGET = $(or $(CARGO_TARGET_DIR),target)

.PHONY: help setup demo test python-test ray-test vllm-check vllm-check-quick adapter-cost learn-check dist wheels device-binaries device-check lint bench clean

help:
	@echo "make setup        fetch libtorch (CPU) and NVRTC into third_party/, about 0.6 GB, once; for tests, and training by PPO"
	@echo "make demo         kvtide tune on generated traffic, quickly: from traffic to a table and a verdict, without libtorch;"
	@echo "                  TRACE=file.csv to bring your own, EFFORT=normal or thorough for an answer to rely on"
	@echo "make test         all tests; CARGO_TEST_FLAGS=--no-fail-fast to go on after a failure"
	@echo "make python-test  the Python wheel, built and tested (Python 3.11 or newer; no libtorch)"
	@echo "make ray-test     on a Ray cluster of two that the tests start, workers killed (fetches about 3 GB, once; not part of the tests)"
	@echo "make vllm-check   every shipped table on vLLM's own scheduler (fetches about 3 GB, once; not part of the tests)"
	@echo "make vllm-check-quick  the same of less, in five minutes; make adapter-cost: what kvtide costs that scheduler"
	@echo "make learn-check  the agent on problems with known answers, in full; LEARN_SEEDS=6..15 for other seeds"
	@echo "make dist         a folder with the tool, libtorch and the tables that runs wherever it is copied: target/dist/kvtide"
	@echo "make wheels       Python wheels for Linux on x86-64 and aarch64 (fetches zig, 90 MB, once): target/wheels"
	@echo "make device-check everything about this machine's GPU: kernels, blocks, speeds, a profile; skipped without one"
	@echo "make device-binaries  what device-check needs on a machine without Rust, into target/device-binaries"
	@echo "make lint         formatting, clippy and documentation, warnings are errors"
	@echo "make bench        all benchmarks"
	@echo "make clean        remove target/ (third_party/ and runs/ stay)"

# Not a file target: the script knows what is in place, and says so in a tenth of a second.
setup:
	@$(PYTHON) scripts/setup.py

# Needs no libtorch. 1 is an answer: not worth deploying.
demo:
	$(CARGO) build --profile demo --locked -p kvtide
	"$(TARGET)/demo/kvtide" tune $(if $(TRACE),"$(TRACE)") --effort $(EFFORT) $(DEMO_ARGS) || [ $$? -eq 1 ]

test: setup
	$(PYTHON) -B scripts/test_setup.py
	$(CARGO) test --workspace --features kvtide/perf-db --locked $(CARGO_TEST_FLAGS)
	PYTHON="$(PYTHON)" PYTHON_TEST_LIBRARY="$(TARGET)/debug/deps/lib_kvtide.so" scripts/python-test.sh

# Needs neither libtorch nor network, but for pip.
python-test:
	PYTHON="$(PYTHON)" scripts/python-test.sh

# Needs no libtorch: Ray's PPO brings a torch of its own.
ray-test:
	PYTHON="$(PYTHON)" CARGO="$(CARGO)" scripts/ray-test.sh

# Needs no libtorch.
vllm-check vllm-check-quick:
	PYTHON="$(PYTHON)" scripts/vllm-check.sh --needs
	$(CARGO) build --release --locked -p kvtide
	PYTHON="$(PYTHON)" scripts/vllm-check.sh $(if $(findstring quick,$@),--quick)

# Needs no libtorch.
adapter-cost:
	PYTHON="$(PYTHON)" scripts/vllm-check.sh --cost

# One ignored test, which prints a table; its short forms are in `make test`.
learn-check: setup
	LEARN_SEEDS="$(LEARN_SEEDS)" $(CARGO) test --release --locked -p kvtide-torch --test all learn_check -- --ignored --nocapture

# A folder that runs wherever it is copied.
dist: setup
	$(CARGO) build --release --locked
	scripts/dist.sh "$(TARGET)/release" "$(TARGET)/dist/kvtide"

# Needs no libtorch; of aarch64 its Rust target.
wheels:
	PYTHON="$(PYTHON)" scripts/wheels.sh "$(TARGET)/wheels"

# Programs that run on a machine with a GPU and nothing else: see scripts/device-check.sh. Neither links libtorch.
device-binaries:
	$(CARGO) build --release --locked -p kvtide-cuda --bin kvtide-device
	$(CARGO) test --release --locked --no-run -p kvtide-cuda --test gpu --message-format=json > "$(TARGET)/gpu-tests.json"
	mkdir -p target/device-binaries
	install -s "$(TARGET)/release/kvtide-device" target/device-binaries/kvtide-device
	install -s "$$(sed -n 's/.*"executable":"\([^"]*\/deps\/gpu-[^"\/]*\)".*/\1/p' "$(TARGET)/gpu-tests.json")" target/device-binaries/gpu-tests
	git rev-parse HEAD > target/device-binaries/commit

device-check: device-binaries
	scripts/device-check.sh target/device-report

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy -p kvtide --all-targets --features perf-db --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --workspace --locked

bench: setup
	$(CARGO) bench --workspace --locked

clean:
	$(CARGO) clean
