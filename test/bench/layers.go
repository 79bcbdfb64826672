// SPDX-License-Identifier: Apache-2.0

package bench

import "regexp"

// Layer is a part of a host's work for an I/O.
type Layer string

// Layers, in the order of the report.
const (
	layerApplication Layer = "application"   // fio
	layerBridge      Layer = "krping-bridge" // the process
	layerTracing     Layer = "tracing"       // krpingctl's process, and its BPF programs
	layerKrping      Layer = "krping"        // the module
	layerNVMe        Layer = "nvme"
	layerVerbs       Layer = "verbs core"  // ib_core, rdma_cm, user-space verbs
	layerBlock       Layer = "block layer" // and system calls of I/O, and the served disk
	layerSchedule    Layer = "scheduler and interrupts"
	layerMemory      Layer = "memory" // allocation
	layerOther       Layer = "other"
	layerChecksums   Layer = "checksums" // CRC32C of data, and Soft-RoCE's ICRC
	layerCopies      Layer = "copies"
	layerRXE         Layer = "Soft-RoCE"
	layerNetwork     Layer = "network stack"
)

// Layers returns all layers, in the order of the report.
func Layers() []Layer {
	return []Layer{
		layerApplication, layerBridge, layerTracing, layerKrping, layerNVMe, layerVerbs, layerBlock, layerSchedule, layerMemory, layerOther,
		layerChecksums, layerCopies, layerRXE, layerNetwork,
	}
}

// onNIC tells whether a host still pays for a layer when a NIC replaces Soft-RoCE. Checksums and copies are left
// out: most are Soft-RoCE's, and nothing tells which are not.
func (l Layer) onNIC() bool {
	switch l {
	case layerApplication, layerChecksums, layerCopies, layerRXE, layerNetwork:
		return false
	}
	return true
}

// steady tells whether a layer takes the same instructions in each run. Those of the scheduler, of interrupts and
// of what they call (other) depend on time, and fio takes more to start than for a few hundred I/Os.
func (l Layer) steady() bool {
	switch l {
	case layerApplication, layerSchedule, layerOther:
		return false
	}
	return true
}

// modules are layers that are kernel modules.
var modules = map[string]Layer{
	"rdma_krping": layerKrping, "rdma_rxe": layerRXE, "brd": layerBlock, "null_blk": layerBlock,
	"crc32_pclmul": layerChecksums, "crc32c_intel": layerChecksums, "crc32_generic": layerChecksums, "crc32c_generic": layerChecksums,
	"ib_core": layerVerbs, "rdma_cm": layerVerbs, "ib_cm": layerVerbs, "iw_cm": layerVerbs, "ib_uverbs": layerVerbs, "rdma_ucm": layerVerbs,
	"nvme": layerNVMe, "nvme_core": layerNVMe, "nvme_fabrics": layerNVMe, "nvme_rdma": layerNVMe, "nvmet": layerNVMe, "nvmet_rdma": layerNVMe,
	"virtio_net": layerNetwork, "net_failover": layerNetwork, "failover": layerNetwork, "udp_tunnel": layerNetwork, "ip6_udp_tunnel": layerNetwork,
	"virtio": layerNetwork, "virtio_ring": layerNetwork, "virtio_pci": layerNetwork,
}

