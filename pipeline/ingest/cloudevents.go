package ingest

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/valyala/fasthttp"

	"sluice.example/sluice/internal/jsontext"
)

// CloudEvents 1.0 over HTTP, structured, binary and batched; docs/clients.md has the mapping.

var cloudevents = shape{
	decode:     (*decoder).cloudevents,
	copies:     2,
	media:      func([]byte) (lines, ok bool) { return false, true },
	head:       `{`,
	status:     native.status,
	keyInQuery: "access_token",
}

// cloudevents picks the mode by the Content-Type, that of batches first, since the one is the beginning of the other.
func (d *decoder) cloudevents(in input) *malformed {
	b, h := in.body, in.header
	media := bytes.ToLower(h.ContentType())
	switch {
	case bytes.HasPrefix(media, []byte("application/cloudevents-batch+json")):
		i, m := d.open(b)
		if m != nil {
			return m
		}
		if b[i] != '[' {
			return &malformed{400, i, "an array of events should begin here"}
		}
		if i, m = d.elements(i, d.cloudElement); m != nil {
			return m
		}
		return d.close(i)
	case bytes.HasPrefix(media, []byte("application/cloudevents+json")):
		i, m := d.open(b)
		if m != nil {
			return m
		}
		return d.close(d.cloudElement(i))
	case bytes.HasPrefix(media, []byte("application/cloudevents")) || len(h.Peek("ce-specversion")) == 0:
		return &malformed{415, -1, fmt.Sprintf("Content-Type %q is not a known format of CloudEvents "+
			"(application/cloudevents+json, application/cloudevents-batch+json), and there is no header ce-specversion",
			cut(media))}
	}
	text, m := d.binary(b, h)
	if m != nil {
		return m
	}
	d.s.Reset(text)
	return d.close(d.cloudElement(0))
}

// binary writes an event of binary mode, attributes in headers and data in the body, as one of structured mode.
func (d *decoder) binary(b []byte, h *fasthttp.RequestHeader) ([]byte, *malformed) {
	text := make([]byte, 0, len(b)+1024)
	text = append(text, '{')
	for name, value := range h.All() {
		name, ok := bytes.CutPrefix(bytes.ToLower(name), []byte("ce-"))
		if !ok {
			continue
		}
		v := headerText(string(value))
		if !utf8.ValidString(v) {
			return nil, &malformed{400, -1, fmt.Sprintf("the header ce-%s holds bytes that are not valid UTF-8", cut(name))}
		}
		text = append(jsontext.AppendString(text, string(name)), ':')
		text = append(jsontext.AppendString(text, v), ',')
	}
	media := string(h.ContentType())
	if media != "" {
		text = append(jsontext.AppendString(append(text, `"datacontenttype":`...), media), ',')
	}
	kind, _, _ := strings.Cut(strings.ToLower(media), ";")
	kind = strings.TrimSpace(kind)
	switch {
	case len(b) == 0:
		d.from.first = len(text) + 1
	case kind == "" || kind == "application/json" || kind == "text/json" || strings.HasSuffix(kind, "+json"):
		d.s.Reset(b)
		if m := d.close(d.s.Value(d.begin(0))); m != nil {
			return nil, m
		}
		text = append(text, `"data":`...)
		data := bytes.TrimPrefix(b, byteOrderMark)
		d.from = origin{shift: len(b) - len(data) - len(text), first: len(text)}
		text = append(append(text, data...), ',')
	case strings.HasPrefix(kind, "text/") && utf8.Valid(b):
		text = append(text, `"data":`...)
		first := len(text)
		d.from.first = first
		if nul := bytes.IndexByte(b, 0); nul >= 0 { // the only flaw that it can have; it comes after an opening quote
			d.from.shift = nul - first - len(jsontext.AppendString(nil, string(b[:nul]))) + 1
		}
		text = jsontext.AppendString(text, string(b))
		text = append(text, ',')
	default:
		d.from.first = len(text) + len(b)*2 // no flaw is in the data
		text = append(text, `"data_base64":"`...)
		text = append(base64.StdEncoding.AppendEncode(text, b), `",`...)
	}
	text[len(text)-1] = '}' // there is ce-specversion at least
	return text, nil
}

// headerText undoes quotes (RFC 7230, 3.2.6) and then percent-encoding, once.
func headerText(v string) string {
	if len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' {
		var b strings.Builder
		for i := 1; i < len(v)-1; i++ {
			if v[i] == '\\' && i+1 < len(v)-1 {
				i++
			}
			b.WriteByte(v[i])
		}
		v = b.String()
	}
	if !strings.Contains(v, "%") {
		return v
	}
	b := make([]byte, 0, len(v))
	for i := 0; i < len(v); i++ {
		if v[i] == '%' && i+2 < len(v) {
			if c, err := strconv.ParseUint(v[i+1:i+3], 16, 8); err == nil {
				b = append(b, byte(c))
				i += 2
				continue
			}
		}
		b = append(b, v[i])
	}
	return string(b)
}

func (d *decoder) cloudElement(i int) int {
	if i >= len(d.s.Text) || d.s.Text[i] != '{' {
		return d.element(i)
	}
	dr := draft{idName: "id", whenName: "time", inside: "$cloudevent", from: d.from}
	d.unknown = d.unknown[:0]
	begin := i
	var id, source, version string
	var parent, state []byte
	members := d.s.Members(i)
	for members.Next() {
		m := &members.Member
		switch string(m.Name()) {
		case "type":
			dr.e.Name = dr.text(m, maxName)
			continue
		case "time":
			dr.when = []byte(dr.text(m, maxID))
			continue
		case "id":
			id = dr.text(m, maxID)
		case "source":
			source = dr.text(m, maxID)
		case "specversion":
			version = dr.text(m, maxID)
		case "userid":
			dr.e.UserID = dr.text(m, maxID)
		case "anonymousid":
			dr.e.AnonymousID = dr.text(m, maxID)
		case "sessionid":
			dr.e.SessionID = dr.text(m, maxID)
		case "traceparent":
			if d.traced {
				parent = hint(m)
			}
		case "tracestate":
			if d.traced {
				state = hint(m)
			}
		case "data":
			if m.Raw()[0] == '{' {
				dr.properties = dr.object(m)
				continue
			}
		}
		if m.Raw()[0] != 'n' {
			d.rest(&dr, m)
		}
	}
	if i = members.After; i < 0 {
		return -1
	}
	switch {
	case version != "1.0":
		dr.reject("specversion", fmt.Sprintf("must be \"1.0\", not %q", cut([]byte(version))), causeType)
	case id == "":
		dr.reject("id", "is required", causeMissing)
	case source == "":
		dr.reject("source", "is required", causeMissing)
	case strings.Contains(source, " "):
		dr.reject("source", "must be a URI reference, which holds no spaces", causeType)
	case dr.e.Name == "":
		dr.reject("type", "is required", causeMissing)
	}
	dr.e.Trace = newTrace(parent, state)
	// The key is both. No source holds a space, so that no two pairs come to the same.
	dr.id = []byte(source + " " + id)
	d.finish(&dr, i-begin)
	return i
}
