package console

import (
	"context"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/operate/explain"
	"sluice.example/sluice/pipeline/rules"
)

// trace is one event, from its arrival to the last attempt to send what it led to: the answer of "pipeline explain
// --json", with properties and payloads as the role may see them.
type trace struct {
	*explain.Story
	ID     string `json:"id"`
	Tenant int32  `json:"tenant_id"`

	Properties, Payloads []shown `json:"-"`
}

// mostTenants bounds for how many tenants an event is looked up where it is not said whose it is.
const mostTenants = 20

func (c *Console) trace(ctx context.Context, r *request) (any, error) {
	id := r.PathValue("id")
	tenants, err := c.asked(r)
	if err != nil {
		return nil, err
	}
	var set *rules.Set
	if c.src.Rules != nil {
		if set, err = c.src.Rules(); err != nil {
			return nil, err
		}
	}
	var found []trace
	var nowhere error
	err = c.read(ctx, func(tx pgx.Tx) error {
		for _, tenant := range tenants {
			x := explain.Explainer{Conn: tx.Conn(), Set: set, Tenant: tenant}
			story, err := x.Explain(ctx, explain.AnEvent, id)
			if isNotFound(err) {
				nowhere = err
				continue
			}
			if err != nil {
				return err
			}
			found = append(found, c.masked(r.who.Role, trace{Story: story, ID: id, Tenant: tenant}))
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, problem{http.StatusNotFound, "no_event", nowhere.Error(), ""}
	case len(found) > 1:
		return moved{"search?" + url.Values{"q": {id}}.Encode(), choiceOf(id, found)}, nil
	}
	return found[0], nil
}

// asked are the tenants of whom an event may be: the one that the query names, or all.
func (c *Console) asked(r *request) ([]int32, error) {
	tenant, err := r.whole("tenant", math.MaxInt32)
	if err != nil || tenant > 0 {
		return []int32{int32(tenant)}, err
	}
	if c.src.Tenants == nil {
		return []int32{1}, nil
	}
	all := slices.Sorted(maps.Values(c.src.Tenants()))
	if len(all) > mostTenants {
		return nil, badForm("tenant", "there are %d; say whose event it is by ?tenant=ID", len(all))
	}
	return all, nil
}

// masked leaves in a story what a role may see.
func (c *Console) masked(role Role, t trace) trace {
	for i := range t.Events {
		seen := c.show(role, t.Events[i].Properties)
		t.Properties = append(t.Properties, seen)
		t.Events[i].Properties = seen.Value
		for _, rule := range t.Events[i].Rules {
			if rule.Timer != nil {
				for j := range rule.Timer.Messages {
					rule.Timer.Messages[j].Payload = ""
				}
			}
		}
	}
	for i := range t.Messages {
		seen := c.show(role, []byte(t.Messages[i].Payload))
		t.Payloads = append(t.Payloads, seen)
		t.Messages[i].Payload = string(seen.Value)
	}
	return t
}

// choice is several things that an id, or a search, may mean.
type choice struct {
	Query string `json:"query"`
	Found []hit  `json:"found"`
}

// hit is one of them: what it is, and its page.
type hit struct {
	What string `json:"what"`
	Name string `json:"name"`
	// Page is relative to the console's root.
	Page string `json:"page"`
}

func choiceOf(id string, found []trace) choice {
	list := choice{Query: id}
	for _, t := range found {
		tenant := strconv.Itoa(int(t.Tenant))
		list.Found = append(list.Found, hit{"event of tenant " + tenant, id,
			"events/" + url.PathEscape(id) + "?tenant=" + tenant})
	}
	return list
}
