# The two commands of the README, and the parts they are made of. CMake users: see CMakePresets.json.
SHELL := /bin/bash
JOBS ?= $(shell nproc)

.PHONY: help demo test build core sanitize threads fuzz format clean

help:
	@echo 'make demo      set up, build, train on real documents, show the result'
	@echo 'make test      set up, build, run all CPU tests'
	@echo 'make build     the program alone: build/release/longspan'
	@echo 'make core      the torch-free core and its tests (no .venv needed)'
	@echo 'make sanitize  core tests under AddressSanitizer + UBSan (installs clang-16), and make threads'
	@echo 'make threads   core tests that have threads under ThreadSanitizer'
	@echo 'make fuzz      parsers under libFuzzer, one minute each (installs clang-16)'
	@echo 'make format    clang-format all sources'

demo:
	scripts/setup.sh demo
	$(MAKE) --no-print-directory build
	scripts/demo.sh

build:
	cmake --preset release
	cmake --build --preset release --target longspan -j $(JOBS)

test:
	scripts/setup.sh test
	cmake --preset release
	cmake --build --preset release -j $(JOBS)
	ctest --test-dir build/release --output-on-failure -j $(JOBS)

core:
	cmake --preset core
	cmake --build --preset core -j $(JOBS)
	ctest --test-dir build/core --output-on-failure -j $(JOBS)

sanitize: threads
	scripts/setup.sh fuzz
	cmake --preset asan && cmake --build --preset asan -j $(JOBS) && ctest --test-dir build/asan -LE fuzz --output-on-failure -j $(JOBS)

threads:
	cmake --preset tsan && cmake --build --preset tsan -j $(JOBS) && ctest --test-dir build/tsan -L threads --output-on-failure -j $(JOBS)

fuzz:
	scripts/setup.sh fuzz
	cmake --preset asan && cmake --build --preset fuzz -j $(JOBS) && ctest --test-dir build/asan -L fuzz --output-on-failure -j $(JOBS)

format:
	git ls-files '*.h' '*.cpp' | xargs clang-format -i

clean:
	rm -rf build
