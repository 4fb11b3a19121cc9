// Package certfile serves a certificate and its key from two files, and reads them again when they change, so that
// renewing them needs no restart.
package certfile

import (
	"crypto/tls"
	"log/slog"
	"os"
	"sync"
	"time"
)

// lookEvery is how often a handshake looks whether the files have changed.
const lookEvery = 10 * time.Second

// Pair is a certificate chain and its key, both in PEM. It is safe for concurrent use.
type Pair struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	pair    *tls.Certificate
	changed time.Time // of the newer file, when pair was read
	looked  time.Time
}

// Open reads the files. The logger is told of renewals.
func Open(certFile, keyFile string, log *slog.Logger) (*Pair, error) {
	p := &Pair{certFile: certFile, keyFile: keyFile, log: log, looked: time.Now()}
	return p, p.read()
}

func (p *Pair) read() error {
	changed, err := p.modified()
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(p.certFile, p.keyFile)
	if err != nil {
		return err
	}
	p.pair, p.changed = &pair, changed
	return nil
}

func (p *Pair) modified() (time.Time, error) {
	var newest time.Time
	for _, file := range []string{p.certFile, p.keyFile} {
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

// Config returns what serves the pair, for HTTP/1.1. Every 10 s a handshake looks whether the files have changed. While
// they do not fit together, as in the middle of a renewal, the earlier pair is served.
func (p *Pair) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			if now := time.Now(); now.Sub(p.looked) > lookEvery {
				p.looked = now
				p.refresh()
			}
			return p.pair, nil
		},
	}
}

func (p *Pair) refresh() {
	changed, err := p.modified()
	if err == nil && changed.Equal(p.changed) {
		return
	}
	if err == nil {
		err = p.read()
	}
	if err != nil {
		p.log.Warn("the renewed certificate cannot be read; the earlier one is served", "error", err)
		return
	}
	p.log.Info("read the renewed certificate", "file", p.certFile)
}
