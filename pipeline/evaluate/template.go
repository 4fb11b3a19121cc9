package evaluate

import (
	"errors"

	"cel.dev/cel-go/common/types"
	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/yamlfile"
)

// template makes the payload of a message: a tree whose leaves are expressions.
type template struct {
	leaf *program
	// keys are set for an object; otherwise items are those of a list.
	keys  []string
	items []*template
}

// maxNesting bounds a payload's depth.
const maxNesting = 10

func (sc *scope) template(src *yamlfile.File, n *yaml.Node, where string, depth int) *template {
	if depth > maxNesting {
		src.Fault(n, where, "a payload can be nested %d deep at most", maxNesting)
		return nil
	}
	t := &template{}
	switch n = yamlfile.Resolve(n); n.Kind {
	case yaml.MappingNode:
		t.keys = []string{}
		for k, v := range src.Pairs(n, where) {
			t.keys = append(t.keys, k.Value)
			t.items = append(t.items, sc.template(src, v, where+"."+k.Value, depth+1))
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			t.items = append(t.items, sc.template(src, item, where, depth+1))
		}
	default:
		t.leaf = sc.compile(src, n, where, anyValue)
	}
	return t
}

var errTooLarge = errors.New("larger than evaluate.max-payload-bytes")

// append appends the payload's JSON. It stops soon after the result is longer than most bytes.
func (t *template) append(dst []byte, v *vars, most int) (_ []byte, err error) {
	switch {
	case len(dst) > most:
		return dst, errTooLarge
	case t.leaf != nil:
		return t.leaf.appendJSON(dst, v)
	case t.keys != nil:
		dst = append(dst, '{')
		for i, item := range t.items {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = item.append(append(appendString(dst, t.keys[i]), ':'), v, most); err != nil {
				return dst, err
			}
		}
		return append(dst, '}'), nil
	}
	dst = append(dst, '[')
	for i, item := range t.items {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = item.append(dst, v, most); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

// appendJSON appends the value. A property on its own is passed on as the client wrote it, with all its digits.
func (p *program) appendJSON(dst []byte, v *vars) ([]byte, error) {
	switch {
	case v.event == nil || p.member == nil:
	case p.member.text != nil:
		return appendString(dst, p.member.text(v.event.event)), nil
	default:
		m := v.event.props.find(p.member.property)
		if m == nil {
			return dst, missing("properties." + p.member.property)
		}
		return append(dst, m.raw...), nil
	}
	out, err := p.eval(v)
	if err != nil {
		return dst, err
	}
	return appendJSON(dst, out)
}

// digestFields are the members of digest, in the payload of a digest.
var digestFields = map[string]*types.FieldType{
	"count":   propertyField("count", types.IntType),
	"subject": propertyField("subject", types.StringType),
	"since":   propertyField("since", types.StringType),
}
