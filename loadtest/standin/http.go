package standin

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/grafana/sobek"
	"github.com/klauspost/compress/zstd"
)

// statuses are ranges of status codes, both ends included.
type statuses [][2]int

func (s *statuses) has(status int) bool {
	for _, r := range *s {
		if status >= r[0] && status <= r[1] {
			return true
		}
	}
	return false
}

func (u *user) httpModule() map[string]any {
	m := map[string]any{
		"request": func(call sobek.FunctionCall) sobek.Value {
			return u.request(call.Argument(0).String(), call.Argument(1).String(), call.Argument(2), call.Argument(3))
		},
		"get": func(call sobek.FunctionCall) sobek.Value {
			return u.request("GET", call.Argument(0).String(), sobek.Undefined(), call.Argument(1))
		},
		"expectedStatuses": func(call sobek.FunctionCall) sobek.Value {
			var s statuses
			for _, a := range call.Arguments {
				if o, ok := a.(*sobek.Object); ok {
					s = append(s, [2]int{int(o.Get("min").ToInteger()), int(o.Get("max").ToInteger())})
				} else {
					s = append(s, [2]int{int(a.ToInteger()), int(a.ToInteger())})
				}
			}
			return u.rt.ToValue(&s)
		},
		"setResponseCallback": func(s *statuses) { u.expected = s },
	}
	for name, method := range map[string]string{"post": "POST", "put": "PUT", "del": "DELETE"} {
		m[name] = func(call sobek.FunctionCall) sobek.Value {
			return u.request(method, call.Argument(0).String(), call.Argument(1), call.Argument(2))
		}
	}
	return m
}

// params are the options of one request.
type params struct {
	headers     map[string]string
	tags        map[string]string
	compression string
	timeout     time.Duration
	expected    *statuses
}

func (u *user) readParams(v sobek.Value) params {
	p := params{timeout: time.Minute, expected: u.expected, tags: map[string]string{}}
	if sobek.IsUndefined(v) || sobek.IsNull(v) {
		return p
	}
	o := v.ToObject(u.rt)
	for _, key := range o.Keys() {
		value := o.Get(key)
		switch key {
		case "headers":
			p.headers = u.readTags(value)
		case "tags":
			p.tags = u.readTags(value)
		case "compression":
			p.compression = value.String()
		case "timeout":
			d, err := time.ParseDuration(value.String())
			if err != nil {
				u.throw("timeout: %w", err)
			}
			p.timeout = d
		case "responseCallback":
			if err := u.rt.ExportTo(value, &p.expected); err != nil {
				u.throw("responseCallback: %w", err)
			}
		default:
			u.throw("the stand-in knows no parameter %q of a request", key)
		}
	}
	return p
}

func (u *user) request(method, url string, body, options sobek.Value) sobek.Value {
	u.needInit("a request", false)
	p := u.readParams(options)
	var content []byte
	switch b := body.Export().(type) {
	case nil:
	case string:
		content = []byte(b)
	case sobek.ArrayBuffer:
		content = b.Bytes()
	default:
		u.throw("the stand-in sends strings and ArrayBuffers, no %T", b)
	}
	content = u.compress(p.compression, content)
	req, err := http.NewRequestWithContext(u.ctx, method, url, bytes.NewReader(content))
	if err != nil {
		u.throw("%s %s: %w", method, url, err)
	}
	req.Header.Set("User-Agent", "k6-standin")
	for k, v := range p.headers {
		req.Header.Set(k, v)
	}
	if p.compression != "" {
		req.Header.Set("Content-Encoding", p.compression)
	}
	client := *u.run.client
	client.Timeout = p.timeout
	start := time.Now()
	status, header, answer, failure := exchange(&client, req)
	took := float64(time.Since(start)) / float64(time.Millisecond)

	tags := p.tags
	tags["method"] = method
	ok := p.expected.has(status)
	u.emit("http_reqs", 1, tags)
	u.emit("http_req_duration", took, tags)
	u.emit("http_req_failed", number(!ok), tags)

	headers := map[string]any{}
	for k, v := range header {
		headers[k] = strings.Join(v, ", ")
	}
	response := u.rt.NewObject()
	for name, value := range map[string]any{
		"status": status, "body": answer, "headers": headers, "url": url, "error": failure,
		"timings": map[string]any{"duration": took, "waiting": took},
		"json": func(call sobek.FunctionCall) sobek.Value {
			v, err := u.json("parse", u.rt.ToValue(answer))
			if err != nil {
				panic(err)
			}
			if path := call.Argument(0); !sobek.IsUndefined(path) {
				if strings.ContainsAny(path.String(), ".#*?@|\\") {
					u.throw("the stand-in selects by the name of a member only, not by %q", path)
				}
				v = v.ToObject(u.rt).Get(path.String())
			}
			if v == nil {
				return sobek.Undefined()
			}
			return v
		},
	} {
		must(response.Set(name, value))
	}
	return response
}

func (u *user) compress(how string, content []byte) []byte {
	var b bytes.Buffer
	var w io.WriteCloser
	switch how {
	case "":
		return content
	case "gzip":
		w = gzip.NewWriter(&b)
	case "zstd":
		z, err := zstd.NewWriter(&b)
		must(err)
		w = z
	default:
		u.throw("the stand-in compresses by gzip and zstd, not by %q", how)
	}
	_, err := w.Write(content)
	must(err)
	must(w.Close())
	return b.Bytes()
}

// exchange sends a request; where no whole answer came, status is 0 and failure is why.
func exchange(client *http.Client, req *http.Request) (status int, header http.Header, body, failure string) {
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, "", err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, nil, "", err.Error()
	}
	return res.StatusCode, res.Header, string(b), ""
}
