// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/http"
	"net/netip"
	"net/url"

	"krping/agent/service/config"
)

// onlyByAddress refuses requests for a host name at a loopback address: a page of the web whose
// name was made to resolve to this host (DNS rebinding) would read what the agent serves in the
// browser of a user here.
func onlyByAddress(at config.Address, next http.Handler) http.Handler {
	own, err := netip.ParseAddrPort(at.Address)
	if at.Network == "unix" || err != nil || !own.Addr().IsLoopback() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLoopback(r.Host) {
			http.Error(w, "ask for "+at.Address, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopback judges a Host header.
func isLoopback(host string) bool {
	name := (&url.URL{Host: host}).Hostname()
	addr, err := netip.ParseAddr(name)
	return name == "localhost" || err == nil && addr.IsLoopback()
}
