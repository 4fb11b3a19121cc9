package main

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/internal/yamlfile"
)

// loadFile reads a YAML file in which keys are nested, dotted, or both.
func loadFile(byKey map[string]*setting, keys []string, name string) error {
	l := fileLoader{byKey: byKey, keys: keys, file: yamlfile.Read(name), seen: map[string]string{}}
	if root := l.file.Root(); root != nil {
		l.walk("", root)
	}
	return l.file.Err()
}

type fileLoader struct {
	byKey map[string]*setting
	keys  []string
	file  *yamlfile.File
	// seen is the place of each setting, however it was spelled.
	seen map[string]string
}

func (l *fileLoader) walk(prefix string, section *yaml.Node) {
	for k, v := range l.file.Pairs(section, strings.TrimSuffix(prefix, ".")) {
		at := fmt.Sprintf("%s:%d:%d", l.file.Name, k.Line, k.Column)
		key := prefix + k.Value
		s := l.byKey[key]
		switch {
		case s == nil && v.Kind == yaml.MappingNode && l.isPrefix(key+"."):
			l.walk(key+".", v)
		case s == nil:
			l.file.Fault(k, "", "unknown key %q%s", key, spell.DidYouMean(key, l.keys))
		case l.seen[key] != "":
			l.file.Fault(k, "", "%s is set twice, first at %s", key, l.seen[key])
		default:
			l.seen[key] = at
			l.set(s, k, v, at)
		}
	}
}

func (l *fileLoader) isPrefix(key string) bool {
	return slices.ContainsFunc(l.keys, func(k string) bool { return strings.HasPrefix(k, key) })
}

// set takes a value, or a list of them, which is joined as a flag would be.
func (l *fileLoader) set(s *setting, k, v *yaml.Node, at string) {
	values := []*yaml.Node{v}
	if v.Kind == yaml.SequenceNode {
		values = v.Content
	}
	var texts []string
	for _, item := range values {
		if item = yamlfile.Resolve(item); item.Kind != yaml.ScalarNode {
			l.file.Fault(k, "", "%s takes one value, or a list of them", s.key)
			return
		}
		texts = append(texts, item.Value)
	}
	if err := s.set(strings.Join(texts, ","), at); err != nil {
		l.file.Fault(k, "", "%v", err)
	}
}
