package body

import (
	"bytes"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
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
	cfg := Config{MaxBodyBytes: 8 << 10, MaxDecodedBytes: 16 << 10, MaxReadingBytes: 1 << 20}
	r, err := NewReader(cfg, testMetrics())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, wire []byte, encoding byte, length int) {
		var ctx fasthttp.RequestCtx
		ctx.Request.SetBodyStream(bytes.NewReader(wire), length)
		ctx.Request.Header.SetContentLength(max(length, -1))
		ctx.Request.Header.SetContentEncoding([]string{"", "gzip", "zstd", "identity"}[encoding%4])
		b, failed := r.Read(&ctx, r.Tenant(1), nil)
		if failed == nil {
			if len(b.Text) > cfg.MaxDecodedBytes {
				t.Errorf("%d bytes; %d are allowed", len(b.Text), cfg.MaxDecodedBytes)
			}
			if encoding%4 == 0 && string(b.Text) != string(wire) {
				t.Errorf("read %q of %q", b.Text, wire)
			}
			r.Release(b)
		} else if failed.Status < 400 || failed.Detail == "" {
			t.Errorf("failure %+v", failed)
		}
		if got := r.InUse(); got != 0 {
			t.Errorf("%d bytes are still counted; want 0", got)
		}
	})
}

func testMetrics() Metrics {
	return Metrics{Wire: prometheus.NewCounter(prometheus.CounterOpts{Name: "wire"}),
		Reading: prometheus.NewGauge(prometheus.GaugeOpts{Name: "reading"})}
}

func gz(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write([]byte(text))
	w.Close()
	return b.String()
}

func zst(text string) string {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		panic(err)
	}
	return string(w.EncodeAll([]byte(text), nil))
}
