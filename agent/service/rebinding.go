// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/http"
	"net/netip"
	"net/url"

	"krping/agent/service/config"
)

// onlyByAddress refuses requests with a host name, if the agent listens at a loopback address.
// Otherwise a web page in a local user's browser could read what the agent serves, by making its
// own name resolve to this host (DNS rebinding).
func onlyByAddress(at config.Address, next http.Handler) http.Handler {
	own, err := netip.ParseAddrPort(at.Address)
	if at.Network == "unix" || err != nil || !own.Addr().IsLoopback() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLoopback(r.Host) {
			http.Error(w, "use the address "+at.Address+" instead of a host name", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopback reports whether a Host header names a loopback address or localhost.
func isLoopback(host string) bool {
	name := (&url.URL{Host: host}).Hostname()
	addr, err := netip.ParseAddr(name)
	return name == "localhost" || err == nil && addr.IsLoopback()
}
