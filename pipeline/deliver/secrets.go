package deliver

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"os"
	"slices"
	"strings"
)

// env reads the variable that a key names.
func (r *reader) env(key, name string) (value string, ok bool) {
	if value, ok = r.lookupEnv(name); !ok {
		r.Fault(key, "the environment has no %s", name)
	}
	return value, ok
}

// secrets reads <key>_env and <key>_file, each one name or a list. The values never stand in the file itself.
func (r *reader) secrets(key string) []string {
	var all []string
	add := func(key, from, value string) {
		switch value = strings.TrimSpace(value); {
		case value == "":
			r.Fault(key, "%s is empty", from)
		case strings.ContainsAny(value, "\r\n\x00"):
			r.Fault(key, "%s has a line break inside: give one secret at a time", from)
		default:
			all = append(all, value)
		}
	}
	inEnv, inFile := key+"_env", key+"_file"
	for _, name := range r.Strings(inEnv) {
		if value, ok := r.env(inEnv, name); ok {
			add(inEnv, "$"+name, value)
		}
	}
	for _, name := range r.Strings(inFile) {
		value, err := os.ReadFile(name)
		if err != nil {
			r.Fault(inFile, "%v", err)
			continue
		}
		add(inFile, name, string(value))
	}
	if r.Has(key) {
		r.Fault(key, "must not stand in this file: use %s or %s", inEnv, inFile)
	}
	return all
}

// tls reads tls: {cert_file, key_file, ca_file}. The certificate is read again for each handshake, so that a renewed
// one is used without a restart.
func (r *reader) tls() *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	t := r.Section.Section("tls", "cert_file", "key_file", "ca_file")
	if t == nil {
		return config
	}
	cert, key := t.String("cert_file"), t.String("key_file")
	if t.Has("cert_file") != t.Has("key_file") {
		r.Fault("tls", "cert_file and key_file belong together")
	} else if cert != "" && key != "" {
		load := func() (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(cert, key)
			return &c, err
		}
		if _, err := load(); err != nil {
			r.Fault("tls", "%v", err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	if ca := t.String("ca_file"); ca != "" {
		pem, err := os.ReadFile(ca)
		config.RootCAs = x509.NewCertPool()
		if err != nil {
			t.Fault("ca_file", "%v", err)
		} else if !config.RootCAs.AppendCertsFromPEM(pem) {
			t.Fault("ca_file", "%s holds no certificate in PEM", ca)
		}
	}
	return config
}

// hide puts *** in the place of every secret, of which the longer ones come first.
func hide(text string, secrets []string) string {
	for _, s := range secrets {
		text = strings.ReplaceAll(text, s, "***")
	}
	return text
}

// leastSecret is how many bytes a part of a secret has at least: shorter ones are words that answers hold anyway. A
// guess.
const leastSecret = 6

// withParts adds what a receiver may repeat of a secret: the token behind a scheme ("Bearer TOKEN"), the name and
// password that "Basic" encodes and the password alone, and a signing secret without its prefix. The longest comes
// first.
func withParts(secrets []string) []string {
	all := slices.Clone(secrets)
	for _, s := range secrets {
		for _, part := range strings.Fields(s)[1:] {
			all = append(all, part)
			if decoded, err := base64.StdEncoding.DecodeString(part); err == nil && strings.HasPrefix(s, "Basic ") {
				_, password, _ := strings.Cut(string(decoded), ":")
				all = append(all, string(decoded), password)
			}
		}
		if prefix, rest, ok := strings.Cut(s, "_"); ok && strings.HasPrefix(prefix, "wh") {
			all = append(all, rest)
		}
	}
	all = slices.DeleteFunc(all, func(s string) bool {
		return s == "" || len(s) < leastSecret && !slices.Contains(secrets, s)
	})
	slices.SortStableFunc(all, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(all)
}
