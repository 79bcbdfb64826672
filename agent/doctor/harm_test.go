// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// harmful matches commands that end, unload, delete or take away something that may be in use.
var harmful = regexp.MustCompile(`\b(kill|pkill|killall|fuser -k|rmmod|reboot|shutdown|poweroff|umount)\b` +
	`|modprobe -r|insmod -f|\bunload|link del|link delete|dev reload` +
	`|systemctl (stop|restart|disable|kill|mask)|\bkrpingctl stop\b|target remove` +
	`|nft (delete|flush)|tables [^&;]*-[FDX] |ip (addr|link|route) (del|flush)|ip link set \S+ down` +
	`|wipefs|mkfs|\bdd if|\brm -?[a-z]* `)

// A fix with such a command says before it when it may be run. isGuarded reports whether it does.
func isGuarded(text string) bool {
	for _, condition := range []string{"when no", "when nothing", "when these", "if nothing uses", "in a maintenance window", "once no other"} {
		if at := strings.Index(text, condition); at >= 0 && at < harmful.FindStringIndex(text)[0] {
			return true
		}
	}
	return false
}

// harmless are texts with such a command that does no harm, with the reason.
var harmless = map[string]string{
	"krpingctl link del %s && krpingctl link add %s --netdev %s":                                                        "of a device that serves nothing, or with a condition in front",
	"krpingctl link del %s && krpingctl link add %s --netdev %s; or, also for the next time: systemctl enable --now %s": "of a device that makes no connections; with a condition in front if it has some",
	" and a reboot": "the module is not loaded then: nothing of it serves",
}

// No text of this package and of those that explain failures advises to end what serves.
func TestNoFixDoesHarm(t *testing.T) {
	found := 0
	for _, dir := range []string{".", "../host/distro", "../host/kernel", "../host/rdmalink", "../host/softroce"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", dir, files, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				literal, isLiteral := n.(*ast.BasicLit)
				if !isLiteral || literal.Kind != token.STRING {
					return true
				}
				found++
				if text, _ := strconv.Unquote(literal.Value); !isHarmless(text) {
					t.Errorf("%s: %q ends or takes away what may be in use", file, text)
				}
				return true
			})
		}
	}
	if found < 100 {
		t.Errorf("only %d texts were read", found)
	}
}

func isHarmless(text string) bool {
	if !harmful.MatchString(text) || isGuarded(text) {
		return true
	}
	for known := range harmless {
		if text == known || strings.HasPrefix(known, " ") && strings.Contains(text, known) {
			return true
		}
	}
	return false
}

func TestHarmful(t *testing.T) {
	for _, text := range []string{"kill 449", "modprobe -r rdma_rxe", "systemctl restart krping-bridge@vol0", "ip link set eth0 down", "unload and reload the driver of mlx5_0"} {
		if !harmful.MatchString(text) || isGuarded(text) {
			t.Errorf("%q is harmful", text)
		}
	}
	for _, text := range []string{"systemctl enable --now krping-rxe@eth0", "ip link set eth0 up", "modprobe rdma_rxe", "rdma link show rxe0"} {
		if harmful.MatchString(text) {
			t.Errorf("%q is not harmful", text)
		}
	}
	if isGuarded("kill 7; when nothing uses it") || !isGuarded("when nothing uses it: kill 7") {
		t.Error("the condition comes first")
	}
}
