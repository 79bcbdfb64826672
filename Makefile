# SPDX-License-Identifier: Apache-2.0
# `make demo` shows krping at work, `make test` runs all tests. Both install missing packages, as root on
# Debian 12 or 13. KERNEL=6.1, 6.12 or newest (Debian's) selects the kernel of demo, lab, test-vm, soak and the benchmarks.

KERNELS := 6.1 6.12 newest
# The one that this Debian release comes with.
KERNEL ?= $(shell . /etc/os-release; if [ "$$VERSION_CODENAME" = trixie ]; then echo 6.12; else echo 6.1; fi)
PREFIX ?= /usr/local

# Newest installed kernel of a series, as uname -r; looked up after `deps`.
release = $(shell ls /boot/vmlinuz-$(1).*amd64 2>/dev/null | sort -V | tail -n 1 | sed 's,.*/vmlinuz-,,')

.PHONY: all build deps host krpingctl krping-bridge extras install uninstall packages test-packages demo-programs test-debug test-races test-reboot programs modules generate check check-go check-kmod test test-unit test-vm bench bench-cost bench-scale bench-verbs bench-trace soak fuzz demo lab help clean

all: build
build: | deps
	@$(MAKE) --no-print-directory -j2 programs modules

DEPS ?= demo test pack $(KERNELS)
deps:
	@scripts/install-deps $(DEPS)

version := $(shell scripts/version)
ldflags = -ldflags '-s -w -X main.version=$(version)'

# The programs of a real host. This target installs no packages: README.md names those that it needs.
# krpingctl is static; only the bridge links the RDMA libraries.
host: krpingctl krping-bridge	## krpingctl and krping-bridge alone, for a real host
krpingctl:
	CGO_ENABLED=0 go build -trimpath $(ldflags) -o build/krpingctl ./agent/krpingctl
krping-bridge:
	go build -trimpath $(ldflags) -o build/krping-bridge ./bridge/krping-bridge

# What the demo needs of the lab. Not -trimpath: a program finds this directory by its source's path.
demo-programs: krpingctl
	CGO_ENABLED=0 go build -trimpath -o build/lab-guest ./test/lab/guest
	CGO_ENABLED=0 go build -o build/demo ./test/demo

# What is installed and packaged beside the programs: manual pages and completions.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || date +%s)
extras: host
	@rm -rf build/man build/completions && mkdir -p build/man build/completions
	go run -tags man $(ldflags) ./agent/krpingctl build/man
	go run -tags man $(ldflags) ./bridge/krping-bridge build/man
	@for p in krpingctl krping-bridge; do for s in bash zsh fish; do build/$$p completion $$s >build/completions/$$p.$$s || exit; done; done

install: extras	## programs, units and more to PREFIX (/usr/local), below DESTDIR
	PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) scripts/pack/install
uninstall:	## remove what install has put there
	PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) scripts/pack/install --uninstall
