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

// TestKeyIsLookedForInTextAlone: zstd leaves some text as it was, and whether a key was found in that depended on the
// buffer.
func TestKeyIsLookedForInTextAlone(t *testing.T) {
	raw := zst(strings.Repeat("a", 3*unknownBytes) + `"writeKey":"KEY_A"`)
	if !strings.Contains(raw, `"writeKey":"KEY_A"`) {
		t.Fatal("the key is not in the compressed text as it was")
	}
	r, err := NewReader(Config{MaxBodyBytes: 8 << 20, MaxDecodedBytes: 16 << 20, MaxReadingBytes: 256 << 20},
		testMetrics())
	if err != nil {
		t.Fatal(err)
	}
	r.bodies.Put(&Body{raw: make([]byte, 0, len(raw))}) // so that it is full once all has come
	var ctx fasthttp.RequestCtx
	ctx.Request.SetBodyStream(strings.NewReader(raw), len(raw))
	ctx.Request.Header.SetContentLength(len(raw))
	ctx.Request.Header.SetContentEncoding("zstd")
	_, failed := r.Read(&ctx, r.Unknown(), func(part []byte) *Share {
		if FindKey(part) != nil {
			return r.Tenant(1)
		}
		return nil
	})
	if failed == nil || failed.Status != 413 {
		t.Errorf("%+v; want 413, since no key stands in the first part of the text", failed)
	}
}
