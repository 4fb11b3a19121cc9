package deliver

import (
	"fmt"
	"slices"

	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/internal/yamlfile"
)

// LoadTopics reads what an application's messages may name instead of a destination, and reports every mistake with its
// place:
//
//	topics:
//	  orders: [crm, billing]
func (ds Destinations) LoadTopics(name string) (map[string][]string, error) {
	f := yamlfile.Read(name)
	top := f.Top("topics")
	topics := map[string][]string{}
	if n := top.Get("topics"); n != nil {
		for k, v := range f.Pairs(n, "topics") {
			where := fmt.Sprintf("topics.%s", k.Value)
			topics[k.Value] = nil
			for _, item := range f.Items(v, where, "a list of destinations") {
				if !yamlfile.IsScalar(item) {
					f.Fault(item, where, "expected the name of a destination, got %s", yamlfile.Describe(item))
					continue
				}
				if !slices.Contains(ds.Names(), item.Value) {
					f.Fault(item, where, "unknown destination %q%s", item.Value, spell.DidYouMean(item.Value,
						ds.Names()))
				}
				topics[k.Value] = append(topics[k.Value], item.Value)
			}
			if len(topics[k.Value]) == 0 {
				f.Fault(v, where, "has no destinations: name one, or remove the topic")
			}
		}
	}
	return topics, f.Err()
}
