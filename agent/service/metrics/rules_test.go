// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	dto "github.com/prometheus/client_model/go"
)

var (
	metricName  = regexp.MustCompile(`\b(krping_[a-z_]*[a-z]|up)\b(?:\{([^}]*)\})?`)
	labelMatch  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"`)
	grouping    = regexp.MustCompile(`\b(?:by|on|group_left)\s*\(([^)]*)\)`)
	placeholder = regexp.MustCompile(`{{\s*(?:\$labels\.)?([a-z_]+)\s*}}`)
)

// exported returns the labels of each metric that the agent exports, plus those Prometheus adds.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	labels := map[string][]string{"up": {"instance", "job"}}
	for name, f := range gather(t, sources(t, "../../../proc/testdata")) {
		own := []string{"instance", "job"}
		for _, l := range f.GetMetric()[0].GetLabel() {
			own = append(own, l.GetName())
		}
		labels[name] = own
		if f.GetType() == dto.MetricType_HISTOGRAM {
			labels[name+"_count"], labels[name+"_sum"] = own, own
			labels[name+"_bucket"] = append(slices.Clone(own), "le")
		}
	}
	return labels
}

// checkQuery checks that the metrics and labels in a query exist, and the labels in texts that show
// its result.
func checkQuery(t *testing.T, exported map[string][]string, where, query string, texts ...string) {
	t.Helper()
	var all []string // labels of all its metrics
	names := metricName.FindAllStringSubmatch(query, -1)
	if len(names) == 0 {
		t.Errorf("%s: %q has no metric of krping and not up", where, query)
	}
	for _, name := range names {
		labels, ok := exported[name[1]]
		if !ok {
			t.Errorf("%s: there is no metric %s", where, name[1])
		}
		for _, label := range labelMatch.FindAllStringSubmatch(name[2], -1) {
			if !slices.Contains(labels, label[1]) {
				t.Errorf("%s: %s has no label %s", where, name[1], label[1])
			}
		}
		all = append(all, labels...)
	}
	var used []string
	for _, group := range grouping.FindAllStringSubmatch(query, -1) {
		used = append(used, strings.FieldsFunc(group[1], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	for _, text := range texts {
		for _, label := range placeholder.FindAllStringSubmatch(text, -1) {
			used = append(used, label[1])
		}
	}
	for _, label := range used {
		if !slices.Contains(all, label) {
			t.Errorf("%s: none of its metrics has the label %s", where, label)
		}
	}
}

func TestDashboard(t *testing.T) {
	data, err := os.ReadFile("grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Name, Type, Query string }
		}
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	exported := exported(t)
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			checkQuery(t, exported, p.Title, target.Expr, target.LegendFormat)
		}
		if p.GridPos.X+p.GridPos.W > 24 || len(p.Targets) == 0 {
			t.Errorf("%s: %+v, %d queries", p.Title, p.GridPos, len(p.Targets))
		}
	}
	if len(dashboard.Panels) < 10 {
		t.Errorf("%d panels", len(dashboard.Panels))
	}
	for _, v := range dashboard.Templating.List {
		if v.Type == "query" {
			checkQuery(t, exported, v.Name, v.Query)
		}
	}
}

func TestAlerts(t *testing.T) {
	data, err := os.ReadFile("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.UnmarshalWithOptions(data, &file, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	exported := exported(t)
	alerts := map[string]bool{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			checkQuery(t, exported, r.Alert, r.Expr, r.Annotations["summary"], r.Annotations["description"])
			if alerts[r.Alert] || r.Annotations["summary"] == "" || !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) {
				t.Errorf("%+v: named twice, or without a summary or severity", r)
			}
			alerts[r.Alert] = true
		}
	}
	if len(alerts) < 10 {
		t.Errorf("%d alerts", len(alerts))
	}
}

// alerts_test.yaml has what fires when, of several hosts.
func TestWhatFires(t *testing.T) {
	for _, arguments := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		if out, err := exec.Command("promtool", arguments...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s (package prometheus): %v\n%s", strings.Join(arguments, " "), err, out)
		}
	}
}