// names are layers by the name of the function, the first that matches.
var names = []struct {
	pattern *regexp.Regexp
	layer   Layer
}{
	{regexp.MustCompile(`crc32|crc32c|_icrc|chksum|csum_partial|crc_`), layerChecksums},
	{regexp.MustCompile(`^_*(memcpy|memmove|memset|copy_user|copy_page|clear_page|rep_movs|rep_stos|copy_mc|clear_user|fault_in_)`), layerCopies},
	{regexp.MustCompile(`^_*(blk|bio|submit_bio|elv|sbitmap|blkdev|bdev|bdget|io_|iov_|aio|iomap|dio|do_io_|loop_|file_|vfs_|ksys|rw_verify|block_|disk_|part_|mempool|wbt|rq_qos|kblockd|flush_end|brd|gup_|get_user_pages|pin_user|unpin|try_grab|import_|security_file|fget|fput|fdget|mmput|x64_sys|do_syscall|syscall|sg_|generic_file|mark_page|pagecache|filemap|folio_mark|generic_write|balance_dirty|touch_atime|atime)`), layerBlock},
	{regexp.MustCompile(`^_*(sched|schedule|ttwu|try_to_wake|wake|default_wake|autoremove|select_task|enqueue|dequeue|pick_|put_prev|set_next|update_|check_preempt|wakeup_preempt|resched|context_switch|switch_|finish_task|prepare_|finish_wait|complete|swait|wait_|do_wait|cpu_idle|do_idle|default_idle|arch_cpu|tick|hrtimer|ktime|timekeeping|clock|read_tsc|rcu|irq|handle_|generic_handle|common_interrupt|asm_|sysvec|apic|lapic|ack_|io_apic|ioapic|native_|x2apic|irqentry|entry_|error_|paranoid|ret_from|do_softirq|softirq|raise_softirq|tasklet|local_bh|ksoftirqd|run_timer|call_timer|timer|mod_timer|del_timer|process_one_work|worker|queue_work|insert_work|kick_pool|wq_|kthread|smp|mwait|cpuidle|menu_|psi_|account_|cputime|vtime|calc_|place_entity|avg_|pelt|cfs|rb_|timerqueue|mutex|rwsem|down_|up_|raw_spin|_?raw_|spin|osq|futex|ep_|eventfd|poll|epoll|do_epoll|nanosleep|exit_to_user|fpregs|save_fpregs|restore_fpregs|kernel_fpu|fpu|xfeature|xsave|__fentry|put_task|get_task|pvclock|cpumask|find_|bitmap|next_|nohz|perf_|trace_|acct)`), layerSchedule},
	{regexp.MustCompile(`^_*(kmem|kmalloc|kfree|kzalloc|slab|cache_|alloc_|free_|page_|get_page|put_page|get_obj|refill|memcg|mod_|obj_cgroup|rmqueue|radix|xa_|xas_|idr|ida|vmalloc|vunmap|krealloc|check_heap|build_|__build|unmap|zap|pte|handle_mm|do_user_addr|exc_page|mem_cgroup|lru|folio|mt_|mas_|down_read_trylock|percpu|kvfree)`), layerMemory},
}

// network are functions of the kernel's directory net, and of the device, by name.
var network = regexp.MustCompile(`^_*(skb|sk_|sock|udp|tcp|ip_|ip6|ipv|inet|dev_|net_|netif|netdev|napi|virtnet|virtqueue|vring|vp_|detach_buf|virtio|eth_|neigh|fib|nf_|qdisc|sch_|pfifo|fq_|gro|gso|dst_|rt_|route|validate_xmit|consume_skb|kfree_skb|pskb|build_skb|flow|receive|page_pool|dql|xmit|bpf_|arp|xfrm|csum|enqueue_to_backlog|process_backlog|backlog|iptunnel|tunnel|hash_conntrack|packet_|tpacket|start_xmit|try_fill|free_old_xmit|page_to_skb|add_recvbuf|mergeable|xdp|mac_|skbs?_)`)

// tracing are functions of the kernel that only BPF programs call, or what calls these.
var tracing = regexp.MustCompile(`^_*(bpf_(trace|ring|prog|get_current|ktime|probe_read|map)|htab_map|array_map|htab_lookup|lookup_nulls)`)

// layerOf returns the layer of a function on the client, or on the server.
func layerOf(f Function, server bool) Layer {
	switch {
	case f.User && server:
		return layerBridge
	case f.User && f.Name != "", f.Module == "bpf", tracing.MatchString(f.Name):
		return layerTracing
	case f.User:
		return layerApplication
	}
	layer, known := modules[f.Module]
	if known && layer != layerRXE && layer != layerVerbs && layer != layerNetwork {
		return layer
	}
	if names[0].pattern.MatchString(f.Name) {
		return layerChecksums
	}
	if known {
		return layer
	}
	if network.MatchString(f.Name) {
		return layerNetwork
	}
	for _, n := range names {
		if n.pattern.MatchString(f.Name) {
			return n.layer
		}
	}
	return layerOther
}
