package console

import (
	"context"
	"fmt"
	"math"
	"net/http"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/operate/quarantine"
)

// quarantineList are the reasons of quarantine, and the newest events.
type quarantineList struct {
	Groups []quarantine.Group `json:"groups"`
	// Capped is true where more events are there than were counted.
	Capped bool              `json:"capped,omitempty"`
	Events quarantine.Events `json:"events"`

	Tenant   int64  `json:"-"`
	SQLState string `json:"-"`
}

func (c *Console) quarantine(ctx context.Context, r *request) (any, error) {
	var q quarantineList
	var err error
	if q.Tenant, err = r.whole("tenant", math.MaxInt32); err != nil {
		return nil, err
	}
	q.SQLState = r.text("sqlstate")
	f := quarantine.Filter{Tenant: int32(q.Tenant), SQLState: q.SQLState}
	err = c.read(ctx, func(tx pgx.Tx) (err error) {
		if q.Groups, q.Capped, err = quarantine.Groups(ctx, tx); err != nil {
			return err
		}
		q.Events, err = quarantine.List(ctx, tx, f, rowsOfAPage)
		return err
	})
	return q, err
}

// quarantined is one event in quarantine; as often as it came with different times.
type quarantined struct {
	ID     string             `json:"event_id"`
	Events []quarantinedEvent `json:"events"`
}

type quarantinedEvent struct {
	quarantine.Event
	Text shown `json:"event"`
}

func (c *Console) quarantinedEvent(ctx context.Context, r *request) (any, error) {
	tenant, err := r.whole("tenant", math.MaxInt32)
	if err != nil {
		return nil, err
	}
	q := quarantined{ID: r.PathValue("id")}
	var events []quarantine.Whole
	err = c.read(ctx, func(tx pgx.Tx) (err error) {
		events, err = quarantine.Show(ctx, tx, quarantine.Filter{Tenant: int32(tenant), Event: q.ID})
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(events) == 0 {
		return nil, problem{http.StatusNotFound, "no_event", fmt.Sprintf("event %s is not in quarantine", q.ID),
			"it may have been deleted, or imported again"}
	}
	for _, e := range events {
		q.Events = append(q.Events, quarantinedEvent{e.Event, c.show(r.who.Role, e.Text)})
	}
	return q, nil
}
