package certfile

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// writePair writes a certificate for 127.0.0.1 of its own making.
func writePair(t *testing.T, dir, name string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der},
		keyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

func TestRenewal(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := writePair(t, dir, "first.example")
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p, err := Open(certFile, keyFile, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		check := func(when, want string) {
			t.Helper()
			pair, err := p.Config().GetCertificate(nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := pair.Leaf.DNSNames[0]; got != want {
				t.Errorf("%s: certificate of %s; want %s", when, got, want)
			}
		}
		check("at first", "first.example")
		writePair(t, dir, "second.example")
		check("at once after a renewal", "first.example")
		time.Sleep(lookEvery + time.Second)
		check("10 s after a renewal", "second.example")
		if err := os.WriteFile(keyFile, []byte("half a key"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookEvery + time.Second)
		check("in the middle of a renewal", "second.example")
		if !strings.Contains(log.String(), "cannot be read") {
			t.Errorf("log %q; want that the renewed certificate cannot be read", log.String())
		}
		writePair(t, dir, "third.example")
		time.Sleep(lookEvery + time.Second)
		check("after it", "third.example")
	})
	if _, err := Open(certFile, certFile, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a certificate for a key: no error")
	}
	if _, err := Open(filepath.Join(dir, "none"), keyFile, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a file that does not exist: no error")
	}
}
