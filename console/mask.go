package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"sluice.example/sluice/internal/spell"
)

// What a role sees of payloads: nothing, all but the values of Config.Mask, or all.
const (
	payloadsHidden = "hidden"
	payloadsMasked = "masked"
	payloadsShown  = "shown"
)

var allPayloads = []string{payloadsHidden, payloadsMasked, payloadsShown}

// masked stands where a value was.
const masked = "•••"

// longestPayload is how many bytes of a payload a page shows; it is read faster elsewhere than in a browser.
const longestPayload = 64 << 10

// shown is a JSON value as somebody may see it. Every payload, event and header leaves the console in one of these, and
// only show makes them.
type shown struct {
	// How is hidden, masked or shown.
	How string `json:"how"`
	// Value is nil where it is hidden, or longer than what the console shows.
	Value json.RawMessage `json:"value,omitempty"`
	// Bytes is the length of the whole.
	Bytes int `json:"bytes"`
	// Text is for pages: with line breaks, and cut at its end where it is too long.
	Text string `json:"-"`
	// Cut is true where Text is not the whole.
	Cut bool `json:"cut,omitempty"`
}

// payloads is how much a role sees of them.
func (c *Console) payloads(role Role) string {
	if role >= Operator {
		return c.cfg.Payloads
	}
	return c.cfg.ViewerPayloads
}

// show returns what a role may see of a JSON text.
func (c *Console) show(role Role, text []byte) shown {
	how := c.payloads(role)
	s := shown{How: how, Bytes: len(text)}
	if how == payloadsHidden || role < Viewer {
		s.How = payloadsHidden
		return s
	}
	if how == payloadsMasked {
		var err error
		if text, err = maskJSON(text, c.maskPaths); err != nil {
			s.How = payloadsHidden // what can't be read can't be masked
			return s
		}
	}
	var lines bytes.Buffer
	if err := json.Indent(&lines, text, "", "  "); err != nil {
		s.How = payloadsHidden
		return s
	}
	s.Value, s.Text = text, lines.String()
	if len(s.Text) > longestPayload {
		s.Value, s.Text, s.Cut = nil, strings.ToValidUTF8(s.Text[:longestPayload], ""), true
	}
	return s
}

// showHeaders returns what a role may see of a message's headers, whose values are masked by their names.
func (c *Console) showHeaders(role Role, headers map[string]string) map[string]string {
	how := c.payloads(role)
	seen := make(map[string]string, len(headers))
	for name, value := range headers {
		if how == payloadsHidden || how == payloadsMasked && isMasked([]string{foldName(name)}, c.maskPaths) {
			value = masked
		}
		seen[name] = value
	}
	return seen
}

// foldName makes names equal that differ in case and in how they join words.
func foldName(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", "$", "").Replace(name))
}

// maskPaths reads paths of names joined by dots.
func maskPaths(paths []string) (split [][]string, err error) {
	for _, path := range paths {
		names := strings.Split(path, ".")
		for i, name := range names {
			if names[i] = foldName(strings.TrimSpace(name)); names[i] == "" {
				return nil, fmt.Errorf("console.mask: %q; set names joined by dots, such as properties.email", path)
			}
		}
		split = append(split, names)
	}
	return split, nil
}

// isMasked is true where the end of a way into a value is one of the paths.
func isMasked(way []string, paths [][]string) bool {
	return slices.ContainsFunc(paths, func(path []string) bool {
		return len(path) <= len(way) && slices.Equal(path, way[len(way)-len(path):])
	})
}

// maskJSON returns a JSON text with each value replaced whose path ends as one of paths does; elements of arrays count
// as their array. Everything else keeps its order and the digits of its numbers.
func maskJSON(text []byte, paths [][]string) ([]byte, error) {
	m := masker{in: json.NewDecoder(bytes.NewReader(text)), paths: paths}
	m.in.UseNumber()
	if err := m.value(); err != nil {
		return nil, err
	}
	if _, err := m.in.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return m.out.Bytes(), nil
}

type masker struct {
	in    *json.Decoder
	out   bytes.Buffer
	paths [][]string
	// way are the names of fields down to here.
	way   []string
	depth int
}

// deepest is how deep a value may go, which is as deep as encoding/json reads.
const deepest = 10_000

// value copies the next value.
func (m *masker) value() error {
	token, err := m.in.Token()
	if err != nil {
		return err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return m.write(token)
	}
	if m.depth++; m.depth > deepest {
		return errors.New("too deep")
	}
	defer func() { m.depth-- }()
	m.out.WriteByte(byte(delim))
	for first := true; m.in.More(); first = false {
		if !first {
			m.out.WriteByte(',')
		}
		if delim == '[' {
			err = m.value()
		} else {
			err = m.field()
		}
		if err != nil {
			return err
		}
	}
	end, err := m.in.Token()
	if err == nil {
		m.out.WriteByte(byte(end.(json.Delim)))
	}
	return err
}

// field copies a name and its value, or what stands for it.
func (m *masker) field() error {
	name, err := m.in.Token()
	if err != nil {
		return err
	}
	if err := m.write(name); err != nil {
		return err
	}
	m.out.WriteByte(':')
	m.way = append(m.way, foldName(name.(string)))
	defer func() { m.way = m.way[:len(m.way)-1] }()
	if !isMasked(m.way, m.paths) {
		return m.value()
	}
	var skipped json.RawMessage
	if err := m.in.Decode(&skipped); err != nil {
		return err
	}
	return m.write(masked)
}

func (m *masker) write(v any) error {
	text, err := json.Marshal(v)
	m.out.Write(text)
	return err
}

// validatePayloads reports what is wrong with the settings of what is shown.
func (cfg Config) validatePayloads() error {
	var errs []error
	for _, s := range []struct{ key, value string }{
		{"console.payloads", cfg.Payloads}, {"console.viewer-payloads", cfg.ViewerPayloads},
	} {
		if !slices.Contains(allPayloads, s.value) {
			errs = append(errs, fmt.Errorf("%s: %q; set hidden, masked or shown%s", s.key, s.value,
				spell.DidYouMean(s.value, allPayloads)))
		}
	}
	_, err := maskPaths(cfg.Mask)
	return errors.Join(append(errs, err)...)
}
