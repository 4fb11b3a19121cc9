package deliver

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// Every way of writing an address that is not public is refused, at the place where it is dialled.
func TestGuard(t *testing.T) {
	for _, ip := range []string{
		"127.0.0.1", "127.8.9.10", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.0.1", "169.254.169.254",
		"172.16.0.1", "172.31.255.255",
		"192.168.1.1", "0.0.0.0", "0.1.2.3", "192.0.0.192", "198.18.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:169.254.169.254", "::7f00:1", "2002:7f00:1::",
		"64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe",
		"2001:0:7f00:1::", "2001:0:4136:e378:8000:63bf:80ff:fffe", "fe80::1", "fe81::", "fec0::1", "fc00::1",
		"fd00:ec2::254", "ff02::1", "2001:db8::1",
	} {
		addr := netip.AddrPortFrom(netip.MustParseAddr(ip), 80).String()
		if err := (guard{}).check(addr); !errors.Is(err, errRefused) {
			t.Errorf("%s: %v; want a refusal", addr, err)
		}
	}
	if err := (guard{}).check("[fe80::1%eth0]:80"); !errors.Is(err, errRefused) {
		t.Errorf("an address with a zone: %v; want a refusal", err)
	}
	for _, addr := range []string{"1.1.1.1:443", "93.184.215.14:80", "172.32.0.1:80", "100.128.0.1:80",
		"[2606:4700:4700::1111]:443", "[::ffff:1.1.1.1]:443"} {
		if err := (guard{}).check(addr); err != nil {
			t.Errorf("%s: %v; want it allowed", addr, err)
		}
	}
	some := guard{allowed: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	if err := some.check("10.1.2.3:80"); err != nil {
		t.Errorf("an allowed network: %v", err)
	}
	if err := some.check("10.2.2.3:80"); !errors.Is(err, errRefused) {
		t.Errorf("beside an allowed network: %v; want a refusal", err)
	}
}

// The check is made of the address that a name gave, and no connection is opened.
func TestDialRefusesNamesOfPrivateAddresses(t *testing.T) {
	url := receiver(t, func(http.ResponseWriter, *http.Request) { t.Error("the receiver was called") })
	port := url[strings.LastIndexByte(url, ':'):]
	for _, host := range []string{"localhost", "127.0.0.1", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1",
		"no-such-name.invalid"} {
		c, err := newDialer(guard{}, false).dial(host+port, time.Now().Add(10*time.Second))
		if err == nil {
			c.Close()
			t.Errorf("dialled %s", host)
		}
		if host == "localhost" && !errors.Is(err, errRefused) {
			t.Errorf("%s: %v; want it refused after it was resolved", host, err)
		}
	}
	c, err := newDialer(guard{}, true).dial("localhost"+port, time.Now().Add(10*time.Second))
	if err != nil {
		t.Fatalf("with allow_private: %v", err)
	}
	c.Close()
}

// nameServer answers every question for an IPv4 address with the next of ips, the last one again and again, and knows
// no others; nothing may be kept.
func nameServer(t *testing.T, ips ...string) *net.Resolver {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		for message := make([]byte, 512); ; {
			n, from, err := server.ReadFrom(message)
			if err != nil {
				return // closed
			}
			const header = 12
			end := header + bytes.IndexByte(message[header:n], 0) + 5 // name, type, class
			answer := slices.Clone(message[:end])
			// an answer without error to one question
			copy(answer[2:header], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0})
			if answer[end-3] == 1 { // type A
				answer[7] = 1 // one record: the name of the question, type A, class IN, for 0 s, 4 bytes
				answer = append(answer, 0xc0, header, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
				answer = append(answer, netip.MustParseAddr(ips[0]).AsSlice()...)
				ips = ips[min(1, len(ips)-1):]
			}
			_, _ = server.WriteTo(answer, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// A name that was public when it was looked at, and is private when it is dialled, is refused: no answer is trusted
// twice.
func TestDialRefusesANameThatChangesItsAddress(t *testing.T) {
	calls := 0
	url := receiver(t, func(http.ResponseWriter, *http.Request) { calls++ })
	addr := "hooks.example.com" + url[strings.LastIndexByte(url, ':'):]
	d := newDialer(guard{allowed: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}, false)
	d.net.Resolver = nameServer(t, "127.0.0.1", "127.0.0.2", "169.254.169.254")
	c, err := d.dial(addr, time.Now().Add(10*time.Second))
	if err != nil {
		t.Fatalf("with the allowed address: %v", err)
	}
	c.Close()
	for _, address := range []string{"127.0.0.2", "169.254.169.254"} {
		c, err := d.dial(addr, time.Now().Add(10*time.Second))
		if err == nil {
			c.Close()
		}
		if !errors.Is(err, errRefused) || !strings.Contains(err.Error(), address) {
			t.Errorf("after the name changed to %s: %v; want a refusal of it", address, err)
		}
	}
	if calls != 0 {
		t.Errorf("%d requests reached the receiver", calls)
	}
}
