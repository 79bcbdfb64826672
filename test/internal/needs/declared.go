// SPDX-License-Identifier: Apache-2.0

package needs

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
)

// names are the constants that a declaration may use.
var names = map[string]Need{
	"EBPF": EBPF, "StockKernel": StockKernel, "DebugKernel": DebugKernel, "RoCE": RoCE, "FaultBuild": FaultBuild,
	"Browser": Browser, "TwoHosts": TwoHosts,
	"Once": Once, "Ends": Ends, "Long": Long, "OneTransport": OneTransport, "RaceCheck": RaceCheck,
}

// Declared returns what the suite in a directory declares, and its number of tests.
func Declared(dir string) (list []Need, tests int, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, 0, err
	}
	var calls []*ast.CallExpr
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, 0, err
		}
		for _, decl := range file.Decls {
			if isTest(decl) {
				tests++
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && member(call.Fun) == "Suite" {
				calls = append(calls, call)
			}
			return true
		})
	}
	if len(calls) != 1 {
		return nil, 0, fmt.Errorf("%s: %d declarations of the suite's needs, want one: var _ = needs.Suite(...)", dir, len(calls))
	}
	for _, arg := range calls[0].Args {
		need, err := parseNeed(arg)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: needs.Suite: %w", dir, err)
		}
		list = append(list, need)
	}
	return list, tests, nil
}

func isTest(decl ast.Decl) bool {
	f, ok := decl.(*ast.FuncDecl)
	return ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain"
}

// member returns X of the expression needs.X, or "".
func member(expr ast.Expr) string {
	selector, ok := expr.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if pkg, ok := selector.X.(*ast.Ident); !ok || pkg.Name != "needs" {
		return ""
	}
	return selector.Sel.Name
}

func parseNeed(expr ast.Expr) (Need, error) {
	if need, ok := names[member(expr)]; ok {
		return need, nil
	}
	call, ok := expr.(*ast.CallExpr)
	if !ok || member(call.Fun) != "Kernel" || len(call.Args) != 1 {
		return "", errors.New("an argument is neither a constant of package needs nor needs.Kernel(...)")
	}
	version, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		return "", errors.New("needs.Kernel takes a literal string")
	}
	text, err := strconv.Unquote(version.Value)
	return Kernel(text), err
}
