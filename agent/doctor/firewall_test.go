// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"krping/agent/host/distro"
)

func verdictOf(kind expr.VerdictKind, chain ...string) expr.Any {
	v := &expr.Verdict{Kind: kind}
	if len(chain) > 0 {
		v.Chain = chain[0]
	}
	return v
}

var (
	drop   = verdictOf(expr.VerdictDrop)
	accept = verdictOf(expr.VerdictAccept)
)

// udp is "udp dport PORT" as nft compiles it.
func udp(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
	}
}

// state is "ct state BITS".
func state(bits uint32) []expr.Any {
	native := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(bits), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: native(0)},
	}
}

func inInterface(name string) []expr.Any {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}}
}

func source(addr string) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: netip.MustParseAddr(addr).AsSlice()},
	}
}

func rule(conditions []expr.Any, more ...expr.Any) *nftables.Rule {
	return &nftables.Rule{Handle: 7, Exprs: append(conditions, more...)}
}

// filter is "table inet filter { chain input { type filter hook input; ... } }".
func filter(policy nftables.ChainPolicy, rules ...*nftables.Rule) ruleset {
	table := &nftables.Table{Name: "filter", Family: nftables.TableFamilyINet}
	return ruleset{
		table:  table,
		chains: []*nftables.Chain{{Name: "input", Table: table, Hooknum: nftables.ChainHookInput, Policy: &policy}},
		rules:  map[string][]*nftables.Rule{"input": rules},
		sets:   map[string]*nftables.Set{}, elems: map[string][]nftables.SetElement{},
	}
}

