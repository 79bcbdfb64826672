// SPDX-License-Identifier: Apache-2.0

package bench

import "testing"

func TestPerftestColumn(t *testing.T) {
	const bandwidth = ` local address: LID 0000
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 64         1000           0.010506            0.009488            0.018532
`
	const latency = ` #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 64      1000          72.79          500.14       76.11    	       82.92       	36.43  		339.12  		500.14
`
	for _, tc := range []struct {
		out, head string
		want      float64
	}{{bandwidth, "BW peak", 0.010506}, {bandwidth, "BW average", 0.009488}, {latency, "t_min", 72.79}, {latency, "t_typical", 76.11}} {
		if got, err := perftestColumn(tc.head)(tc.out); err != nil || got != tc.want {
			t.Errorf("%s: %v, %v, want %v", tc.head, got, err, tc.want)
		}
	}
	for _, out := range []string{"", " #bytes BW peak[x]\n", "Couldn't connect"} {
		if got, err := perftestColumn("BW peak")(out); err == nil {
			t.Errorf("%q: %v", out, got)
		}
	}
}
