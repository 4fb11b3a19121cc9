package deliver

import (
	"crypto/tls"
	"crypto/x509"
	"os"
)

// tls reads tls: {cert_file, key_file, ca_file}. The certificate is read again for each handshake, so that a renewed one
// is used without a restart.
func (p *parser) tls(m *mapping) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	n := m.get("tls")
	if n == nil {
		return config
	}
	t := p.mapping(n, m.what+": tls")
	cert, hasCert := t.str("cert_file")
	key, hasKey := t.str("key_file")
	if hasCert != hasKey {
		p.add(n, "%s: cert_file and key_file belong together", t.what)
	} else if hasCert {
		load := func() (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(cert, key)
			return &c, err
		}
		if _, err := load(); err != nil {
			p.add(n, "%s: %v", t.what, err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	if ca, ok := t.str("ca_file"); ok {
		pem, err := os.ReadFile(ca)
		config.RootCAs = x509.NewCertPool()
		if err != nil {
			p.add(t.get("ca_file"), "%s: %v", t.what, err)
		} else if !config.RootCAs.AppendCertsFromPEM(pem) {
			p.add(t.get("ca_file"), "%s: ca_file holds no certificate in PEM", t.what)
		}
	}
	t.finish()
	return config
}
