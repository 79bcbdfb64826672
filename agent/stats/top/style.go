// SPDX-License-Identifier: Apache-2.0

package top

import "charm.land/lipgloss/v2"

// styles format parts of the screen.
type styles struct {
	title, head, dim, good, bad, selected, read, write func(...string) string
}

// plain returns styles that change nothing.
func plain() styles {
	same := func(text ...string) string { return text[0] }
	return styles{same, same, same, same, same, same, same, same}
}

// coloured returns styles with the terminal's 16 colours, which suit dark and light terminals.
func coloured() styles {
	s := lipgloss.NewStyle()
	colour := func(number string) lipgloss.Style { return s.Foreground(lipgloss.Color(number)) }
	return styles{
		title: s.Bold(true).Render, head: s.Bold(true).Underline(true).Render, dim: s.Faint(true).Render,
		good: colour("2").Render, bad: colour("1").Bold(true).Render, selected: s.Reverse(true).Render,
		read: colour("6").Render, write: colour("3").Render,
	}
}
