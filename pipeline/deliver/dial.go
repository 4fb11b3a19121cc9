package deliver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// guard decides which addresses may be called. It checks the address that is being dialled, after names were
// resolved, so neither a name nor its changing answer gets around it.
type guard struct{ allowed []netip.Prefix }

// refusedNetworks are those that no receiver lives in: every entry of IANA's registries of special-purpose addresses
// (iana-ipv4-special-registry and iana-ipv6-special-registry), multicast, the forms of IPv6 that carry an IPv4 address,
// what is not global unicast, and one address that a cloud gives to each machine's host.
var refusedNetworks = func() (all []netip.Prefix) {
	for _, s := range []string{
		"0.0.0.0/8",         // this network
		"10.0.0.0/8",        // private
		"100.64.0.0/10",     // shared
		"127.0.0.0/8",       // this machine
		"168.63.129.16/32",  // the host of a machine on Azure
		"169.254.0.0/16",    // link-local, with the clouds' metadata
		"172.16.0.0/12",     // private
		"192.0.0.0/24",      // protocol assignments
		"192.0.2.0/24",      // documentation
		"192.31.196.0/24",   // AS112
		"192.52.193.0/24",   // AMT
		"192.88.99.0/24",    // 6to4 relays
		"192.168.0.0/16",    // private
		"192.175.48.0/24",   // AS112
		"198.18.0.0/15",     // benchmarking
		"198.51.100.0/24",   // documentation
		"203.0.113.0/24",    // documentation
		"224.0.0.0/4",       // multicast
		"240.0.0.0/4",       // reserved, and broadcast
		"::/96",             // unspecified, loopback, and IPv4-compatible (::7f00:1)
		"::ffff:0:0:0/96",   // IPv4-translated (::ffff:0:7f00:1)
		"64:ff9b::/96",      // NAT64
		"64:ff9b:1::/48",    // local NAT64
		"100::/64",          // discard
		"100:0:0:1::/64",    // dummy
		"2001::/23",         // Teredo, ORCHID, benchmarking and other protocol assignments
		"2001:db8::/32",     // documentation
		"2002::/16",         // 6to4
		"2620:4f:8000::/48", // AS112
		"3fff::/20",         // documentation
		"5f00::/16",         // segment routing
		"fc00::/7",          // unique local
		"fe80::/10",         // link-local
		"fec0::/10",         // site-local
		"ff00::/8",          // multicast
		"::/3",              // not allocated
		"4000::/2",          // not allocated
		"8000::/1",          // not allocated
	} {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}()

// check returns an error where the address must not be called.
func (g guard) check(address string) error {
	host, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %q is not an address", errRefused, address)
	}
	ip := host.Addr().WithZone("").Unmap() // ::ffff:127.0.0.1 is 127.0.0.1
	for _, p := range g.allowed {
		if p.Contains(ip) {
			return nil
		}
	}
	for _, p := range refusedNetworks {
		if p.Contains(ip) {
			return fmt.Errorf("%w: %s is in %s, which is not public; if it is meant, set allow_private: true for the "+
				"destination, or add its network to deliver.allow-networks",
				errRefused, ip, p)
		}
	}
	return nil
}

// errRefused: the address may not be called.
var errRefused = errors.New("address refused")

// dialer opens the connections of one destination, and knows those that are open.
type dialer struct {
	net    net.Dialer
	ctx    context.Context // ends with closeAll
	cancel context.CancelFunc

	mu     sync.Mutex
	open   map[*conn]struct{}
	closed bool
}

func newDialer(g guard, allowPrivate bool) *dialer {
	d := &dialer{open: map[*conn]struct{}{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	if !allowPrivate {
		d.net.Control = func(_, address string, _ syscall.RawConn) error { return g.check(address) }
	}
	return d
}

// dial connects to host:port. It looks a name up each time.
func (d *dialer) dial(addr string, deadline time.Time) (*conn, error) {
	ctx, cancel := context.WithDeadline(d.ctx, deadline)
	defer cancel()
	c, err := d.net.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	opened := &conn{TCPConn: c.(*net.TCPConn), dialer: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		c.Close()
		return nil, net.ErrClosed
	}
	d.open[opened] = struct{}{}
	return opened, nil
}

// closeAll closes every connection, so that sends under way end, and refuses new ones.
func (d *dialer) closeAll() {
	d.cancel()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for c := range d.open {
		c.TCPConn.Close()
	}
}

// conn is a connection that its dialer knows until it is closed.
type conn struct {
	*net.TCPConn
	dialer *dialer
}

func (c *conn) Close() error {
	c.dialer.mu.Lock()
	delete(c.dialer.open, c)
	c.dialer.mu.Unlock()
	return c.TCPConn.Close()
}
