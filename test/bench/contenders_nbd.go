// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
)

// networkBlock is the kernel's nbd with Debian's nbd-server.
type networkBlock struct{ port int }

const nbdDevice = "/dev/nbd0"

func (n *networkBlock) name() string { return nbd }

func (n *networkBlock) about() string {
	return "nbd-client and nbd-server, one connection per CPU; writes stay in the page cache of the server until a flush"
}

func (n *networkBlock) attach(ctx context.Context, s *site, disk string) (string, error) {
	serve := fmt.Sprintf(`cat > /run/nbd.conf <<.
[generic]
	listenaddr = %s
	port = %d
[bench]
	exportname = %[3]s
	flush = true
.
nbd-server -C /run/nbd.conf -p /run/nbd.pid
for i in $(seq 100); do
	test -s /run/nbd.pid && break
	sleep 0.1
done
kill -0 $(cat /run/nbd.pid)
dd if=%[3]s of=/dev/null bs=1M # fills the page cache, which no other contender uses`, s.server.Addr(), n.port, disk)
	if _, err := s.run(ctx, s.server, serve); err != nil {
		return "", err
	}
	_, err := s.run(ctx, s.client, fmt.Sprintf("modprobe nbd nbds_max=1\nnbd-client %s %d %s -N bench -C $(nproc) -t 60",
		s.server.Addr(), n.port, nbdDevice))
	return nbdDevice, err
}

func (n *networkBlock) detach(ctx context.Context, s *site) error {
	_, client := s.run(ctx, s.client, fmt.Sprintf("! nbd-client -c %[1]s || nbd-client -d %[1]s", nbdDevice))
	_, server := s.run(ctx, s.server, "test -s /run/nbd.pid || exit 0\nkill $(cat /run/nbd.pid)\nrm -f /run/nbd.pid")
	return errors.Join(client, server)
}
