# The one entry point for people and CI. `make run` and `make test` set everything up by themselves.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
RUN := .run
PYTEST := $(BIN)/pytest

# Files of tests run side by side, two a core as most of them wait, those that take long first; `make TEST_WORKERS=0 test` runs them one by one.
TEST_WORKERS ?= $(shell echo $$((2 * $$(nproc))))
PYTEST_ALL := $(PYTEST) -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder
KERNELS := $(foreach d,engine/_fast engine/_fast/*,$(wildcard $(d)/*.pyx $(d)/*.pxd $(d)/*.h))

C_FILES := $(wildcard engine/_fast/*.h engine/_fast/*/*.h engine/testing/*.c fuzz/*.c bench/*.c tests/chaos/*.c)

# A Python that is new enough, or nothing; `make PYTHON=/path/to/python3.12 test` overrides it.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)

PYTHONS ?= $(shell for p in python3.11 python3.12 python3.13 python3.14; do "$$p" -c 'import venv' 2>/dev/null && echo "$$p"; done)
OLDEST_PYTHON ?= python3.11
LOCKED := $(BIN)/pip install -q --require-hashes --no-deps
TAG := import sys; print("cp%d%d" % sys.version_info[:2])

# What `make test` uses where it may install it; tests that miss a part skip and say so.
TEST_PACKAGES := containerd runc containernetworking-plugins busybox-static iproute2 iptables user-mode-linux systemd dbus cppcheck chromium prometheus \
  docker-registry xfsprogs
FUZZ_PACKAGES := clang libclang-rt-14-dev
ARM64_PACKAGES := gcc-aarch64-linux-gnu qemu-user-static
BUILD_PACKAGES := gcc libc6-dev python3-dev python3-venv
CAN_APT := $(shell test "$$(id -u)" = 0 && test -f /etc/debian_version && command -v apt-get >/dev/null && echo yes)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
# Hundreds of processes of the tests load the package: compiled once, whatever the caller's shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-fast lint types style collected bench fuzz chaos protos docs system-packages build lock dist try-dist dist-pythons dist-arm64 try-arm64 dist-musl try-musl deb krew try-deb try-vm try-uml try-jupyterhub clean

help:
	@echo 'make run              build, then run the node agent on examples/manifests, live; Ctrl-C cleans up'
	@echo 'make test             build, install system packages (root on Debian), lint, run every test'
	@echo 'make test-fast        the same without packages, lint and slow tests'
	@echo 'make test-PACKAGE     the tests of one package: make test-cgroups, make test-node/volumes'
	@echo 'make lint             ruff, mypy, cython-lint, clang-format, cppcheck'
	@echo 'make bench            every kernel beside its plain twin; results in .benchmarks/'
	@echo 'make fuzz             every reader of outside bytes, guided by coverage; FUZZ_SECONDS=60 for each'
	@echo 'make chaos            kill agents at CHAOS_POINTS=1000 points; change manifests 115,000 times; damage kept files 36,000 times; let 100 pods run out of memory and fill 100 disks; probe 2,500 containers at saturated processors; open and drop 10,000 connections of each kind; set the clock, take memory and disk away, flap the API server, kill containerd; fail every file operation, call and request'
	@echo 'make lock             pin what is installed again: requirements/*.txt from pyproject.toml'
	@echo 'make protos           generate engine/wire from protos/'
	@echo 'make docs             the documents as a site in build/site'
	@echo 'make dist             sdist and wheel in dist/; make try-dist installs the wheel where nothing else is, and tries it'
	@echo 'make dist-pythons     wheels for further Pythons beside them, which make try-dist tries, too'
	@echo 'make dist-arm64       a wheel for arm64 beside them; make try-arm64 tries it under qemu'
	@echo 'make dist-musl        wheels for musl beside them; make MUSL_PYTHON=/path/to/python3.11 try-musl tries one'
	@echo 'make deb              the Debian packages in dist/: a node, and the planner; make try-deb upgrades it under systemd'
	@echo 'make krew             the kubectl plugin and its krew manifest in dist/; KREW_URL=https://… is where it will be served'
	@echo 'make try-vm           the agent in Debian machines under QEMU: systemd as process 1, cgroup v2; VM_PARTS=reboot for one part'
	@echo 'make try-uml          the tests of cgroups, eviction and node under systemd and cgroup v2, in User-Mode Linux'
	@echo 'make try-jupyterhub   the spawner of examples/ in a real JupyterHub, with servers in containers of a real containerd'
	@echo 'make system-packages  what the tests need of Debian'
	@echo 'make clean            remove everything that make made'

run: $(VENV)/.node $(VENV)/.kernels
	@echo 'starting three pods'
	@$(BIN)/kubengine run --manifests examples/manifests --root-dir $(RUN) --pod-logs-dir $(RUN)/logs \
	  --cgroup-root /kubengine-example --live --clean-up

test: system-packages build
	@$(MAKE) --no-print-directory -j2 --output-sync=target types style collected
	$(PYTEST_ALL)

test-fast: build
	$(PYTEST_ALL) -m "not slow"

lint: build
	@$(MAKE) --no-print-directory -j2 --output-sync=target types style

# One package's tests: `make test-cgroups`, `make test-node/volumes`.
test-%: build
	$(PYTEST_ALL) tests/$*

types: build
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini tests bench

style: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint engine/_fast
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	@if command -v cppcheck >/dev/null; then cppcheck -q -j2 --error-exitcode=1 --enable=warning,portability \
	  --suppress=invalidPointerCast --suppress=uninitMemberVar '-DKB_NAME(x)=x' --language=c \
	  -I engine/_fast/probing $(C_FILES); else echo 'cppcheck is not installed: C is only held to its form'; fi

# Loads and so compiles every test once, where each worker would by itself.
collected: build
	@found=$$($(PYTEST) --collect-only -q) || { echo "$$found"; exit 1; }

bench: build
	$(PYTEST) bench/bench_*.py -p no:cacheprovider --benchmark-autosave --benchmark-group-by=group

FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 0
fuzz: build
	@if [ -n "$(CAN_APT)" ]; then $(call apt-install,$(FUZZ_PACKAGES)); fi
	@$(BIN)/pip install -q 'atheris>=3' || echo 'no atheris for this Python: readers are fuzzed without coverage' >&2
	$(BIN)/python fuzz/run.py --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

CHAOS_POINTS ?= 1000
MANIFEST_OPERATIONS ?= 115000
KEPT_DAMAGES ?= 36000
MEMORY_HOGS ?= 100
DISK_PRESSURES ?= 100
SATURATED_PROBES ?= 2500
CONNECTIONS ?= 10000
CLOCK_JUMPS ?= 100
FLAPPING_SECONDS ?= 600
STORM_EVENTS ?= 600000
CONTAINERD_KILLS ?= 200
MEMORY_SQUEEZES ?= 100
READ_ONLY_TURNS ?= 50
chaos: build
	KUBENGINE_CRASH_POINTS=$(CHAOS_POINTS) KUBENGINE_RESTARTS=$(CHAOS_POINTS) KUBENGINE_CLAIM_KILLS=$(CHAOS_POINTS) KUBENGINE_EVERY_FAULT=1 \
	KUBENGINE_MANIFEST_OPERATIONS=$(MANIFEST_OPERATIONS) KUBENGINE_KEPT_DAMAGES=$(KEPT_DAMAGES) \
	KUBENGINE_MEMORY_HOGS=$(MEMORY_HOGS) KUBENGINE_DISK_PRESSURES=$(DISK_PRESSURES) \
	KUBENGINE_SATURATED_PROBES=$(SATURATED_PROBES) KUBENGINE_CONNECTIONS=$(CONNECTIONS) \
	KUBENGINE_CLOCK_JUMPS=$(CLOCK_JUMPS) KUBENGINE_FLAPPING_SECONDS=$(FLAPPING_SECONDS) KUBENGINE_STORM_EVENTS=$(STORM_EVENTS) \
	KUBENGINE_CONTAINERD_KILLS=$(CONTAINERD_KILLS) KUBENGINE_MEMORY_SQUEEZES=$(MEMORY_SQUEEZES) KUBENGINE_READ_ONLY_TURNS=$(READ_ONLY_TURNS) \
	  $(PYTEST) --timeout 0 --capture=sys tests/node/sources/test_manifest_operations.py tests/node/test_fault_walk.py \
	  tests/node/test_member_fault_walk.py tests/node/test_call_walk.py tests/node/test_request_walk.py tests/devices/test_crash_campaign.py tests/dra/test_kill_campaign.py \
	  tests/devices/test_runtime_crash_campaign.py tests/node/test_restarts_with_devices.py \
	  tests/project/test_kept_files.py tests/host/test_records.py tests/eviction/test_memory_hogs.py \
	  tests/eviction/test_disk_pressures.py tests/probes/test_soak.py tests/system/test_connection_churn.py tests/chaos

protos: build
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=. --pyi_out=. --grpc_python_out=. \
	  protos/engine/wire/*.proto

docs: build
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

system-packages:
	@if [ -n "$(CAN_APT)" ]; then $(call apt-install,$(TEST_PACKAGES)); \
	else echo 'not root on Debian: tests that need $(TEST_PACKAGES) may skip'; fi

build: $(VENV)/.installed $(VENV)/.kernels

# Resolves pyproject.toml again and writes requirements/*.txt; in an environment of its own.
lock:
	@$(OLDEST_PYTHON) -m venv build/lock && build/lock/bin/pip install -q 'pip-tools>=7.5'
	build/lock/bin/python package/lock.py

dist: build
	rm -f dist/*.whl dist/*.tar.gz dist/*.cdx.json
	$(BIN)/python -m build --no-isolation
	$(BIN)/python package/manylinux.py dist/*.whl
	$(BIN)/python package/sbom.py dist/*.whl
	$(BIN)/python package/pytest_kubengine.py dist

dist-arm64: dist
	@if [ -n "$(CAN_APT)" ]; then $(call apt-install,$(ARM64_PACKAGES)); fi
	$(BIN)/python package/arm64.py dist/*.tar.gz dist
	$(BIN)/python package/manylinux.py dist/*-linux_aarch64.whl

# A wheel for each further Python that is there; `make PYTHONS=/path/to/python3.13 dist-pythons` names some.
dist-pythons: dist
	@for python in $(PYTHONS); do \
	  tag=$$($$python -c '$(TAG)'); ls dist/*-$$tag-manylinux_*_$$(uname -m).whl >/dev/null 2>&1 && continue; \
	  echo "building for $$tag"; rm -rf build/$$tag; \
	  { $$python -m venv build/$$tag && build/$$tag/bin/pip wheel -q --no-deps -w dist dist/*.tar.gz \
	    && $(BIN)/python package/manylinux.py dist/*-$$tag-linux_*.whl; } || exit 1; done

# Wheels for musl, for x86-64 and arm64; they are tried with a Python that is linked with musl, which Debian lacks:
# MUSL_PYTHON=/path/to/python3.11.
dist-musl: dist
	@$(LOCKED) -r requirements/musl.txt
	$(BIN)/python package/musl.py dist/*.tar.gz dist
	$(BIN)/python package/sbom.py dist/*-musllinux_*.whl

try-musl:
	MUSL_PYTHON="$(MUSL_PYTHON)" $(BIN)/python package/try_wheel.py dist/*.tar.gz dist/*-musllinux_*_$$(uname -m).whl

try-arm64:
	$(BIN)/python package/try_wheel.py dist/*.tar.gz dist/*-manylinux_*_aarch64.whl

try-dist:
	$(BIN)/python package/try_wheel.py dist/*.tar.gz dist/*-manylinux_*_$$(uname -m).whl

deb: dist
	$(BIN)/python package/deb.py dist/*-$$($(BIN)/python -c '$(TAG)')-manylinux_*_$$(uname -m).whl dist
	$(BIN)/python package/sbom.py dist/*.deb

# In Debian machines under QEMU; VM_PARTS="reboot or slices" runs some parts, which pytest's -k chooses.
VM_PARTS ?= test
VM_PACKAGES := debootstrap e2fsprogs qemu-utils qemu-system-x86
try-vm: build
	@if [ -n "$(CAN_APT)" ]; then $(call apt-install,$(VM_PACKAGES)); fi
	KUBENGINE_VM=$(CURDIR)/build/vm $(PYTEST) --timeout 0 -v -s -k "$(VM_PARTS)" tests/system/vm

# The same on cgroup v2 in minutes, without what needs a machine; UML_SUITES="cgroups or eviction" runs some.
UML_SUITES ?= test
try-uml: build
	KUBENGINE_UML=1 $(PYTEST) --timeout 0 -v -s -k "$(UML_SUITES)" tests/system/test_own_tests_in_uml.py

# Once it is installed, `make test` runs this test, too. The proxy is a program for Node.js.
try-jupyterhub: build
	@$(LOCKED) -r requirements/jupyterhub.txt
	@if [ -n "$(CAN_APT)" ] && ! command -v npm >/dev/null; then $(call apt-install,nodejs npm); fi
	@if command -v npm >/dev/null; then mkdir -p build/proxy && cp requirements/proxy/*.json build/proxy \
	  && npm ci --silent --no-audit --no-fund --ignore-scripts --prefix build/proxy; fi
	$(PYTEST) tests/examples/test_jupyterhub_spawner.py

# The kubectl plugin's archive and krew manifest; KREW_URL is where the archive will be served.
KREW_URL ?= https://example.org/kubengine
krew: dist
	$(BIN)/python package/krew.py dist/*-$$($(BIN)/python -c '$(TAG)')-manylinux_*_$$(uname -m).whl dist $(KREW_URL)

try-deb: build
	KUBENGINE_PACKAGE=$$(realpath dist/kubengine_*.deb) $(PYTEST) --timeout 0 tests/system/test_package.py

# What a node needs; the versions and hashes are those of the lock files.
$(VENV)/.node: requirements/node.txt pyproject.toml | $(VENV)/.python
	@echo "installing what a node needs ($$(grep -c == $<) distributions)"
	@$(LOCKED) -r $<
	@touch $@

$(VENV)/.kernels: $(KERNELS) setup.py pyproject.toml | $(VENV)/.node
	@$(BIN)/python setup.py -q build_ext --inplace
	@$(BIN)/pip install -q --no-deps --no-build-isolation --no-index -e .
	@touch $@

$(VENV)/.installed: requirements/dev.txt pyproject.toml | $(VENV)/.kernels
	@echo "installing what tests, linters and documents need ($$(grep -c == $<) distributions)"
	@$(LOCKED) -r $<
	@$(BIN)/pip install -q --no-deps --no-build-isolation --no-index -e .
	@touch $@

$(VENV)/.python:
	@if ! $(call can-build,$(PYTHON)) && [ -n "$(CAN_APT)" ]; then $(call apt-install,$(BUILD_PACKAGES)); fi
	@command -v cc >/dev/null || { echo 'A C compiler (cc) is needed to build the kernels: install gcc.' >&2; exit 1; }
	@p="$(PYTHON)"; p="$${p:-python3}"; \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo 'Python 3.11 or later is needed and none was found; name one with PYTHON=...' >&2; exit 1; }; \
	"$$p" -c 'import ensurepip' 2>/dev/null || \
	  { echo "$$p has no venv module: install python3-venv (Debian) or its like." >&2; exit 1; }; \
	echo "making a virtual environment of $$("$$p" --version) in $(VENV)"; \
	"$$p" -m venv $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) $(RUN) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
	rm -f engine/_fast/*.so engine/_fast/*.c engine/_fast/*/*.so engine/_fast/*/*.c
	find engine tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# Installs what is missing and starts no service of it, now or at boot; a machine without a package mirror goes on without.
START_POLICY := /usr/sbin/policy-rc.d
define apt-install
	missing=; for p in $(1); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "installing$$missing"; asleep=; \
	  for p in $$missing; do systemctl -q is-enabled $$p.service 2>/dev/null || asleep="$$asleep $$p.service"; done; \
	  if [ ! -e $(START_POLICY) ]; then trap 'rm -f $(START_POLICY)' EXIT; \
	    trap 'exit 1' INT TERM; printf '#!/bin/sh\nexit 101\n' >$(START_POLICY); chmod 755 $(START_POLICY); fi; \
	  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$missing \
	    >/dev/null; } || echo "could not install$$missing; going on without" >&2; \
	  for u in $$asleep; do systemctl -q disable $$u 2>/dev/null || :; done; fi
endef

# Whether a compiler, and a Python with headers and venv, are there.
define can-build
{ command -v cc >/dev/null && [ -n "$(1)" ] && "$(1)" -c 'import ensurepip, os, sysconfig, sys; \
  sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null; }
endef
