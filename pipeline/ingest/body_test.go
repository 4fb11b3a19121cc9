package ingest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
)

// FuzzBody reads any bytes under any encoding: it ends, never gives more than the bound, and gives all memory back.
func FuzzBody(f *testing.F) {
	text := `{"event_name":"x","properties":{"a":"` + strings.Repeat("0123456789", 500) + `"}}`
	for _, b := range []string{"", text, gz(text), gz(text)[:40], gz(text) + "x", gz(gz(text)), gz(strings.Repeat(" ",
		1<<20)), zst(text), zst(text)[:40], zst(strings.Repeat(" ", 1<<20)), zst(text) + gz(text)} {
		for encoding := range byte(4) {
			f.Add([]byte(b), encoding, len(b))
			f.Add([]byte(b), encoding, len(b)+1)
			f.Add([]byte(b), encoding, -1)
		}
	}
	cfg := DefaultConfig()
	cfg.MaxBodyBytes, cfg.MaxDecodedBytes, cfg.MaxReadingBytes = 8<<10, 16<<10, 1<<20
	r, err := newReader(&cfg, NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, wire []byte, encoding byte, length int) {
		var ctx fasthttp.RequestCtx
		ctx.Request.SetBodyStream(bytes.NewReader(wire), length)
		ctx.Request.Header.SetContentLength(max(length, -1))
		ctx.Request.Header.SetContentEncoding([]string{"", "gzip", "zstd", "identity"}[encoding%4])
		b, failed := r.read(&ctx)
		if failed == nil {
			if len(b.text) > cfg.MaxDecodedBytes {
				t.Errorf("%d bytes; %d are allowed", len(b.text), cfg.MaxDecodedBytes)
			}
			if encoding%4 == 0 && string(b.text) != string(wire) {
				t.Errorf("read %q of %q", b.text, wire)
			}
			r.release(b)
		} else if failed.status < 400 || failed.detail == "" {
			t.Errorf("failure %+v", failed)
		}
		if got := r.inUse.Load(); got != 0 {
			t.Errorf("%d bytes are still counted; want 0", got)
		}
	})
}
