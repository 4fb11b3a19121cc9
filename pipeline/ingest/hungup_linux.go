package ingest

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// hungUp reports whether the client has closed its side of a connection, also while there is something left to read.
func hungUp(conn net.Conn) bool {
	for {
		under, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = under.NetConn()
	}
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		gone = err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone || err != nil
}
