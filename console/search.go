package console

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/operate/doctor"
	"sluice.example/sluice/operate/explain"
	"sluice.example/sluice/operate/outbox"
	"sluice.example/sluice/operate/rulelist"
	"sluice.example/sluice/pipeline/claim"
)

// search finds what a text is the id or the name of: one page, or a choice. It looks nothing up that has no index.
func (c *Console) search(ctx context.Context, r *request) (any, error) {
	q := r.text("q")
	found := choice{Query: q, Found: []hit{}}
	if q == "" {
		return found, nil
	}
	if len(q) > 500 {
		return nil, badForm("q", "at most 500 bytes")
	}
	tenants, err := c.asked(r)
	if err != nil {
		tenants = nil // too many to look for an event; all else is found
	}
	add := func(what, name, page string) { found.Found = append(found.Found, hit{what, name, page}) }
	err = c.read(ctx, func(tx pgx.Tx) error {
		x := explain.Explainer{Conn: tx.Conn()}
		story, err := x.Explain(ctx, explain.AMessage, q)
		if err == nil {
			for _, m := range story.Messages {
				add("message", fmt.Sprint(m.ID), fmt.Sprintf("messages/%d", m.ID))
			}
		} else if !isNotFound(err) {
			return err
		}
		for _, tenant := range tenants {
			x.Tenant = tenant
			if _, err := x.Explain(ctx, explain.AnEvent, q); err == nil {
				add(fmt.Sprintf("event of tenant %d", tenant), q, fmt.Sprintf("events/%s?tenant=%d", url.PathEscape(q), tenant))
			} else if !isNotFound(err) {
				return err
			}
		}
		all, err := rulelist.Read(ctx, tx)
		if err != nil {
			return err
		}
		for _, rule := range all {
			if rule.ID == q {
				add("rule", q, doctor.RulePage(rule.ID))
			}
		}
		for _, by := range []struct {
			what, field string
			filter      claim.Filter
		}{
			{"messages to the destination", "destination", claim.Filter{Destination: q}},
			{"messages of the subject", "subject", claim.Filter{Subject: q}},
		} {
			list, _, err := outbox.List(ctx, tx, by.filter, 0, 1)
			if err != nil {
				return err
			}
			if len(list) > 0 {
				add(by.what, q, "messages?"+url.Values{by.field: {q}}.Encode())
			}
		}
		return nil
	})
	if err == nil && len(found.Found) == 1 {
		return moved{found.Found[0].Page, found}, nil
	}
	return found, err
}

func isNotFound(err error) bool {
	var none explain.NotFoundError
	return errors.As(err, &none)
}
