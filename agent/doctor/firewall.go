// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"krping/agent/host/distro"
	"krping/bridge/sysfs"
)

const rocePort = 4791

// ruleset is a table of the firewall and its content.
type ruleset struct {
	table  *nftables.Table
	chains []*nftables.Chain
	rules  map[string][]*nftables.Rule      // by the chain's name
	sets   map[string]*nftables.Set         // by name
	elems  map[string][]nftables.SetElement // by the set's name
	distro distro.Distro
}

// readFirewall reads the nftables tables for IPv4 and IPv6. They include the rules of iptables-nft.
func readFirewall() ([]ruleset, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket to nftables: %w", err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		return nil, fmt.Errorf("list the firewall's tables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list the firewall's chains: %w", err)
	}
	var sets []ruleset
	for _, table := range tables {
		if !slices.Contains([]nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}, table.Family) {
			continue
		}
		r := ruleset{table: table, rules: map[string][]*nftables.Rule{}, sets: map[string]*nftables.Set{}, elems: map[string][]nftables.SetElement{}}
		for _, c := range chains {
			if c.Table.Name != table.Name || c.Table.Family != table.Family {
				continue
			}
			r.chains = append(r.chains, c)
			if r.rules[c.Name], err = conn.GetRules(table, c); err != nil {
				return nil, fmt.Errorf("list the rules of the firewall's chain %s: %w", c.Name, err)
			}
		}
		named, _ := conn.GetSets(table) // a set that cannot be read may contain anything
		for _, s := range named {
			if r.elems[s.Name], err = conn.GetSetElements(s); err == nil {
				r.sets[s.Name] = s
			}
		}
		sets = append(sets, r)
	}
	return sets, nil
}

// packet is the packet that rules are evaluated for: UDP to port 4791, between the RDMA device's
// network device and another host. To the firewall each is the first packet of a flow, because
// packets in the other direction have another source port.
type packet struct {
	netdev   netdev
	outgoing bool
	ipv6     bool
	from, to netip.Addr // if valid
}

// firewallFindings checks whether the firewall accepts packets of the Soft-RoCE devices; those of
// hardware bypass it. dropsSent reports whether outgoing packets may be dropped: the driver
// retransmits them forever, and a command that waits for it cannot be killed until the rule is
// gone.
func (h host) firewallFindings(o Options) (findings []Finding, dropsSent bool) {
	var on []netdev
	for _, d := range h.devices {
		for _, p := range d.ports {
			if d.kind == rxe {
				on = append(on, h.served(p)...)
			}
		}
	}
	if len(on) == 0 {
		return nil, false
	}
	tables, err := readFirewall()
	if err != nil {
		return []Finding{unchecked("firewall", err)}, false
	}
	for i := range tables {
		tables[i].distro = h.modules.distro
	}
	for _, n := range on {
		dropsSent = dropsSent || mayDropSent(tables, packetsOf(n, o))
		if packets := packetsOf(n, o); len(packets) > 0 {
			findings = append(findings, firewallFinding(tables, n, packets))
		}
	}
	if legacy := sysfs.Text("/proc/net/ip_tables_names") + sysfs.Text("/proc/net/ip6_tables_names"); legacy != "" {
		findings = append(findings, Finding{
			Check: "firewall", Level: Note, Found: "tables of iptables-legacy are in use",
			Cause: "doctor does not check their rules", Fix: "iptables-legacy-save | grep -E 'DROP|REJECT'; iptables-legacy -I INPUT -p udp --dport 4791 -j ACCEPT",
		})
	}
	return findings, dropsSent
}

func mayDropSent(tables []ruleset, packets []packet) bool {
	return slices.ContainsFunc(packets, func(p packet) bool {
		return p.outgoing && slices.ContainsFunc(tables, func(t ruleset) bool { return t.judge(p) != nil })
	})
}

// packetsOf returns the packets that must pass: those of the peer's IP version, or of each version
// that the network device has an address of.
func packetsOf(n netdev, o Options) []packet {
	var packets []packet
	for _, ipv6 := range []bool{false, true} {
		wanted := slices.ContainsFunc(n.addrs, func(p netip.Prefix) bool { return p.Addr().Is6() == ipv6 && !p.Addr().IsLinkLocalUnicast() })
		if o.Peer.IsValid() {
			wanted = o.Peer.Unmap().Is6() == ipv6
		}
		if !wanted {
			continue
		}
		own := o.Addr
		if own.IsValid() && own.Unmap().Is6() != ipv6 {
			own = netip.Addr{}
		}
		packets = append(packets,
			packet{netdev: n, ipv6: ipv6, from: o.Peer, to: own},
			packet{netdev: n, ipv6: ipv6, from: own, to: o.Peer, outgoing: true})
	}
	return packets
}

