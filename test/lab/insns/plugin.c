//go:build ignore

// SPDX-License-Identifier: Apache-2.0
//
// A plugin of QEMU's emulator that counts the instructions that a guest with one CPU executes, and how often
// it enters them, by the address of their translation block, in a file that others map. Its layout is in
// insns.go.
//
//	cc -O2 -shared -fPIC -o insns.so plugin.c
//	qemu-system-x86_64 -plugin file=insns.so,out=FILE ...
//
// Debian's packages have no header of the interface (docs/devel/tcg-plugins.rst in QEMU's sources), so
// what is used of it is declared here. Until version 8 QEMU adds to a counter inside the translated code;
// later versions, which can do so only for memory of their own, call a function.
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct qemu_plugin_tb;
struct qemu_info;
typedef void (*translate_cb)(uint64_t id, struct qemu_plugin_tb *tb);
typedef void (*execute_cb)(unsigned int cpu, void *data);
enum { INLINE_ADD_U64 = 0, CB_NO_REGS = 0 };

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, translate_cb cb);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, execute_cb cb, int flags, void *data);
__attribute__((weak)) void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb, int op, void *counter, uint64_t n);

#define EXPORTED __attribute__((visibility("default")))

/* Of the interface: QEMU reads it before it calls the plugin. 2 came with QEMU 9, which no longer takes 1. */
EXPORTED int qemu_plugin_version = 1;

__attribute__((constructor)) static void choose_version(void)
{
	if (!qemu_plugin_register_vcpu_tb_exec_inline)
		qemu_plugin_version = 2;
}

enum { BLOCKS = 1 << 20, PROBES = 64 };

/* The file. */
struct table {
	uint64_t lost;		/* translation blocks that found no place in @blocks */
	struct block {
		uint64_t vaddr, insns, runs;
	} blocks[BLOCKS];	/* a hash table with open addressing; an empty place has @vaddr 0 */
};

static struct table *table;

/* What a call counts: @n instructions, and a run. */
struct addition {
	struct block *block;
	uint64_t n;
};

static void executed(unsigned int cpu, void *data)
{
	const struct addition *a = data;

	(void)cpu;
	a->block->insns += a->n;
	a->block->runs++;
}

/* Return: the place of the block at an address, or NULL if there is none. */
static struct block *place_of(uint64_t vaddr)
{
	uint32_t i = (vaddr * 0x9E3779B97F4A7C15ull) >> 44;

	for (int probe = 0; probe < PROBES; probe++, i = (i + 1) % BLOCKS) {
		struct block *b = &table->blocks[i];

		if (!b->vaddr)
			b->vaddr = vaddr;
		if (b->vaddr == vaddr)
			return b;
	}
	table->lost++;
	return NULL;
}

static void translated(uint64_t id, struct qemu_plugin_tb *tb)
{
	struct block *block = place_of(qemu_plugin_tb_vaddr(tb));
	uint64_t n = qemu_plugin_tb_n_insns(tb);
	struct addition *a;

	(void)id;
	if (!block)
		return;
	if (qemu_plugin_register_vcpu_tb_exec_inline) {
		qemu_plugin_register_vcpu_tb_exec_inline(tb, INLINE_ADD_U64, &block->insns, n);
		qemu_plugin_register_vcpu_tb_exec_inline(tb, INLINE_ADD_U64, &block->runs, 1);
		return;
	}
	a = malloc(sizeof(*a)); /* for ever: QEMU does not tell when it drops a block */
	if (!a)
		abort();
	*a = (struct addition){ block, n };
	qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, CB_NO_REGS, a);
}

EXPORTED int qemu_plugin_install(uint64_t id, const struct qemu_info *info, int argc, char **argv)
{
	int fd = argc == 1 && !strncmp(argv[0], "out=", 4) ? open(argv[0] + 4, O_RDWR | O_CREAT | O_TRUNC, 0644) : -1;

	(void)info;
	if (fd < 0 || ftruncate(fd, sizeof(*table)))
		return -1;
	table = mmap(NULL, sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (table == MAP_FAILED)
		return -1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
