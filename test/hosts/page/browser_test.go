// SPDX-License-Identifier: Apache-2.0

//go:build lab

package page

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"krping/test/internal/late"
	"krping/test/lab"
)

// browser is a headless Chromium with one page. It records what a user would not see: errors in the console,
// and requests to other hosts than the page's.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex
	host   string
	errors []string
}

func openBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("Chromium is not installed (package chromium): %v", err)
	}
	// As root Chromium has no sandbox. It only opens the test's own page.
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	b := &browser{t: t}
	b.ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if err := chromedp.Listen(b.ctx, b.record); err != nil { // starts Chromium
		t.Fatal(err)
	}
	call(b, network.Enable, network.EnableParams{})
	call(b, cdplog.Enable, cdp.Empty{})
	return b
}

func (b *browser) record(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.errors = append(b.errors, e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			b.errors = append(b.errors, fmt.Sprintf("console.%s: %s", e.Type, e.Args[0].Value))
		}
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == cdplog.EntryLevelError || e.Entry.Level == cdplog.EntryLevelWarning {
			b.errors = append(b.errors, fmt.Sprintf("%s: %s (%s)", e.Entry.Level, e.Entry.Text, e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(e.Request.URL); err != nil || u.Host != b.host {
			b.errors = append(b.errors, "request to "+e.Request.URL)
		}
	}
}

// takeErrors returns what was recorded since the last call.
func (b *browser) takeErrors() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	errors := b.errors
	b.errors = nil
	return errors
}

const browserLimit = time.Minute // of one action

// run runs an action in the browser and returns its result.
func run[T any](b *browser, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, browserLimit)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatalf("browser: %v", err)
	}
	return v
}

// call runs a command of Chromium's protocol.
func call[P, R any](b *browser, command cdp.Command[P, R], params P) {
	b.t.Helper()
	run(b, func(ctx context.Context, target *chromedp.Target) (R, error) {
		return cdp.Call(ctx, target, command, params)
	})
}

func (b *browser) visit(address string) {
	b.t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	b.host = u.Host
	b.mu.Unlock()
	run(b, chromedp.Navigate(address))
}

// value returns the value of a JavaScript expression.
func value[T any](b *browser, expression string) T {
	b.t.Helper()
	return run(b, chromedp.Evaluate[T](expression))
}

func (b *browser) text(selector string) string {
	b.t.Helper()
	return value[string](b, fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector))
}

// shows waits until the text of an element contains want. The test fails after limit (late.Limit).
func (b *browser) shows(selector, want string, limit time.Duration) {
	b.t.Helper()
	b.matches(selector, limit, regexp.QuoteMeta(want))
}

// matches waits until the text of an element matches all patterns at the same time.
func (b *browser) matches(selector string, limit time.Duration, patterns ...string) {
	b.t.Helper()
	limit = late.Limit(limit)
	got := ""
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		got = b.text(selector)
		if !slices.ContainsFunc(patterns, func(p string) bool { return !regexp.MustCompile(p).MatchString(got) }) {
			return
		}
	}
	late.Waited(b.t, limit, "%q in %s, which shows %q", patterns, selector, got)
}

// click presses the first element that matches.
func (b *browser) click(selector string) {
	b.t.Helper()
	run(b, chromedp.Click(chromedp.CSS(selector)))
}

// screen is a screen size and colour scheme.
type screen struct {
	name          string
	width, height int64
	dark          bool
	phone         bool
}

// screenshot saves a picture of the whole page.
func (b *browser) screenshot(l screen) {
	b.t.Helper()
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	scale := 1.0
	if l.phone {
		scale = 2
	}
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: l.width, Height: l.height, DeviceScaleFactor: scale, Mobile: l.phone,
	})
	time.Sleep(1500 * time.Millisecond) // after the next sample it is drawn in its new size and colours
	if wide := value[int](b, "document.documentElement.scrollWidth"); int64(wide) > l.width {
		b.t.Errorf("%s: the page is %d pixels wide, the screen %d", l.name, wide, l.width)
	}
	png := run(b, chromedp.FullScreenshot(100))
	dir := filepath.Join(lab.Build(), "results", "page")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, l.name+"-"+os.Getenv("KERNEL")+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}