func firewallFinding(tables []ruleset, n netdev, packets []packet) Finding {
	var unsure *Finding
	for _, p := range packets {
		for _, t := range tables {
			f := t.judge(p)
			if f != nil && f.Level == Problem {
				return *f
			}
			if f != nil && unsure == nil {
				unsure = f
			}
		}
	}
	if unsure != nil {
		return *unsure
	}
	return ok("firewall", "RoCE (UDP port %d) passes on %s", rocePort, n.name)
}

// judge returns a finding if the packet is or may be dropped, else nil.
func (r ruleset) judge(p packet) *Finding {
	if r.table.Family == nftables.TableFamilyIPv4 && p.ipv6 || r.table.Family == nftables.TableFamilyIPv6 && !p.ipv6 {
		return nil
	}
	hooks, direction := []nftables.ChainHook{*nftables.ChainHookPrerouting, *nftables.ChainHookInput}, "from"
	if p.outgoing {
		hooks, direction = []nftables.ChainHook{*nftables.ChainHookOutput, *nftables.ChainHookPostrouting}, "to"
	}
	for _, c := range r.chains {
		if c.Hooknum == nil || !slices.Contains(hooks, *c.Hooknum) {
			continue
		}
		w := walk{ruleset: r, packet: p}
		end := w.chain(c.Name, true, 0)
		if end == passes && c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
			end, w.where = drops, "its policy drops packets that no rule accepts"
		}
		if end != drops && w.mayDrop == "" {
			continue
		}
		place := fmt.Sprintf("table %s %s, chain %s", family(r.table), r.table.Name, c.Name)
		f := &Finding{
			Check: "firewall", Level: Problem,
			Found: fmt.Sprintf("the firewall drops RoCE (UDP port %d, %s) %s other hosts on %s", rocePort, p.protocol(), direction, p.netdev.name),
			Cause: fmt.Sprintf("%s: %s", place, w.where),
			Fix:   r.allow(c, w),
		}
		if end != drops || w.mayAccept {
			f.Level = Warning
			f.Found = strings.Replace(f.Found, "drops", "may drop", 1)
		}
		if end != drops {
			f.Cause = fmt.Sprintf("%s: %s", place, w.mayDrop)
		}
		return f
	}
	return nil
}

func family(t *nftables.Table) string {
	switch t.Family {
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	}
	return "inet"
}

// allow returns the command that makes the chain accept RoCE, for the firewall manager in use.
func (r ruleset) allow(c *nftables.Chain, w walk) string {
	program := map[string]string{"ip": "iptables", "ip6": "ip6tables"}[family(r.table)]
	switch {
	case r.table.Name == "firewalld":
		zone := ""
		if w.zone != "" {
			zone = "--zone=" + w.zone + " "
		}
		return fmt.Sprintf("firewall-cmd %s--add-port=4791/udp && firewall-cmd --permanent %s--add-port=4791/udp", zone, zone)
	case r.isUFW() && w.outgoing:
		return "ufw allow out 4791/udp"
	case r.isUFW():
		return "ufw allow 4791/udp"
	case program != "" && (c.Name == "INPUT" || c.Name == "OUTPUT"):
		fix := fmt.Sprintf("%s -t %s -I %s -p udp --dport 4791 -j ACCEPT", program, r.table.Name, c.Name)
		if save := r.distro.SaveIptables(); save != "" {
			fix += "; or, also after a boot: that, then " + save
		}
		return fix
	}
	fix := fmt.Sprintf("nft insert rule %s %s %s udp dport 4791 accept", family(r.table), r.table.Name, c.Name)
	if file := r.distro.NftablesFile(); file != "" {
		fix += "; or, also after a boot: that, and the rule `udp dport 4791 accept` in that chain in " + file
	}
	return fix
}

func (r ruleset) isUFW() bool {
	return r.rules["ufw-user-input"] != nil || r.rules["ufw6-user-input"] != nil
}

// verdict is the result of a chain for a packet.
type verdict int

const (
	passes verdict = iota // no decision: evaluation continues, finally with the policy
	accepts
	drops
)

// walk evaluates a chain, and the chains it jumps to, for a packet.
type walk struct {
	ruleset
	packet
	where     string // the rule that dropped it
	mayAccept bool   // a rule that may match accepts it
	mayDrop   string // a rule that may match and tests the port drops it
	zone      string // of firewalld, that the packet is in
}

const maxJumps = 16 // the kernel's limit