packages:	## .deb and .rpm in build/packages
	@scripts/install-deps pack
	@$(MAKE) --no-print-directory extras
	scripts/pack/deb
	scripts/pack/rpm
	@ls build/packages/*.deb build/packages/*.rpm

# Needs root and a network: makes a Debian of its own with debootstrap. SUITE=trixie is another one.
SUITE ?= bookworm
test-packages: packages	## installs, upgrades and removes the packages in a chroot
	scripts/pack/test-chroot $(SUITE)

programs: | deps
	@$(MAKE) --no-print-directory host
	go build -trimpath -tags faults $(ldflags) -o build/krping-bridge-faults ./bridge/krping-bridge
	CGO_ENABLED=0 go build -trimpath -o build/acked ./test/internal/acklog/acked
	CGO_ENABLED=0 go build -trimpath -o build/lab-guest ./test/lab/guest
	CGO_ENABLED=0 go build -o build/lab ./test/lab/lab	# not -trimpath: it finds this directory by the path of its source

# Builds the module from a copy of its sources, one for each kernel. Arguments: directory below build/, the
# kernel's build directory, target.
define kmod
	@mkdir -p build/$(1)
	@cp -pru kmod/. build/$(1)/
	@echo $(version) >build/$(1)/VERSION
	+$(MAKE) -s -C build/$(1) KDIR=$(2) $(3)
endef
# Where scripts/unpack-packages has put them, or where they are installed; looked up after `deps`.
headers = $(shell cd build/kernel-$(1)/build 2>/dev/null && pwd -P || echo /lib/modules/$(call release,$(1))/build)

# Kernels for which the module is also built with the fault hooks of kmod/lib/fault.h.
FAULTS ?= $(KERNELS)
modules: $(KERNELS:%=module-%) $(FAULTS:%=faults-%)
module-%: | deps
	$(call kmod,kmod/$*,$(call headers,$*),modules)

faults-%: | deps
	$(call kmod,kmod/$*-faults,$(call headers,$*),faults)

generate:	## eBPF objects
	go generate -tags lab ./...

check: check-go check-kmod	## vet, staticcheck, sparse, checkpatch
check-go: | deps
	@test -z "$$(gofmt -l agent bridge proc scripts test)" || { gofmt -l agent bridge proc scripts test; echo "not gofmt'ed"; exit 1; }
	go vet -tags lab,faults ./...	# all but bridge/krping-bridge/nofaults.go
	go tool staticcheck -tags lab,faults ./...

check-kmod: $(KERNELS:%=sparse-%) sparse-faults
	$(MAKE) -s -C kmod checkpatch CHECKPATCH=$$(scripts/checkpatch)
sparse-%: module-%	# where all of it is compiled already
	$(call kmod,kmod/$*,$(call headers,$*),sparse)
sparse-faults: faults-6.1
	$(call kmod,kmod/6.1-faults,$(call headers,6.1),KRPING_FAULTS=y sparse)

# One scheduler runs the suites on all kernels, and beside them, at low priority, the checks, the unit tests
# and the fuzzers. Each suite declares itself what it needs: see test/README.md. Without the newest kernel the
# suites run on the others; the lab then fails, and says why it is not there.
# Suites wait more than they compute: three VMs, of 2 GB each, keep two cores busy.
JOBS ?= 3
comma := ,
test:	## all tests that CI runs
	@$(MAKE) --no-print-directory build KERNELS='$(filter-out newest,$(KERNELS))' FAULTS=6.1
	@if scripts/unpack-packages newest; then $(MAKE) --no-print-directory -j2 modules KERNELS=newest FAULTS=; fi
	@$(MAKE) --no-print-directory packages	# for hosts/reboot
	@rm -rf build/results
	@ok=yes; \
	build/lab suites --jobs $(JOBS) --short --kernel $(subst $() ,$(comma),$(KERNELS)) \
		--beside unit-tests='go test -v -vet=off -timeout 40m -race ./...' --beside check-go='make -s check-go' --beside check-kmod='make -s check-kmod' \
		--beside fuzz-options='scripts/fuzz-module 20 options' --beside fuzz-wire='scripts/fuzz-module 20 wire' || ok=no; \
	build/lab summary && [ $$ok = yes ]

test-unit: | deps	## the tests that need no virtual machine
	go test -race ./...

test-vm: build	## suites on one kernel, with all cases: KERNEL=6.12 SUITES="block target"
	build/lab suites --kernel $(KERNEL) $(SUITES)

# krping's disks compared with NVMe over fabrics and nbd: about an hour on two cores. See test/bench/README.md.
bench: build	## disks compared with NVMe over fabrics and nbd
	go run ./test/bench/bench-blocks --kernel $(KERNEL)

# Instructions an I/O of krping's disks and of NVMe over RDMA. Other work on this machine hardly matters.
bench-cost: build	## instructions an I/O of disks and of NVMe over RDMA
	go run ./test/bench/bench-cost --kernel $(KERNEL)

# The suites on a kernel with KASAN, lockdep, kmemleak, UBSAN and more (test/lab/config/debug.config), over
# RoCE and over iWARP. Any report of the kernel fails.
test-debug: build built-debug	## the suites on a kernel with KASAN, lockdep, kmemleak and more
	@rm -rf build/results
	@ok=yes; \
	build/lab suites --jobs $(JOBS) --kernel debug --short || ok=no; \
	build/lab suites --jobs $(JOBS) --kernel debug --iwarp --short || ok=no; \
	build/lab summary && [ $$ok = yes ]

# The suites with needs.RaceCheck on a kernel with KCSAN. A data race in the module fails.
test-races: build built-kcsan	## the suites on a kernel with KCSAN
	@rm -rf build/results
	@ok=yes; \
	build/lab suites --jobs $(JOBS) --kernel kcsan --short || ok=no; \
	build/lab summary && [ $$ok = yes ]

# A kernel of scripts/debug-kernel, and the module for it.
built-%: | deps
	@scripts/debug-kernel $*
	$(call kmod,kmod/$*,$(CURDIR)/build/kernel-$*/build,modules)
	$(call kmod,kmod/$*-faults,$(CURDIR)/build/kernel-$*/build,faults)

