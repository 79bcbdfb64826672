// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"krping/agent/service/config"
)

func TestOnlyByAddress(t *testing.T) {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	for _, c := range []struct {
		network, address, host string
		want                   int
	}{
		{"tcp", "127.0.0.1:9450", "127.0.0.1:9450", 200}, {"tcp", "127.0.0.1:9450", "localhost:9450", 200}, {"tcp", "127.0.0.1:9450", "localhost", 200},
		{"tcp", "127.0.0.1:9450", "evil.example:9450", 403}, {"tcp", "[::1]:9450", "evil.example", 403}, {"tcp", "[::1]:9450", "[::1]:9450", 200},
		{"tcp", "127.0.0.1:9450", "10.0.0.1:9450", 403}, {"tcp", "127.0.0.1:9450", "", 403},
		{"tcp", "10.0.0.1:9450", "storage1:9450", 200}, {"unix", "/run/krping/agent.sock", "agent", 200},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = c.host
		w := httptest.NewRecorder()
		onlyByAddress(config.Address{Network: c.network, Address: c.address}, ok).ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("host %q at %s: %d, want %d", c.host, c.address, w.Code, c.want)
		}
	}
}