func TestFirewall(t *testing.T) {
	const dropping, accepting = nftables.ChainPolicyDrop, nftables.ChainPolicyAccept
	peer := netip.MustParseAddr("192.168.77.2")
	jumping := filter(accepting, rule(nil, verdictOf(expr.VerdictJump, "roce")))
	jumping.rules["roce"] = []*nftables.Rule{rule(udp(4790), verdictOf(expr.VerdictReturn)), rule(udp(4791), &expr.Reject{})}
	lookup := append(udp(4791)[:3], &expr.Lookup{SourceRegister: 1, SetName: "ports"})
	listed := filter(dropping, rule(lookup, accept))
	listed.sets["ports"] = &nftables.Set{Interval: true}
	listed.elems["ports"] = []nftables.SetElement{{Key: []byte{0x20, 0}, IntervalEnd: true}, {Key: []byte{0x10, 0}}}
	pairs := filter(accepting, rule(lookup, drop))
	pairs.sets["ports"] = &nftables.Set{}
	pairs.elems["ports"] = []nftables.SetElement{{Key: []byte{192, 168, 77, 2, 0x12, 0xb7, 0, 0}}}
	mapped := filter(dropping, rule(append(state(8)[:1], &expr.Lookup{SourceRegister: 1, SetName: "map", IsDestRegSet: true})))
	mapped.sets["map"] = &nftables.Set{IsMap: true, KeyType: nftables.TypeVerdict}
	mapped.elems["map"] = []nftables.SetElement{{
		Key: binary.NativeEndian.AppendUint32(nil, expr.CtStateBitNEW),
		Val: []byte{8, 0, unix.NFTA_VERDICT_CODE, 0, 0, 0, 0, byte(expr.VerdictAccept)},
	}}
	iptables := filter(accepting, rule(nil, &expr.Match{Name: "udp", Info: &xt.Udp{SrcPorts: [2]uint16{0, 0xffff}, DstPorts: [2]uint16{4791, 4791}}}, &expr.Target{Name: "REJECT"}))
	iptables.table.Name, iptables.table.Family = "filter", nftables.TableFamilyIPv4
	iptables.chains[0].Name = "INPUT"
	iptables.rules["INPUT"] = iptables.rules["input"]
	firewalld := filter(dropping)
	firewalld.table.Name = "firewalld"
	zones := filter(dropping, rule(nil, verdictOf(expr.VerdictJump, "filter_INPUT_ZONES")))
	zones.table.Name = "firewalld"
	zones.rules["filter_INPUT_ZONES"] = []*nftables.Rule{rule(inInterface("eth1"), verdictOf(expr.VerdictGoto, "filter_IN_trusted")), rule(nil, verdictOf(expr.VerdictGoto, "filter_IN_storage"))}
	zones.rules["filter_IN_storage"] = []*nftables.Rule{rule(nil, verdictOf(expr.VerdictJump, "filter_IN_storage_allow")), rule(nil, &expr.Reject{})}
	ufw := filter(dropping)
	ufw.rules["ufw-user-input"] = []*nftables.Rule{rule(nil)}
	ufwOut := filter(dropping)
	ufwOut.rules["ufw-user-input"] = ufw.rules["ufw-user-input"]
	ufwOut.chains[0].Hooknum = nftables.ChainHookOutput
	debian := filter(dropping)
	debian.distro = distro.Parse("ID=debian", "")
	rhel := iptables
	rhel.distro = distro.Parse("ID=rhel", "")

	for _, tc := range []struct {
		name  string
		r     ruleset
		level Level
		words []string
	}{
		{"empty", filter(accepting), OK, []string{"4791"}},
		{"rule", filter(accepting, rule(udp(4791), &expr.Counter{}, drop)), Problem, []string{"table inet filter, chain input: rule 7", "IPv4", "from other hosts on eth0", "nft insert rule inet filter input udp dport 4791 accept"}},
		{"another port", filter(accepting, rule(udp(4790), drop)), OK, nil},
		{"policy", filter(dropping), Problem, []string{"its policy drops"}},
		{"accepted", filter(dropping, rule(udp(4791), accept)), OK, nil},
		{"accepted first", filter(accepting, rule(udp(4791), accept), rule(nil, drop)), OK, nil},
		{"established only", filter(dropping, rule(state(2|4), accept), rule(inInterface("lo"), accept)), Problem, []string{"policy"}},
		{"new", filter(dropping, rule(state(8), accept)), OK, nil},
		{"own interface", filter(dropping, rule(inInterface("eth0"), accept)), OK, nil},
		{"from the peer", filter(dropping, rule(source("192.168.77.2"), accept)), OK, nil},
		{"from others", filter(dropping, rule(source("192.168.77.3"), accept)), Problem, nil},
		{"limited", filter(dropping, rule(udp(4791), &expr.Limit{}, accept)), Warning, []string{"may drop"}},
		{"too many", filter(accepting, rule(udp(4791), &expr.Limit{Over: true}, drop)), Warning, []string{"rule 7"}},
		{"too many of any", filter(accepting, rule(nil, &expr.Limit{Over: true}, drop)), OK, nil},
		{"jump", jumping, Problem, []string{"table inet filter, chain input: rule 7 in chain roce"}},
		{"set of pairs", pairs, Warning, []string{"may drop"}},
		{"set", listed, OK, nil},
		{"map", mapped, OK, nil},
		{"iptables", iptables, Problem, []string{"iptables -t filter -I INPUT -p udp --dport 4791 -j ACCEPT"}},
		{"iptables of RHEL", rhel, Problem, []string{"service iptables save"}},
		{"nftables of Debian", debian, Problem, []string{"nft insert rule inet filter input udp dport 4791 accept; or, also after a boot", "/etc/nftables.conf"}},
		{"firewalld", firewalld, Problem, []string{"firewall-cmd --add-port=4791/udp && firewall-cmd --permanent --add-port=4791/udp"}},
		{"zone of firewalld", zones, Problem, []string{"firewall-cmd --zone=storage --add-port=4791/udp && firewall-cmd --permanent --zone=storage"}},
		{"ufw", ufw, Problem, []string{"ufw allow 4791/udp"}},
		{"ufw, outgoing", ufwOut, Problem, []string{"ufw allow out 4791/udp"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eth0, _ := lab().netdev("eth0")
			want(t, firewallFinding([]ruleset{tc.r}, eth0, packetsOf(eth0, Options{Peer: peer})), tc.level, tc.words...)
		})
	}
}

func TestHardwareBypassesFirewall(t *testing.T) {
	h := lab()
	h.devices[0].kind = ""
	if f, dropsSent := h.firewallFindings(Options{}); f != nil || dropsSent {
		t.Errorf("%v, %v", f, dropsSent)
	}
}

// Only a rule in an output chain drops outgoing packets.
func TestMayDropSent(t *testing.T) {
	eth0, _ := lab().netdev("eth0")
	r := filter(nftables.ChainPolicyAccept, rule(udp(4791), drop))
	if mayDropSent([]ruleset{r}, packetsOf(eth0, Options{})) {
		t.Error("a rule in an input chain counts for outgoing packets")
	}
	r.chains[0].Hooknum = nftables.ChainHookOutput
	if !mayDropSent([]ruleset{r}, packetsOf(eth0, Options{})) {
		t.Error("a rule in an output chain does not count for outgoing packets")
	}
}
