package deliver

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// What a host can be in a URL, and what is dialled, sent and verified for it.
func TestHosts(t *testing.T) {
	for text, want := range map[string]string{ // addr, Host header, name in the certificate
		"https://crm.example.com/x":      "crm.example.com:443 crm.example.com crm.example.com",
		"http://crm.example.com":         "crm.example.com:80 crm.example.com crm.example.com",
		"https://crm.example.com:8443":   "crm.example.com:8443 crm.example.com:8443 crm.example.com",
		"https://crm.example.com:443":    "crm.example.com:443 crm.example.com:443 crm.example.com",
		"https://crm.example.com:":       "crm.example.com:443 crm.example.com crm.example.com",
		"https://CRM.Example.COM":        "crm.example.com:443 crm.example.com crm.example.com",
		"https://crm.example.com.":       "crm.example.com.:443 crm.example.com. crm.example.com",
		"https://crm.example.com.:8443":  "crm.example.com.:8443 crm.example.com.:8443 crm.example.com",
		"http://my_service.internal":     "my_service.internal:80 my_service.internal my_service.internal",
		"http://_http._tcp.example.com":  "_http._tcp.example.com:80 _http._tcp.example.com _http._tcp.example.com",
		"http://localhost":               "localhost:80 localhost localhost",
		"https://münchen.example":        "xn--mnchen-3ya.example:443 xn--mnchen-3ya.example xn--mnchen-3ya.example",
		"https://MÜNCHEN.example.":       "xn--mnchen-3ya.example.:443 xn--mnchen-3ya.example. xn--mnchen-3ya.example",
		"https://m%C3%BCnchen.example":   "xn--mnchen-3ya.example:443 xn--mnchen-3ya.example xn--mnchen-3ya.example",
		"https://xn--mnchen-3ya.example": "xn--mnchen-3ya.example:443 xn--mnchen-3ya.example xn--mnchen-3ya.example",
		"https://例え。テスト":                 "xn--r8jz45g.xn--zckzah:443 xn--r8jz45g.xn--zckzah xn--r8jz45g.xn--zckzah",
		"http://192.0.2.1:8080":          "192.0.2.1:8080 192.0.2.1:8080 192.0.2.1",
		"https://[2001:DB8::1]":          "[2001:db8::1]:443 [2001:db8::1] 2001:db8::1",
		"https://[2001:db8:0:0::1]:8443": "[2001:db8::1]:8443 [2001:db8::1]:8443 2001:db8::1",
		"https://[fe80::1%25eth0]":       "[fe80::1%eth0]:443 [fe80::1] fe80::1",
		"http://[fe80::1%25eth0]:8080":   "[fe80::1%eth0]:8080 [fe80::1]:8080 fe80::1",
		"http://" + strings.Repeat("a", 63): strings.Repeat("a", 63) + ":80 " + strings.Repeat("a", 63) + " " +
			strings.Repeat("a", 63),
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		e, err := newEndpoint(u)
		if err != nil {
			t.Errorf("%s: %v; want it taken", text, err)
			continue
		}
		if got := fmt.Sprintf("%s %s %s", e.addr, e.host, e.serverName); got != want {
			t.Errorf("%s: %s; want %s", text, got, want)
		}
	}
	u, err := url.Parse("nats://[fe80::1%25eth0]")
	if err != nil {
		t.Fatal(err)
	}
	if e, err := newEndpoint(u); err != nil || e.url != "nats://[fe80::1%25eth0]:4222" || e.addr != "[fe80::1%eth0]:4222" {
		t.Errorf("%s: %+v, %v; want a zone in both forms", u, e, err)
	}
	for _, text := range []string{
		"http://a..b", "http://.a", "http://a..", "http://" + strings.Repeat("a", 64), "http://a:0", "http://a:65536",
		"http://a:99999999999",
		"http://" + strings.Repeat("abcdefg.", 40) + "de", "http://a*b", "http://a,b", "http://a%20b",
		"http://\u200d.example",
		"http://[::1", "http://[fe80::1%25]",
	} {
		if u, err := url.Parse(text); err == nil {
			if e, err := newEndpoint(u); err == nil {
				t.Errorf("%s: %+v; want a fault", text, e)
			} else if rest := strings.TrimPrefix(text, "http://"); strings.Contains(err.Error(), rest) {
				t.Errorf("%s: the fault shows the address: %v", text, err)
			}
		}
	}
}

// A proxy that the environment asks for is not passed by silently: the file has a fault, unless NO_PROXY has the host.
func TestProxyOfTheEnvironmentIsAFault(t *testing.T) {
	for _, c := range []struct {
		url, want string
		env       []string
	}{
		{"https://crm.example.com", "HTTPS_PROXY", []string{"HTTPS_PROXY", "http://proxy.example.com:3128"}},
		{"https://crm.example.com", "https_proxy", []string{"https_proxy", "proxy.example.com:3128"}},
		{"https://crm.example.com", "", []string{"HTTP_PROXY", "http://proxy.example.com:3128"}},
		{"http://crm.example.com", "HTTP_PROXY", []string{"HTTP_PROXY", "http://proxy.example.com:3128"}},
		{"http://crm.example.com", "", []string{"HTTPS_PROXY", "http://proxy.example.com:3128"}},
		{"http://crm.example.com", "ALL_PROXY", []string{"ALL_PROXY", "socks5://proxy.example.com:1080"}},
		{"https://crm.example.com", "", []string{"HTTPS_PROXY", "http://proxy.example.com:3128", "NO_PROXY",
			"crm.example.com"}},
		{"https://crm.example.com", "", []string{"HTTPS_PROXY", "http://proxy.example.com:3128", "no_proxy",
			".example.com"}},
		{"https://crm.example.com", "", []string{"HTTPS_PROXY", "http://proxy.example.com:3128", "NO_PROXY", "*"}},
		{"https://10.1.2.3", "", []string{"HTTPS_PROXY", "http://proxy.example.com:3128", "NO_PROXY", "10.0.0.0/8"}},
		{"http://localhost:8080", "", []string{"HTTP_PROXY", "http://proxy.example.com:3128"}},
		{"http://127.0.0.1:8080", "", []string{"ALL_PROXY", "http://proxy.example.com:3128"}},
	} {
		for kind, settings := range map[string]string{
			"webhook": "{name: d, url_env: ADDRESS, signatures: none}",
			"slack":   "{name: d, type: slack, url_env: ADDRESS}",
			"qstash":  "{name: d, type: qstash, url_env: ADDRESS, to: 'https://x.example.com', token_env: ADDRESS}",
		} {
			_, err := Parse("d", []byte("destinations: ["+settings+"]"), env(append(c.env, "ADDRESS", c.url)...))
			if c.want == "" && err != nil || c.want != "" &&
				(err == nil || !strings.Contains(err.Error(), c.want+" of the")) {
				t.Errorf("%s to %s with %v: %v; want a fault that names %q", kind, c.url, c.env, err, c.want)
			}
		}
	}
	_, err := Parse("d", []byte("destinations: [{name: d, type: qstash, to: 'https://x.example.com', token_env: T}]"),
		env("T", "x", "HTTPS_PROXY", "http://proxy.example.com:3128"))
	if err == nil || !strings.Contains(err.Error(), "HTTPS_PROXY of the") {
		t.Errorf("qstash at its own address: %v; want a fault that names HTTPS_PROXY", err)
	}
}
