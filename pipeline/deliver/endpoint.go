package deliver

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/net/idna"
)

// endpoint is an address as it is dialled and as it is sent.
type endpoint struct {
	url        string // scheme, host and port, for clients that take one
	addr       string // host:port to dial
	host       string // of the Host header
	serverName string // that a certificate has to be for
	target     string // path and query, byte for byte
	tls        bool
	literal    bool // an IP address, not a name
}

var defaultPorts = map[string]string{"http": "80", "https": "443", "nats": "4222", "tls": "4222"}

// address reads url or url_env. The address itself may be a secret, so no fault quotes it.
func (r *reader) address(schemes ...string) *endpoint {
	key, text := "url", r.String("url")
	if name := r.String("url_env"); name != "" {
		if r.Has("url") {
			r.Fault("url_env", "there is a url already")
		}
		var ok bool
		key = "url_env"
		if text, ok = r.env(key, name); !ok {
			return nil
		}
	}
	if !r.Has(key) {
		r.Fault(key, "needs url or url_env")
		return nil
	}
	u, err := url.Parse(strings.TrimSpace(text))
	switch {
	case err != nil || u.Hostname() == "" || !slices.Contains(schemes, u.Scheme):
		r.Fault(key, "the address must be a full %s URL", strings.Join(schemes, " or "))
		return nil
	case u.User != nil:
		r.Fault(key, "the address must not hold a user and password: send them separately (headers_env, token_env)")
		return nil
	}
	e, err := newEndpoint(u)
	if err != nil {
		r.Fault(key, "%v", err)
		return nil
	}
	if name := r.proxied(u, e.addr); name != "" {
		r.Fault(key, "%s of the environment asks for a proxy, and deliveries are made without one, since a proxy "+
			"would look names up where addresses can't be checked: put the host into NO_PROXY if it can be reached "+
			"directly", name)
	}
	r.d.literal = e.literal
	return e
}

// proxied returns the variable of the environment that names a proxy for an HTTP URL, by the usual rules; "" if none
// does.
func (r *reader) proxied(u *url.URL, addr string) string {
	if u.Scheme != "http" && u.Scheme != "https" {
		return ""
	}
	get := func(names ...string) (name, value string) {
		for _, name := range names {
			if value, _ := r.lookupEnv(name); value != "" {
				return name, value
			}
		}
		return "", ""
	}
	var cfg httpproxy.Config
	var secure, plain, all string
	secure, cfg.HTTPSProxy = get("HTTPS_PROXY", "https_proxy")
	plain, cfg.HTTPProxy = get("HTTP_PROXY", "http_proxy")
	all, value := get("ALL_PROXY", "all_proxy")
	if cfg.HTTPSProxy == "" {
		secure, cfg.HTTPSProxy = all, value
	}
	if cfg.HTTPProxy == "" {
		plain, cfg.HTTPProxy = all, value
	}
	_, cfg.NoProxy = get("NO_PROXY", "no_proxy")
	named := plain
	if u.Scheme == "https" {
		named = secure
	}
	asked := url.URL{Scheme: u.Scheme, Host: addr}
	if proxy, err := cfg.ProxyFunc()(&asked); err == nil && proxy == nil {
		return ""
	}
	return named
}

// newEndpoint works out how to dial a URL and what to send. Its errors quote nothing of the URL.
func newEndpoint(u *url.URL) (*endpoint, error) {
	port := u.Port()
	if port == "" {
		port = defaultPorts[u.Scheme]
	} else if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return nil, fmt.Errorf("the port of the address must be from 1 to 65535")
	}
	host := u.Hostname()
	e := &endpoint{
		target: escapeTarget(u.RequestURI()),
		tls:    u.Scheme == "https" || u.Scheme == "tls",
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		e.literal = true
		e.addr = net.JoinHostPort(ip.String(), port)
		// A zone means something on this machine only: neither the server nor its certificate knows it.
		e.serverName = ip.WithZone("").String()
		e.host = e.serverName
		if ip.Is6() {
			e.host = "[" + e.serverName + "]"
		}
	} else {
		name, err := asciiName(host)
		if err != nil {
			return nil, err
		}
		e.addr = net.JoinHostPort(name, port)
		e.serverName = strings.TrimSuffix(name, ".")
		e.host = name
	}
	if u.Port() != "" {
		e.host += ":" + port
	}
	e.url = (&url.URL{Scheme: u.Scheme, Host: e.addr}).String() // which writes a zone as a URL has it
	return e, nil
}

// asciiName returns a host name as DNS has it: in lower case, and other scripts in Punycode. Underscores are common in
// names of services, and a dot at the end says that the name is complete.
func asciiName(host string) (string, error) {
	name := strings.ToLower(host)
	if strings.ContainsFunc(name, func(r rune) bool { return r >= 0x80 }) {
		ascii, err := idna.Lookup.ToASCII(name)
		if err != nil {
			return "", fmt.Errorf("the host of the address is not a valid international domain name")
		}
		name = ascii
	}
	bare := strings.TrimSuffix(name, ".")
	if len(bare) > 253 {
		return "", fmt.Errorf("the host of the address is longer than 253 characters")
	}
	for label := range strings.SplitSeq(bare, ".") {
		if label == "" || len(label) > 63 {
			return "", fmt.Errorf("the host of the address has a part that is empty or longer than 63 characters")
		}
		if i := strings.IndexFunc(label, notInNames); i >= 0 {
			return "", fmt.Errorf("the host of the address has a character that no name has: %q", label[i])
		}
	}
	return name, nil
}

func notInNames(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_')
}

// escapeTarget escapes what can't stand in a request line, and nothing else.
func escapeTarget(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
