package console

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/operate/explain"
	"sluice.example/sluice/operate/rulelist"
	"sluice.example/sluice/pipeline"
)

// ruleList is the answer of "pipeline rules list --json", and what this process has in force.
type ruleList struct {
	Rules rulelist.List `json:"rules"`
}

func (c *Console) rules(ctx context.Context, _ *request) (any, error) {
	var list ruleList
	err := c.read(ctx, func(tx pgx.Tx) (err error) {
		list.Rules, err = rulelist.Read(ctx, tx)
		return err
	})
	return list, err
}

// ruleStory is one rule: what it did by hour, and what it makes of an event that somebody gave.
type ruleStory struct {
	Rule  *rulelist.Rule  `json:"rule"`
	Hours []rulelist.Hour `json:"hours"`
	// Known is true where this process has the rule, so that it can try events.
	Known bool `json:"known"`
	// Looks are what it makes of the event that was given; nil where none was.
	Looks []explain.Rule `json:"looks,omitempty"`
	Tried bool           `json:"tried,omitempty"`
	// Event is what was given.
	Event string `json:"-"`
}

// Most is the largest number of messages in an hour, at least 1.
func (s ruleStory) Most() int64 {
	most := int64(1)
	for _, h := range s.Hours {
		most = max(most, h.Messages, h.Held)
	}
	return most
}

// Bar is how high a number stands in a chart of 60 units.
func (s ruleStory) Bar(n int64) int64 { return (n*60 + s.Most() - 1) / s.Most() }

func (c *Console) rule(ctx context.Context, r *request) (any, error) {
	id := r.PathValue("id")
	var story ruleStory
	err := c.read(ctx, func(tx pgx.Tx) error {
		all, err := rulelist.Read(ctx, tx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(rule rulelist.Rule) bool { return rule.ID == id })
		if i < 0 {
			return problem{http.StatusNotFound, "no_rule", "no pipeline has reported a rule " + id, ""}
		}
		story.Rule = &all[i]
		story.Hours, err = rulelist.Hours(ctx, tx, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	return story, c.try(r, &story)
}

// triedEvent is an event as a form has it: the fields of /v1/events that rules see.
type triedEvent struct {
	Event       string          `json:"event"`
	OccurredAt  time.Time       `json:"occurred_at"`
	UserID      string          `json:"user_id"`
	AnonymousID string          `json:"anonymous_id"`
	SessionID   string          `json:"session_id"`
	Properties  json.RawMessage `json:"properties"`
}

// try lets the rule look at the event of the query. Nothing is stored, and nothing that is stored is looked at: keys
// that were used and limits that are reached show on the page of an event.
func (c *Console) try(r *request, story *ruleStory) error {
	if c.src.Rules == nil {
		return nil
	}
	set, err := c.src.Rules()
	if err != nil || set == nil || set.Named(story.Rule.ID) == nil {
		return err
	}
	story.Known, story.Event = true, r.text("event")
	if story.Event == "" {
		return nil
	}
	var given triedEvent
	in := json.NewDecoder(strings.NewReader(story.Event))
	in.DisallowUnknownFields()
	if err := in.Decode(&given); err != nil {
		return badForm("event", "%v; write an object with event, user_id, anonymous_id, session_id, occurred_at and "+
			"properties", err)
	}
	tenant, err := r.whole("tenant", math.MaxInt32)
	if err != nil {
		return err
	}
	if given.Event == "" {
		return badForm("event", `it has no name: write {"event": "..."}`)
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	e := pipeline.Event{ID: pipeline.NewUUIDv4(), Tenant: int32(max(tenant, 1)), Name: given.Event, OccurredAt: now,
		ReceivedAt: now, UserID: given.UserID, AnonymousID: given.AnonymousID, SessionID: given.SessionID,
		Properties: given.Properties}
	if !given.OccurredAt.IsZero() {
		e.OccurredAt = given.OccurredAt.UTC().Truncate(time.Microsecond)
	}
	story.Tried = true
	for _, l := range set.Explain(e) {
		if l.Rule == story.Rule.ID {
			story.Looks = append(story.Looks, explain.Rule{Rule: l.Rule, Kind: l.Kind, State: l.State, Version: l.Hash, As: l.As,
				Matched: l.Matched, Failure: l.Failure, Key: l.Key, Subject: l.Subject})
		}
	}
	return nil
}
