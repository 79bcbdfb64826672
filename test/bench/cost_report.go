// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// CostContenders returns the contenders whose instructions are counted.
func CostContenders() []string { return []string{kernelTarget, bridgeTarget, nvmeRDMA} }

// WriteCosts writes cost.json, cost.md and cost-functions.txt into a directory, and the second to out, too.
func WriteCosts(dir string, out io.Writer, kernel string, costs []JobCost) error {
	data, err := json.MarshalIndent(struct {
		Kernel string    `json:"kernel"`
		Costs  []JobCost `json:"costs"`
	}{kernel, costs}, "", "\t")
	if err != nil {
		return err
	}
	table := costTable(costs) + "\n" + layerTable(costs) + "\n" + callTable(costs) + tracingTable(costs)
	_, printed := io.WriteString(out, table)
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "cost.json"), append(data, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "cost.md"), []byte(table), 0o644),
		os.WriteFile(filepath.Join(dir, "cost-functions.txt"), []byte(functionList(costs)), 0o644),
		printed)
}

// costTable returns the instructions of each job, with nvme-rdma's divided by them.
func costTable(costs []JobCost) string {
	var b strings.Builder
	b.WriteString("| job | contender | server | client | both | of nvme-rdma | with a NIC | of nvme-rdma |\n|---|---|---|---|---|---|---|---|\n")
	for _, c := range costs {
		m, all, nic := c.Median(), "", ""
		if i := slices.IndexFunc(costs, func(o JobCost) bool { return o.Contender == nvmeRDMA && o.Job == c.Job }); i >= 0 && c.Contender != nvmeRDMA {
			peer := costs[i].Median()
			all, nic = fmt.Sprintf("%.2f", peer.All()/m.All()), fmt.Sprintf("%.2f", peer.OnNIC()/m.OnNIC())
		}
		fmt.Fprintf(&b, "| %s | %s | %.0f | %.0f | %.0f | %s | %.0f | %s |\n", c.Job, c.Contender, m.Server.All, m.Client.All, m.All(), all, m.OnNIC(), nic)
	}
	return b.String()
}

// medianClient returns the median of the rounds by the client's part.
func (c JobCost) medianClient() HostCost {
	rounds := slices.SortedFunc(slices.Values(c.Rounds), func(a, b IOCost) int { return int(a.Client.All - b.Client.All) })
	return rounds[len(rounds)/2].Client
}

// tracingTable returns what tracers add to the client's part of an I/O, and how much of that is the layer of tracing: the
// rest is mostly what they disturb. It is empty without tracers.
func tracingTable(costs []JobCost) string {
	var rows strings.Builder
	for _, c := range costs {
		i := slices.IndexFunc(costs, func(o JobCost) bool { return o.Contender == kernelTarget && o.Job == c.Job })
		if i < 0 || !isTraced(c.Contender) {
			continue
		}
		with, without := c.medianClient(), costs[i].medianClient()
		fmt.Fprintf(&rows, "| %s | %s | %.0f | %.0f |\n", c.Job, strings.TrimPrefix(c.Contender, tracedPrefix), with.All-without.All, with.Layers[layerTracing])
	}
	if rows.Len() == 0 {
		return ""
	}
	return "\n| job | tracer | adds | itself |\n|---|---|---|---|\n" + rows.String()
}

// layerTable returns the instructions of each layer, server + client.
func layerTable(costs []JobCost) string {
	return hostTable(costs, Layers(), 0, func(h HostCost) map[Layer]float64 { return h.Layers })
}

// callTable returns the calls of an I/O, server + client.
func callTable(costs []JobCost) string {
	return hostTable(costs, calls, 2, func(h HostCost) map[Call]float64 { return h.Calls })
}

// hostTable returns a row for each job with figures of both hosts, which have a number of decimals.
func hostTable[Column ~string](costs []JobCost, columns []Column, decimals int, figures func(HostCost) map[Column]float64) string {
	var b strings.Builder
	b.WriteString("| job | contender |")
	for _, column := range columns {
		fmt.Fprintf(&b, " %s |", column)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, c := range costs {
		fmt.Fprintf(&b, "| %s | %s |", c.Job, c.Contender)
		server, client := figures(c.Median().Server), figures(c.Median().Client)
		for _, column := range columns {
			fmt.Fprintf(&b, " %.*f + %.*f |", decimals, server[column], decimals, client[column])
		}
		b.WriteString("\n")
	}
	return b.String()
}

const shownFunctions = 60

// functionList returns the functions that cost most.
func functionList(costs []JobCost) string {
	var b strings.Builder
	for _, c := range costs {
		for i, h := range []HostCost{c.Median().Server, c.Median().Client} {
			host := []string{"server", "client"}[i]
			fmt.Fprintf(&b, "%s, %s, %s: %.0f instructions an I/O\n", c.Job, c.Contender, host, h.All)
			functions := make([]Function, 0, len(h.functions))
			for f := range h.functions {
				functions = append(functions, f)
			}
			slices.SortFunc(functions, func(a, b Function) int { return int(h.functions[b] - h.functions[a]) })
			for _, f := range functions[:min(len(functions), shownFunctions)] {
				fmt.Fprintf(&b, "%9.0f  %-24s %s\n", h.functions[f], layerOf(f, i == 0), describeFunction(f))
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

func describeFunction(f Function) string {
	switch {
	case f.User && f.Name == "":
		return "(user space)"
	case f.Module != "":
		return f.Name + " [" + f.Module + "]"
	}
	return f.Name
}
