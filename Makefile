# SPDX-License-Identifier: Apache-2.0
# `make demo` shows krping at work, `make test` proves it; both install what is missing
# (as root on Debian 12). KERNEL=6.1 or 6.12 chooses the kernel
# of demo, lab, test-vm, the benchmarks and soak.

KERNELS := 6.1 6.12
KERNEL ?= 6.1

# Newest installed kernel of a series, as uname -r; looked up after `deps`.
release = $(shell ls /boot/vmlinuz-$(1).*amd64 2>/dev/null | sort -V | tail -n 1 | sed 's,.*/vmlinuz-,,')

.PHONY: all build deps host krpingctl krping-bridge demo-programs test-debug test-races programs modules generate check check-go check-kmod test test-unit test-vm bench bench-verbs bench-trace soak fuzz demo lab clean

all: build
build: | deps
	@$(MAKE) --no-print-directory -j2 programs modules

DEPS ?= demo test $(KERNELS)
deps:
	@scripts/install-deps $(DEPS)

# What a real host runs. Needs only what README.md names there: the other targets install the lab's kernels,
# QEMU and a browser, too. krpingctl is static and needs no C; only the bridge links the RDMA libraries.
host: krpingctl krping-bridge
krpingctl:
	CGO_ENABLED=0 go build -trimpath -o build/krpingctl ./agent/krpingctl
krping-bridge:
	go build -trimpath -o build/krping-bridge ./bridge/krping-bridge

# What the demo needs of the lab. Not -trimpath: a program finds this directory by its source's path.
demo-programs: krpingctl
	CGO_ENABLED=0 go build -trimpath -o build/lab-guest ./test/lab/guest
	CGO_ENABLED=0 go build -o build/demo ./test/demo

programs: | deps
	@$(MAKE) --no-print-directory host
	go build -trimpath -tags faults -o build/krping-bridge-faults ./bridge/krping-bridge
	CGO_ENABLED=0 go build -trimpath -o build/acked ./test/internal/acklog/acked
	CGO_ENABLED=0 go build -trimpath -o build/lab-guest ./test/lab/guest
	CGO_ENABLED=0 go build -o build/lab ./test/lab/lab	# not -trimpath: it finds this directory by its source's path

# The module is built from a copy for each kernel, so that they do not mix: directory, the kernel's
# build directory, what to make.
define kmod
	@mkdir -p build/$(1)
	@cp -pru kmod/. build/$(1)/
	+$(MAKE) -s -C build/$(1) KDIR=$(2) $(3)
endef
headers = /lib/modules/$(call release,$(1))/build

modules: $(KERNELS:%=module-%)
module-%: | deps
	$(call kmod,kmod/$*,$(call headers,$*),modules)

# The module with the faults of kmod/lib/fault.h, for the suite that provokes them.
modules: $(KERNELS:%=faults-%)
faults-%: | deps
	$(call kmod,kmod/$*-faults,$(call headers,$*),faults)

generate:
	go generate -tags lab ./...

check: check-go check-kmod
check-go: | deps
	@test -z "$$(gofmt -l agent bridge proc test)" || { gofmt -l agent bridge proc test; echo "not gofmt'ed"; exit 1; }
	go vet ./...
	go vet -tags lab ./test/...
	go vet -tags faults ./bridge/...
	go tool staticcheck ./...
	go tool staticcheck -tags lab ./test/...
	go tool staticcheck -tags faults ./bridge/...

check-kmod: $(KERNELS:%=sparse-%)
	$(MAKE) -s -C kmod checkpatch CHECKPATCH=$$(scripts/checkpatch)
sparse-%: module-%
	$(call kmod,sparse/$*,$(call headers,$*),KRPING_FAULTS=y sparse)

# The checks, the unit tests and the fuzzers run beside the suites, which wait more than they compute. The
# suites of both kernels share one pool. Which of them run on the second kernel they declare themselves.
JOBS ?= 3
comma := ,
test: build
	@rm -rf build/results
	@ok=yes; \
	build/lab suites --jobs $(JOBS) --kernel $(subst $() ,$(comma),$(KERNELS)) \
		--beside unit-tests='go test -v -race ./...' --beside check-go='make -s check-go' --beside check-kmod='make -s check-kmod' \
		--beside fuzz-options='scripts/fuzz-module 20 options' --beside fuzz-wire='scripts/fuzz-module 20 wire' || ok=no; \
	build/lab summary && [ $$ok = yes ]

test-unit: | deps
	go test -race ./...

test-vm: build
	build/lab suites --kernel $(KERNEL) $(SUITES)

# krping's disks beside NVMe over fabrics and nbd: about an hour on two cores; for a part of it, or
# shorter measurements, see `go run ./test/bench/bench-blocks --help`. What it showed: test/bench/README.md.
bench: build
	go run ./test/bench/bench-blocks --kernel $(KERNEL)

# The suites on a kernel that looks for mistakes (KASAN, lockdep, kmemleak, UBSAN and more: see
# test/lab/config/debug.config), over RoCE and over iWARP. Any report fails.
test-debug: build built-debug
	@rm -rf build/results
	@ok=yes; \
	build/lab suites --jobs $(JOBS) --kernel debug --short || ok=no; \
	build/lab suites --jobs $(JOBS) --kernel debug --iwarp --short || ok=no; \
	build/lab summary && [ $$ok = yes ]

# Those that need it, on a kernel that looks for data races (KCSAN). A race in the module fails.
test-races: build built-kcsan
	@rm -rf build/results
	@ok=yes; \
	build/lab suites --jobs $(JOBS) --kernel kcsan --short || ok=no; \
	build/lab summary && [ $$ok = yes ]

# The kernel of that name, and the module for it.
built-%: | deps
	@scripts/debug-kernel $*
	$(call kmod,kmod/$*,$(CURDIR)/build/kernel-$*/build,modules)
	$(call kmod,kmod/$*-faults,$(CURDIR)/build/kernel-$*/build,faults)

# perftest beside krping's own tests, in the same VMs: a table of ratios.
bench-verbs: build
	go run ./test/bench/bench-verbs --kernel $(KERNEL)

# What tracing costs, beside other tracers.
bench-trace: build
	go run ./test/bench/bench-trace --kernel $(KERNEL)

# Every fault again and again under verified writes, half of the time in one VM, half on two
# hosts: a table for each of what was acknowledged, lost, corrupted and hung; 1000 times attach and
# stop, 200 times under load, 100 times a target killed, 1000 times the module loaded and unloaded.
SOAK ?= 15m
soak: build
	build/lab suites --kernel $(KERNEL) --soak $(SOAK) --run 'TestRecovery|Cycles|AgainAndAgain' faults
	build/lab suites --kernel $(KERNEL) --soak 1h lifecycle	# as long as it takes

# Ten fuzzers, each for an hour (FUZZ=60: a minute): of the module's options and messages, of the bridge's messages and of what krpingctl reads.
FUZZ ?= 3600
fuzz: build
	scripts/fuzz $(FUZZ)

# Installs and builds what it needs, and no more.
demo:
	@scripts/demo $(KERNEL)

lab: build
	build/lab shell --kernel $(KERNEL)

clean:
	rm -rf build