func (w *walk) chain(name string, sure bool, depth int) verdict {
	if depth > maxJumps {
		return passes
	}
	for _, rule := range w.rules[name] {
		m := w.match(rule.Exprs)
		if m.matches == no {
			continue
		}
		certain := sure && m.matches == yes
		switch m.kind {
		case expr.VerdictJump, expr.VerdictGoto:
			if zone, isZone := strings.CutPrefix(m.target, "filter_IN_"); isZone && certain && depth < 2 {
				w.zone = zone
			}
			if end := w.chain(m.target, certain, depth+1); certain && end != passes {
				return end
			}
			if certain && m.kind == expr.VerdictGoto {
				return passes
			}
		case expr.VerdictReturn:
			if certain {
				return passes
			}
		case expr.VerdictAccept:
			if certain {
				return accepts
			}
			w.mayAccept = true
		case expr.VerdictDrop:
			where := fmt.Sprintf("rule %d", rule.Handle)
			if depth > 0 {
				where += " in chain " + name
			}
			if certain {
				w.where = where
				return drops
			}
			if m.named {
				w.mayDrop = where
			}
		}
	}
	return passes
}

// certainty is whether a rule matches.
type certainty int

const (
	no certainty = iota
	maybe
	yes
)

// match is the effect of a rule on a packet.
type match struct {
	matches certainty
	named   bool // the rule tests the port
	kind    expr.VerdictKind
	target  string // of a jump
}

// match evaluates a rule. A condition on something unknown may match.
func (w *walk) match(exprs []expr.Any) match {
	m := match{matches: yes, kind: expr.VerdictContinue}
	registers := map[uint32][]byte{} // nil: unknown
	and := func(c certainty) { m.matches = min(m.matches, c) }
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Meta:
			if !e.SourceRegister {
				registers[e.Register] = w.meta(e.Key)
			}
		case *expr.Payload:
			registers[e.DestRegister] = w.payload(e)
			m.named = m.named || isPort(e)
		case *expr.Ct:
			registers[e.Register] = nil
			if e.Key == expr.CtKeySTATE {
				registers[e.Register] = binary.NativeEndian.AppendUint32(nil, expr.CtStateBitNEW)
			}
		case *expr.Bitwise:
			registers[e.DestRegister] = mask(registers[e.SourceRegister], e.Mask, e.Xor)
		case *expr.Cmp:
			and(compare(registers[e.Register], e.Op, e.Data))
		case *expr.Range:
			and(within(registers[e.Register], e))
		case *expr.Lookup:
			c, v := w.lookup(registers[e.SourceRegister], e)
			and(c)
			w.mayAccept = w.mayAccept || e.IsDestRegSet && m.matches == maybe
			if v != nil {
				m.kind, m.target = v.Kind, v.Chain
			}
		case *expr.Match:
			and(xtMatch(e))
			m.named = m.named || e.Name == "udp"
		case *expr.Verdict:
			m.kind, m.target = e.Kind, e.Chain
		case *expr.Reject:
			m.kind = expr.VerdictDrop
		case *expr.Target:
			if e.Name == "REJECT" || e.Name == "DROP" {
				m.kind = expr.VerdictDrop
			}
		case *expr.Counter, *expr.Log, *expr.Notrack, *expr.Immediate, *expr.Objref:
		default:
			and(maybe)
		}
	}
	return m
}

func (p packet) protocol() string {
	if p.ipv6 {
		return "IPv6"
	}
	return "IPv4"
}

// meta returns the value of a meta expression, nil if unknown.
func (p packet) meta(key expr.MetaKey) []byte {
	const ipv4, ipv6 = unix.NFPROTO_IPV4, unix.NFPROTO_IPV6
	name, index := make([]byte, unix.IFNAMSIZ), binary.NativeEndian.AppendUint32(nil, uint32(p.netdev.index))
	copy(name, p.netdev.name)
	switch {
	case key == expr.MetaKeyL4PROTO:
		return []byte{unix.IPPROTO_UDP}
	case key == expr.MetaKeyNFPROTO && p.ipv6:
		return []byte{ipv6}
	case key == expr.MetaKeyNFPROTO:
		return []byte{ipv4}
	case key == expr.MetaKeyIIFNAME && !p.outgoing, key == expr.MetaKeyOIFNAME && p.outgoing:
		return name
	case key == expr.MetaKeyIIF && !p.outgoing, key == expr.MetaKeyOIF && p.outgoing:
		return index
	}
	return nil
}

func isPort(e *expr.Payload) bool {
	return e.Base == expr.PayloadBaseTransportHeader && e.Offset == 2 && e.Len == 2
}

