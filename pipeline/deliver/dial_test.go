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

	"sluice.example/sluice/pipeline"
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

// Every entry of IANA's registries of special-purpose addresses, by its first and last address. Nothing is
// dialled: what is checked is the dialer's decision.
func TestGuardRefusesTheSpecialPurposeRegistries(t *testing.T) {
	for _, entry := range []string{
		// IPv4
		"0.0.0.0/8", "0.0.0.0/32", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.0.0.0/29", "192.0.0.8/32", "192.0.0.9/32", "192.0.0.10/32", "192.0.0.170/32",
		"192.0.0.171/32", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.88.99.2/32",
		"192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"255.255.255.255/32",
		// IPv6
		"::1/128", "::/128", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001::/32",
		"2001:1::1/128", "2001:1::2/128", "2001:1::3/128", "2001:2::/48", "2001:3::/32", "2001:4:112::/48",
		"2001:10::/28", "2001:20::/28", "2001:30::/28", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
		"5f00::/16", "fc00::/7", "fe80::/10",
		// In no such registry, and no more public.
		"224.0.0.0/4", "168.63.129.16/32", "::/96", "::ffff:0:0:0/96", "fec0::/10", "ff00::/8", "1000::/16", "4000::/8",
		"8000::/8", "e000::/8",
	} {
		p := netip.MustParsePrefix(entry)
		last := p.Addr().AsSlice()
		for i := p.Bits(); i < len(last)*8; i++ {
			last[i/8] |= 1 << (7 - i%8)
		}
		end, _ := netip.AddrFromSlice(last)
		forms := []netip.Addr{p.Addr(), end}
		if p.Addr().Is4() { // mapped, translated, compatible, NAT64, 6to4
			for _, ip := range []netip.Addr{p.Addr(), end} {
				b := ip.As4()
				for _, prefix := range []string{"::ffff:0:0", "::ffff:0:0:0", "::", "64:ff9b::"} {
					whole := netip.MustParseAddr(prefix).As16()
					copy(whole[12:], b[:])
					forms = append(forms, netip.AddrFrom16(whole))
				}
				six := netip.MustParseAddr("2002::1").As16()
				copy(six[2:], b[:])
				forms = append(forms, netip.AddrFrom16(six))
			}
		}
		for _, ip := range forms {
			if err := (guard{}).check(netip.AddrPortFrom(ip, 443).String()); !errors.Is(err, errRefused) {
				t.Errorf("%s, of %s: %v; want a refusal", ip, entry, err)
			}
		}
	}
	for _, ip := range []string{"1.0.0.1", "9.9.9.9", "11.0.0.1", "126.255.255.255", "128.0.0.1", "168.63.129.15",
		"168.63.129.17", "192.0.1.1", "223.255.255.255", "2000::1", "2001:200::1", "2003::1", "2606:4700:4700::1111",
		"2620:4f:7fff::1", "3ffe::1"} {
		if err := (guard{}).check(netip.AddrPortFrom(netip.MustParseAddr(ip), 443).String()); err != nil {
			t.Errorf("%s: %v; want it allowed", ip, err)
		}
	}
}

// A name that has a private address for a moment costs an attempt and not the message.
func TestPrivateAnswerOfAMomentIsRetried(t *testing.T) {
	d, s := openSink(t, "  - {name: d, url: 'http://hooks.example.com:9', signatures: none}\n")
	s.(*webhook).client.dialer.net.Resolver = nameServer(t, "127.0.0.1")
	status, reason := classify(d, 1, deliverOne(s, lease(`{}`)))
	if status != pipeline.Failed || !strings.Contains(reason, "not public") {
		t.Errorf("%s, %q; want failed, with the reason", status, reason)
	}
	d, s = openSink(t, "  - {name: d, url: 'http://[::ffff:0:7f00:1]:9', signatures: none}\n")
	status, reason = classify(d, 1, deliverOne(s, lease(`{}`)))
	if status != pipeline.Dead || !strings.Contains(reason, "not public") {
		t.Errorf("an address in the file: %s, %q; want dead, with the reason", status, reason)
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