# krping's own tests compared with perftest.
bench-verbs: build	## every common test of perftest compared with the module and the bridge
	go run ./test/bench/bench-verbs --kernel $(KERNEL)

# How throughput, latency and memory change as sessions or the queues of one grow in number, and as they come and go.
bench-scale: build	## many sessions, and many queues, of krping and of NVMe over RDMA
	go run ./test/bench/bench-scale --kernel $(KERNEL)

# What tracing costs, compared with other tracers.
bench-trace: build	## what tracing costs
	go run ./test/bench/bench-trace --kernel $(KERNEL)

# Repeats every fault under accounted writes for SOAK in one VM and for SOAK on two hosts, and prints what was
# acknowledged, lost, corrupted and hung. Then stops the client of a tap at 100 random moments in one VM, and
# on two hosts for a quarter of SOAK. Then tries to meet two rare moments of a reconnect. Then attaches and stops
# 1000 times, 200 times under load, kills a target 100 times, and loads and unloads the module 1000 times.
SOAK ?= 15m
soak: build	## faults for half an hour, then 1000 times attach and load
	build/lab suites --kernel $(KERNEL) --soak $(SOAK) --run 'TestRecovery|Cycles|AgainAndAgain' faults
	build/lab suites --kernel $(KERNEL) --soak $(SOAK) --run 'TestCrash|TapHostsStop' guest/tap hosts/faults
	build/lab suites --kernel $(KERNEL) --soak $(SOAK) --run 'TestTapReadWhile|TestInsertedWhile' guest/tap guest/block
	build/lab suites --kernel $(KERNEL) --soak 1h lifecycle	# as many times as said above; 1h is only the limit

# On Debian 12 and 13 hosts with systemd and the packages: installs them as scripts/system/OPERATING.md says, reboots the
# target, the client and both ten times in each order, upgrades kernel and packages, and removes them.
test-reboot: build packages	## reboots, upgrades and removal on Debian hosts: hours
	build/lab suites --kernel 6.1 --soak 6h --run TestOperating hosts/reboot

# All fuzzers, each for FUZZ seconds: see test/README.md.
FUZZ ?= 3600
fuzz: build	## all fuzzers, FUZZ seconds each
	scripts/fuzz $(FUZZ)

# Installs and builds only what the demo needs.
demo:	## two virtual machines, a disk over RDMA between them
	@scripts/demo $(KERNEL)

lab: build	## shells in two virtual machines
	build/lab shell --kernel $(KERNEL)

# The comments behind ## are for `make help`.
help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' Makefile

clean:	## remove what was built
	rm -rf build
