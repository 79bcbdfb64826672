// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// callbacks are the module's. Each has to exist.
var callbacks = Callbacks{
	"krping_target_cmd_finished": "the completion callback of the store: it only puts the command on a list and wakes the worker",
}

func TestModule(t *testing.T) {
	tree, err := Load(os.DirFS("../../kmod"))
	if err != nil {
		t.Fatal(err)
	}
	if len(tree.sources) < 50 {
		t.Fatalf("only %d C files found", len(tree.sources))
	}
	for _, problem := range tree.Problems(callbacks) {
		t.Error(problem)
	}
	var defined []string
	for _, s := range tree.sources {
		for _, f := range s.functions() {
			defined = append(defined, f.name)
		}
	}
	for name := range callbacks {
		if !slices.Contains(defined, name) {
			t.Errorf("callback %s does not exist: remove it from the list", name)
		}
	}
}

// good is a small tree that keeps all rules.
var good = map[string]string{
	"main.c": `#include "client/client.h"

static int __init krping_init(void)
{
	return krping_client_init();
}
`,
	"lib/log.h": `#define krping_err(fmt, ...) pr_err(fmt)
`,
	"client/client.h": `#include "lib/log.h"

/* struct krping_session is not defined here. */
struct krping_queue {
	struct krping_session *s;
};

static inline int krping_client_up(void)
{
	return 1;
}
`,
	"client/client.c": `// SPDX-License-Identifier: GPL-2.0
#include "client/client.h"

int krping_clients = 1;

int krping_client_init(void)
{
	krping_err("rq_crc(");
	return krping_send(
			1);
}
`,
	"client/send.c": `#include "client/client.h"

struct send {
	int a;
};

/* krping_client_init() comes first. */
int krping_send(int a)
{
	callback = krping_client_init;
	return helper(a);
}

static int helper(int a)
{
	return a;
}
`,
}

func TestRules(t *testing.T) {
	tests := []struct {
		name    string
		changes map[string]string // files that are added, or replace those of good
		want    []string          // what each problem contains, in order
	}{
		{"good", nil, nil},
		{"include of a higher folder", map[string]string{"lib/log.h": "#include \"client/client.h\"\n"},
			[]string{`lib/log.h: includes "client/client.h"`}},
		{"include of a folder beside", map[string]string{"target/a.c": "#include \"client/client.h\"\n"},
			[]string{`target/a.c: includes "client/client.h"`}},
		{"include of the client by local", map[string]string{"local/a.c": "#include \"client/client.h\"\n"}, nil},
		{"include of the options", map[string]string{"lib/a.h": "#include \"options.h\"\n#include \"uapi/krping.h\"\n"}, nil},
		{"include of the control file", map[string]string{"lib/a.h": "#include \"control.h\"\n"},
			[]string{`lib/a.h: includes "control.h"`}},
		{"include of the user-space shim", map[string]string{"lib/a.h": "#include \"fuzz/kernel_shim.h\"\n", "options.h": "#include \"fuzz/kernel_shim.h\"\n"},
			[]string{`lib/a.h: includes "fuzz/kernel_shim.h"`}},
		{"unknown folder", map[string]string{"misc/a.c": "\n"}, []string{"misc/a.c: folder misc"}},
		{"circle of two", map[string]string{"client/send.c": "int krping_send(int a)\n{\n\treturn krping_client_init();\n}\n"},
			[]string{"client/client.c: is in a circle with client/send.c, by its calls of krping_send",
				"client/send.c: is in a circle with client/client.c, by its calls of krping_client_init"}},
		{"circle of three", map[string]string{
			"client/send.c": "int krping_send(int a)\n{\n\treturn krping_post(a);\n}\n",
			"client/post.c": "int krping_post(int a)\n{\n\tif (a)\n\t\treturn krping_client_init();\n\treturn 0;\n}\n"},
			[]string{"client/client.c: is in a circle", "client/post.c: is in a circle", "client/send.c: is in a circle"}},
		{"circle through an inline function", map[string]string{
			"client/inline.h": "static inline int krping_inline(void)\n{\n\treturn krping_client_init();\n}\n",
			"client/send.c":   "int krping_send(int a)\n{\n\treturn krping_inline();\n}\n"},
			[]string{"client/client.c: is in a circle", "client/send.c: is in a circle"}},
		{"circle by an allowed callback", map[string]string{"client/send.c": "int krping_send(int a)\n{\n\treturn krping_finished(a);\n}\n",
			"client/client.c": "int krping_finished(int a)\n{\n\treturn 0;\n}\n\nint krping_client_init(void)\n{\n\treturn krping_send(1);\n}\n"}, nil},
		{"long file", map[string]string{"client/long.c": strings.Repeat("\n", maxLines+1)}, []string{"client/long.c: has 801 lines"}},
		{"file of the most lines", map[string]string{"client/long.c": strings.Repeat("\n", maxLines)}, nil},
		{"function without prefix", map[string]string{"client/a.c": "struct request *rq_of(int a,\n\t\t\t   int b)\n{\n\treturn NULL;\n}\n"},
			[]string{"client/a.c: global function rq_of"}},
		{"inline function without prefix", map[string]string{"client/a.h": "static inline u32 crc_end(u32 crc)\n{\n\treturn ~crc;\n}\n"},
			[]string{"client/a.h: global function crc_end"}},
		{"variable without prefix", map[string]string{"client/a.c": "struct workqueue_struct *recv_wq;\nstatic int nr;\nstruct krping_conn;\n"},
			[]string{"client/a.c: global variable recv_wq"}},
		{"variable with a value, without prefix", map[string]string{"client/a.c": "const struct krping_test ping_test = {\n\t.a = 1,\n};\n"},
			[]string{"client/a.c: global variable ping_test"}},
		{"type without prefix", map[string]string{"client/a.h": "enum kind {\n\tA,\n};\n"}, []string{"client/a.h: global type kind"}},
		{"two types of one name", map[string]string{"client/a.c": "struct send {\n\tint a;\n};\n"},
			[]string{"client/send.c: type send is also defined in client/a.c"}},
		{"files outside the module", map[string]string{"fuzz/a.c": "int main(void)\n{\n}\n", "x.mod.c": "int main(void)\n{\n}\n"}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fsys := fstest.MapFS{}
			for _, files := range []map[string]string{good, test.changes} {
				for name, text := range files {
					fsys[name] = &fstest.MapFile{Data: []byte(text)}
				}
			}
			tree, err := Load(fsys)
			if err != nil {
				t.Fatal(err)
			}
			got := tree.Problems(Callbacks{"krping_finished": "a completion"})
			if len(got) != len(test.want) {
				t.Fatalf("problems %q, want %q", got, test.want)
			}
			for i, want := range test.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("problem %q, want %q", got[i], want)
				}
			}
		})
	}
}
