// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"

	"github.com/goccy/go-yaml/ast"
)

// Limits for aliases, which may refer to themselves or to each other.
const (
	maxDepth  = 16
	maxMerged = 10000 // entries that << merges, in the whole file
)

// findAnchors notes what the file's aliases may stand for.
func (d *decoder) findAnchors(root ast.Node) {
	d.anchors = map[string]ast.Node{}
	ast.Walk(visitor(func(n ast.Node) {
		anchor, ok := n.(*ast.AnchorNode)
		if !ok || tokenOf(anchor.Name) == nil {
			return
		}
		name := tokenOf(anchor.Name).Value
		if d.anchors[name] != nil {
			d.fail(tokenOf(anchor), "anchor &%s is given twice", name)
			return
		}
		d.anchors[name] = anchor.Value
	}), root)
}

type visitor func(ast.Node)

func (v visitor) Visit(n ast.Node) ast.Visitor {
	v(n)
	return v
}

// resolve returns what an anchor, an alias or a tag stands for, and other nodes as they are. It reports an
// alias that stands for nothing.
func (d *decoder) resolve(n ast.Node) ast.Node {
	for range maxDepth {
		switch v := n.(type) {
		case *ast.AnchorNode:
			n = v.Value
		case *ast.TagNode:
			n = v.Value
		case *ast.AliasNode:
			name := ""
			if at := tokenOf(v.Value); at != nil {
				name = at.Value
			}
			target := d.anchors[name]
			if target == nil {
				d.fail(tokenOf(v), "alias *%s: no anchor &%[1]s in the file", name)
				return &ast.NullNode{BaseNode: &ast.BaseNode{}, Token: tokenOf(v)}
			}
			n = target
		default:
			return n
		}
	}
	d.fail(tokenOf(n), "an alias refers to itself")
	return &ast.NullNode{BaseNode: &ast.BaseNode{}, Token: tokenOf(n)}
}

// entries returns the entries of a mapping, and those that << merges into it, unless the mapping has their
// keys itself.
func (d *decoder) entries(m *ast.MappingNode) []*ast.MappingValueNode { return d.merge(m, 0) }

func (d *decoder) merge(m *ast.MappingNode, depth int) []*ast.MappingValueNode {
	var own, merged []*ast.MappingValueNode
	for _, entry := range m.Values {
		if _, ok := entry.Key.(*ast.MergeKeyNode); !ok {
			own = append(own, entry)
			continue
		}
		sources := []ast.Node{entry.Value}
		if list, ok := d.resolve(entry.Value).(*ast.SequenceNode); ok {
			sources = list.Values
		}
		for _, source := range sources {
			from, ok := d.resolve(source).(*ast.MappingNode)
			switch {
			case !ok:
				d.fail(tokenOf(source), "<< must have a mapping, or a list of them")
				continue
			case depth == maxDepth || d.merged > maxMerged:
				d.fail(tokenOf(source), "<< merges too much, or itself")
				return own
			}
			for _, e := range d.merge(from, depth+1) {
				d.merged++
				if !has(merged, e) {
					merged = append(merged, e)
				}
			}
		}
	}
	return append(slices.DeleteFunc(merged, func(e *ast.MappingValueNode) bool { return has(own, e) }), own...)
}

// has reports whether one of the entries has the same key.
func has(entries []*ast.MappingValueNode, entry *ast.MappingValueNode) bool {
	return slices.ContainsFunc(entries, func(e *ast.MappingValueNode) bool {
		return e.Key.GetToken().Value == entry.Key.GetToken().Value
	})
}
