package rules

import (
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/spell"
)

// pinned finds comparisons of the event's name with a text, as people write them.
var pinned = regexp.MustCompile(`event\.event_name\s*==\s*("[^"\\]*"|'[^'\\]*')`)

// lintMatch warns of a condition that asks for a name that the rule does not listen to.
func (l *loader) lintMatch(n *yaml.Node, where string, on []string) {
	for _, m := range pinned.FindAllStringSubmatchIndex(n.Value, -1) {
		name := n.Value[m[2]+1 : m[3]-1]
		before := n.Value[:m[2]]
		line := strings.Count(before, "\n")
		line, col := l.src.Inside(n, line+1, len([]rune(before[strings.LastIndex(before, "\n")+1:])))
		switch {
		case slices.Equal(on, []string{"*"}):
			l.warnAt(line, col, where, "name %q in on instead of asking for it here: then other events cost nothing", name)
		case !slices.Contains(on, name):
			l.warnAt(line, col, where, "the event is never %q here: the rule listens to %s. "+
				"Add the name to on, or drop the comparison%s", name, strings.Join(on, ", "), spell.DidYouMean(name, on))
		}
	}
}