// payload returns bytes of the packet's headers, nil if unknown.
func (p packet) payload(e *expr.Payload) []byte {
	if isPort(e) {
		return binary.BigEndian.AppendUint16(nil, rocePort)
	}
	if e.Base != expr.PayloadBaseNetworkHeader {
		return nil
	}
	protocol, source, size := uint32(9), uint32(12), uint32(4)
	if p.ipv6 {
		protocol, source, size = 6, 8, 16
	}
	switch {
	case e.Offset == protocol && e.Len == 1:
		return []byte{unix.IPPROTO_UDP}
	case e.Offset == source && e.Len <= size:
		return address(p.from, e.Len)
	case e.Offset == source+size && e.Len <= size:
		return address(p.to, e.Len)
	}
	return nil
}

// address returns the first n bytes of an address, nil if it is not valid.
func address(a netip.Addr, n uint32) []byte {
	if b := a.Unmap().AsSlice(); len(b) >= int(n) {
		return b[:n]
	}
	return nil
}

func mask(value, mask, xor []byte) []byte {
	if value == nil || len(mask) > len(value) || len(xor) > len(value) {
		return nil
	}
	result := bytes.Clone(value[:len(mask)])
	for i := range result {
		result[i] &= mask[i]
		if i < len(xor) {
			result[i] ^= xor[i]
		}
	}
	return result
}

func holds(condition bool) certainty {
	if condition {
		return yes
	}
	return no
}

func compare(value []byte, op expr.CmpOp, with []byte) certainty {
	if value == nil || len(value) < len(with) {
		return maybe
	}
	order := bytes.Compare(value[:len(with)], with)
	switch op {
	case expr.CmpOpEq:
		return holds(order == 0)
	case expr.CmpOpNeq:
		return holds(order != 0)
	case expr.CmpOpLt:
		return holds(order < 0)
	case expr.CmpOpLte:
		return holds(order <= 0)
	case expr.CmpOpGt:
		return holds(order > 0)
	case expr.CmpOpGte:
		return holds(order >= 0)
	}
	return maybe
}

func within(value []byte, r *expr.Range) certainty {
	inside := min(compare(value, expr.CmpOpGte, r.FromData), compare(value, expr.CmpOpLte, r.ToData))
	if inside == maybe || r.Op == expr.CmpOpEq {
		return inside
	}
	return holds(inside == no)
}

// lookup evaluates a look-up in a set or a verdict map.
func (w *walk) lookup(value []byte, l *expr.Lookup) (certainty, *expr.Verdict) {
	set := w.sets[l.SetName]
	if value == nil || set == nil || l.IsDestRegSet && !isVerdictMap(set) {
		return maybe, nil
	}
	var found *nftables.SetElement
	elems := slices.Clone(w.elems[l.SetName])
	slices.SortFunc(elems, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
	for i, e := range elems {
		if len(e.Key) != len(value) {
			return maybe, nil // a key of several fields
		}
		if order := bytes.Compare(e.Key, value); order == 0 || order < 0 && set.Interval {
			found = &elems[i]
		}
	}
	if found != nil && found.IntervalEnd {
		found = nil
	}
	if found == nil || l.Invert {
		return holds((found != nil) != l.Invert), nil
	}
	return yes, elementVerdict(found.Val)
}

// isVerdictMap reports whether a set maps to verdicts. The nftables package stores a map's data
// type in KeyType.
func isVerdictMap(s *nftables.Set) bool {
	return s.IsMap && s.KeyType.Name == nftables.TypeVerdict.Name
}

// elementVerdict parses the verdict of a map's element; nil if there is none.
func elementVerdict(value []byte) *expr.Verdict {
	var v *expr.Verdict
	attributes(value, func(kind uint16, data []byte) {
		switch {
		case kind == unix.NFTA_VERDICT_CODE && len(data) == 4:
			v = &expr.Verdict{Kind: expr.VerdictKind(int32(binary.BigEndian.Uint32(data)))}
		case kind == unix.NFTA_VERDICT_CHAIN && v != nil:
			v.Chain = unix.ByteSliceToString(data)
		}
	})
	return v
}

// xtMatch evaluates an iptables match.
func xtMatch(e *expr.Match) certainty {
	switch info := e.Info.(type) {
	case *xt.Udp:
		inside := info.DstPorts[0] <= rocePort && rocePort <= info.DstPorts[1]
		if inside == (info.InvFlags&xt.UdpInvDestPorts != 0) {
			return no
		}
		if info.SrcPorts[0] == 0 && info.SrcPorts[1] == 0xffff && info.InvFlags&xt.UdpInvSrcPorts == 0 {
			return yes
		}
		return maybe
	case *xt.Tcp:
		return no
	case *xt.Comment:
		return yes
	}
	return maybe
}
