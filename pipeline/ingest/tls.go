package ingest

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificate is a key pair in two files, read again when they change, so that renewing it needs no restart.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	pair    *tls.Certificate
	changed time.Time // of the newer file, when pair was read
	looked  time.Time
}

func loadCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log, looked: time.Now()}
	if err := c.read(); err != nil {
		return nil, fmt.Errorf("ingest.tls-cert-file, ingest.tls-key-file: %w", err)
	}
	return c, nil
}

func (c *certificate) read() error {
	changed, err := c.modified()
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	c.pair, c.changed = &pair, changed
	return nil
}

func (c *certificate) modified() (time.Time, error) {
	var newest time.Time
	for _, file := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(file)
		if err != nil {
			return time.Time{}, err
		}
		if t := info.ModTime(); t.After(newest) {
			newest = t
		}
	}
	return newest, nil
}

// config serves the pair. Every 10 s a handshake looks whether the files have changed; while they do not fit together,
// as in the middle of a renewal, the pair before goes on.
func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if now := time.Now(); now.Sub(c.looked) > 10*time.Second {
				c.looked = now
				c.refresh()
			}
			return c.pair, nil
		},
	}
}

func (c *certificate) refresh() {
	changed, err := c.modified()
	if err == nil && changed.Equal(c.changed) {
		return
	}
	if err == nil {
		err = c.read()
	}
	if err != nil {
		c.log.Warn("ingest: the renewed certificate cannot be read; the one before goes on", "error", err)
		return
	}
	c.log.Info("ingest: read the renewed certificate", "file", c.certFile)
}
