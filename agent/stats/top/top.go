// SPDX-License-Identifier: Apache-2.0

// Package top shows samples of sessions in a terminal, as top(1) shows processes.
package top

import (
	"context"
	"fmt"
	"os/signal"
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/sys/unix"

	"krping/agent/stats/sampler"
)

// Run shows a sample per interval on this process's terminal until the user quits or ctx ends. It
// restores the terminal.
func Run(ctx context.Context, samples *sampler.Sampler, interval time.Duration, host string) error {
	m := &model{view: view{host: host, styles: coloured()}}
	program := tea.NewProgram(m, tea.WithoutSignalHandler())
	// These would end the process without restoring the terminal.
	ctx, cancel := signal.NotifyContext(ctx, unix.SIGHUP, unix.SIGQUIT)
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		_ = samples.Run(ctx, interval, func(s sampler.Sample) error { // fails only if this function fails
			program.Send(s)
			return nil
		})
	}()
	stop := context.AfterFunc(ctx, program.Quit)
	defer stop()
	_, err := program.Run()
	cancel()
	<-sampled
	if err != nil {
		return fmt.Errorf("show the samples: %w", err)
	}
	return nil
}

// model is the state of the screen.
type model struct {
	view    view // with an older history while paused
	shown   sampler.Sample
	newest  sampler.Sample
	history map[key]history
}

// historyLength exceeds the columns of terminals.
const historyLength = 400

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.view.width, m.view.height = msg.Width, msg.Height
	case sampler.Sample:
		m.take(msg)
	case tea.KeyPressMsg:
		return m, m.press(msg.String())
	}
	return m, nil
}

// View implements tea.Model.
func (m *model) View() tea.View {
	text := ""
	switch {
	case m.view.width == 0: // not known yet
	case m.shown.Time.IsZero():
		text = clip([]string{" Waiting for the end of the first interval."}, m.view.width, m.view.height)
	default:
		text = render(m.shown, m.view)
	}
	v := tea.NewView(text)
	v.AltScreen = true
	v.WindowTitle = "krpingctl top"
	return v
}

// take keeps a sample, and shows it unless the screen is paused.
func (m *model) take(s sampler.Sample) {
	past := m.history
	m.newest, m.history = s, map[key]history{} // drops sessions that have gone
	for _, session := range s.Sessions {
		h := past[keyOf(session)]
		m.history[keyOf(session)] = history{push(h.read, session.Read.BytesPerSecond), push(h.write, session.Write.BytesPerSecond)}
	}
	m.show()
}

// push returns a copy of values with v appended. A paused view may still use values.
func push(values []float64, v float64) []float64 {
	return append(slices.Clone(values[max(0, len(values)-historyLength+1):]), v)
}

func (m *model) show() {
	if !m.view.paused {
		m.shown, m.view.history = m.newest, m.history
	}
}

func (m *model) press(key string) tea.Cmd {
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "s":
		m.view.order = (m.view.order + 1) % orders
	case "p", "space":
		m.view.paused = !m.view.paused
		m.show()
	case "?":
		m.view.help = !m.view.help
	case "esc":
		m.view.help = false
	}
	return nil
}

// move selects the session that many rows below the selected one.
func (m *model) move(rows int) {
	sessions := m.view.order.sorted(m.shown.Sessions)
	if len(sessions) == 0 {
		return
	}
	i := m.view.index(sessions) + rows
	m.view.selected = keyOf(sessions[min(max(i, 0), len(sessions)-1)])
}
