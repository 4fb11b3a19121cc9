package console

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/operate/doctor"
	"sluice.example/sluice/operate/nodes"
	"sluice.example/sluice/operate/outbox"
	"sluice.example/sluice/operate/tune"
	"sluice.example/sluice/pipeline/claim"
)

// destination is what is known of one: its backlog, and the nodes that send it nothing now.
type destination struct {
	claim.Backlog
	// Configured is true where this process knows it.
	Configured bool `json:"configured"`
	// State is open, paused or closed, as the nodes say; Nodes are those that pause or have closed it.
	State string   `json:"state"`
	Nodes []string `json:"nodes,omitempty"`
	// Pause is the change of an operator that pauses it, if that is in force.
	Pause *tune.Override `json:"pause,omitempty"`
	// Failing are its newest messages with an error, without payloads.
	Failing []outbox.Message `json:"failing,omitempty"`
}

type destinationList struct {
	Destinations []destination `json:"destinations"`
	known
}

func (c *Console) destinations(ctx context.Context, _ *request) (any, error) {
	report, known, err := c.known(ctx)
	if err != nil {
		return nil, err
	}
	return destinationList{c.destinationsIn(report), known}, nil
}

// destinationsIn are those that this process knows, and those that messages are for.
func (c *Console) destinationsIn(r *doctor.Report) []destination {
	all := make([]destination, 0, len(c.src.Destinations))
	for _, name := range c.src.Destinations {
		all = append(all, destination{Backlog: claim.Backlog{Destination: name}, Configured: true})
	}
	at := func(name string) *destination {
		i := slices.IndexFunc(all, func(d destination) bool { return d.Destination == name })
		if i < 0 {
			all = append(all, destination{Backlog: claim.Backlog{Destination: name}})
			i = len(all) - 1
		}
		return &all[i]
	}
	for _, b := range r.Backlogs {
		at(b.Destination).Backlog = b
	}
	for _, n := range nodes.Named(r.Nodes, "") {
		for _, g := range n.State.Gates {
			d := at(g.Destination)
			if d.Nodes = append(d.Nodes, n.Name); g.Open {
				d.State = "closed"
			}
			if g.Paused {
				d.State = "paused"
			}
		}
	}
	for i := range all {
		all[i].State = cmp.Or(all[i].State, "open")
	}
	slices.SortFunc(all, func(a, b destination) int { return cmp.Compare(a.Destination, b.Destination) })
	return all
}

// newestFailing is how many messages with an error the page of a destination shows.
const newestFailing = 20

func (c *Console) destination(ctx context.Context, r *request) (any, error) {
	report, _, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	all := c.destinationsIn(report)
	name := r.PathValue("name")
	i := slices.IndexFunc(all, func(d destination) bool { return d.Destination == name })
	if i < 0 {
		// One whose messages are all final is in no backlog.
		all, i = []destination{{Backlog: claim.Backlog{Destination: name}, State: "open"}}, 0
	}
	d := all[i]
	err = c.read(ctx, func(tx pgx.Tx) error {
		changes, err := tune.List(ctx, tx)
		if err != nil {
			return err
		}
		for _, o := range changes {
			if o.Key == tune.Of(tune.Paused, name) && o.Value == "true" {
				d.Pause = &o
			}
		}
		f := claim.Filter{Destination: name, Statuses: []string{"failed", "dead"}}
		if d.Failing, _, err = outbox.List(ctx, tx, f, 0, newestFailing); err != nil || len(d.Failing) > 0 {
			return err
		}
		any, _, err := outbox.List(ctx, tx, claim.Filter{Destination: name}, 0, 1)
		if err == nil && len(any) == 0 && !d.Configured {
			return problem{http.StatusNotFound, "no_destination",
				"no destination " + name + " is known, and no message is for it", ""}
		}
		return err
	})
	for i := range d.Failing {
		d.Failing[i].Payload, d.Failing[i].Headers = nil, nil
	}
	return d, err
}
