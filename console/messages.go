package console

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/operate/outbox"
	"sluice.example/sluice/pipeline/claim"
)

// messageStatuses are the values of outbox.status, the most interesting first.
var messageStatuses = []string{"dead", "failed", "pending", "sent", "skipped"}

// rowsOfAPage is how many rows a list shows.
const rowsOfAPage = 50

// messageList is a page of the outbox, the newest first.
type messageList struct {
	// Filter are the fields of the query, as they were given.
	Filter url.Values `json:"filter"`
	// Messages come without payloads and headers.
	Messages []outbox.Message `json:"messages"`
	// Older is the next page, relative to the root of pages or of the API; empty at the end.
	Older string `json:"older,omitempty"`
	// Reached is the id down to which messages were looked at, where the list ends for that reason.
	Reached int64 `json:"reached,omitempty"`

	Statuses []string `json:"-"`
}

// messageFilter reads the fields that lists and bulk actions share.
func (r *request) messageFilter() (f claim.Filter, err error) {
	f = claim.Filter{Destination: r.text("destination"), Type: r.text("type"), Subject: r.form.Get("subject"),
		Error: r.text("error")}
	tenant, err1 := r.whole("tenant", math.MaxInt32)
	status, err2 := r.oneOf("status", messageStatuses)
	var err3, err4 error
	f.OlderThan, err3 = r.length("older")
	f.NewerThan, err4 = r.length("newer")
	if status != "" {
		f.Statuses = []string{status}
	}
	f.Tenant = int32(tenant)
	return f, firstOf(err1, err2, err3, err4)
}

// firstOf returns the first error that is one: an answer has one status.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Console) messages(ctx context.Context, r *request) (any, error) {
	f, err := r.messageFilter()
	before, err2 := r.whole("before", math.MaxInt64)
	if err := firstOf(err, err2); err != nil {
		return nil, err
	}
	list := messageList{Filter: url.Values{}, Statuses: messageStatuses}
	for field, values := range r.form {
		if field != "before" && field != "format" && values[0] != "" {
			list.Filter[field] = values[:1]
		}
	}
	err = c.read(ctx, func(tx pgx.Tx) (err error) {
		list.Messages, list.Reached, err = outbox.List(ctx, tx, f, before, rowsOfAPage)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range list.Messages {
		list.Messages[i].Payload, list.Messages[i].Headers = nil, nil
	}
	next := list.Reached
	if len(list.Messages) == rowsOfAPage {
		next = list.Messages[rowsOfAPage-1].ID
	}
	if next > 1 {
		query := url.Values{"before": {strconv.FormatInt(next, 10)}}
		for field, values := range list.Filter {
			query[field] = values
		}
		list.Older = "messages?" + query.Encode()
	}
	return list, nil
}

// messageStory is one message with all that is known of it.
type messageStory struct {
	outbox.Message
	Headers map[string]string `json:"headers"`
	Payload shown             `json:"payload"`
	// Tries are the attempts on record, the oldest first; Attempts counts those that were made.
	Tries []outbox.Attempt `json:"tries"`
}

func (c *Console) message(ctx context.Context, r *request) (any, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, badForm("id", "%q; the id of a message is a number", r.PathValue("id"))
	}
	var story messageStory
	err = c.read(ctx, func(tx pgx.Tx) (err error) {
		story.Message, story.Tries, err = outbox.Show(ctx, tx, id)
		return err
	})
	if errors.Is(err, claim.ErrNoMessage) {
		return nil, problem{http.StatusNotFound, "no_message", fmt.Sprintf("there is no message %d", id),
			"it may have been pruned: retain.outbox says how long finished messages are kept"}
	}
	if err != nil {
		return nil, err
	}
	story.Payload = c.show(r.who.Role, story.Message.Payload)
	story.Headers = c.showHeaders(r.who.Role, story.Message.Headers)
	return story, nil
}
