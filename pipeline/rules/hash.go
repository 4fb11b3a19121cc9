package rules

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline"
)

// hashNode returns 16 hexadecimal digits that change with the content of a rule and its defaults, and not with
// comments, quoting, layout, tests or the order of keys.
func hashNode(n *yaml.Node, defaults *yamlfile.Section) string {
	h := sha256.New()
	writeNode(h, n)
	if defaults != nil {
		writeNode(h, defaults.Node())
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// stateName names state of a rule that begins anew when one of these keys changes.
func stateName(r *Rule, c *yamlfile.Section, keys ...string) string {
	return r.StateKey + "#" + contentOf(c, keys...)
}

// contentOf is a digest of what stands under some keys.
func contentOf(c *yamlfile.Section, keys ...string) string {
	var content bytes.Buffer
	for _, k := range keys {
		if n := c.Get(k); n != nil {
			fmt.Fprint(&content, k)
			writeNode(&content, n)
		}
	}
	h := pipeline.HashUUID(content.String())
	return hex.EncodeToString(h[:4])
}

func writeNode(w io.Writer, n *yaml.Node) {
	n = yamlfile.Resolve(n)
	switch n.Kind {
	case yaml.MappingNode:
		at := make([]int, 0, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value != "tests" {
				at = append(at, i)
			}
		}
		slices.SortFunc(at, func(a, b int) int { return strings.Compare(n.Content[a].Value, n.Content[b].Value) })
		fmt.Fprintf(w, "{%d", len(at))
		for _, i := range at {
			writeNode(w, n.Content[i])
			writeNode(w, n.Content[i+1])
		}
	case yaml.SequenceNode:
		fmt.Fprintf(w, "[%d", len(n.Content))
		for _, item := range n.Content {
			writeNode(w, item)
		}
	default:
		fmt.Fprintf(w, "%s%q", n.Tag, n.Value)
	}
}
