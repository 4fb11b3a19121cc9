package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/operate/audit"
	"sluice.example/sluice/operate/outbox"
	"sluice.example/sluice/pipeline/claim"
)

// longestReason bounds what an operator writes down.
const longestReason = 500

// by is who acts, and why; a reason has to be given.
func (r *request) by() (audit.Actor, error) {
	why := r.text("why")
	if why == "" || len(why) > longestReason {
		return audit.Actor{}, badForm("why", "give a reason of at most %d bytes; it goes into the audit", longestReason)
	}
	return audit.Actor{Name: r.who.Name, Via: audit.Console, Why: why}, nil
}

// action finds Retry or Discard by its name.
func action(name string) (outbox.Change, error) {
	for _, c := range []outbox.Change{outbox.Retry, outbox.Discard} {
		if c.Name == name {
			return c, nil
		}
	}
	return outbox.Change{}, problem{http.StatusNotFound, "no_action", "there is no action " + name,
		"retry and discard are"}
}

// changeMessage retries or discards one message.
func (c *Console) changeMessage(ctx context.Context, r *request) (any, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, badForm("id", "%q; the id of a message is a number", r.PathValue("id"))
	}
	change, err1 := action(r.PathValue("action"))
	by, err2 := r.by()
	if err := firstOf(err1, err2); err != nil {
		return nil, err
	}
	if c.src.Changes == nil {
		return nil, errNoDatabase
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch err := change.One(ctx, c.src.Changes, id, by); {
	case errors.Is(err, claim.ErrNoMessage):
		return nil, problem{http.StatusNotFound, "no_message", fmt.Sprintf("there is no message %d", id), ""}
	case errors.Is(err, outbox.ErrNotChanged):
		return nil, problem{http.StatusConflict, "not_changed", err.Error(), "look at the message again"}
	case err != nil:
		return nil, err
	}
	return moved{fmt.Sprintf("messages/%d", id), map[string]string{"message_id": fmt.Sprint(id), "done": change.Done}}, nil
}

// plan is what a change of all that a filter finds would do, and the form that does it.
type plan struct {
	Action string `json:"action"`
	outbox.Plan
	// Rate is proposed, in messages a second, and Seconds is how long the job takes at it.
	Rate    int     `json:"rate"`
	Seconds float64 `json:"seconds_at_rate"`
	// Token is the plan, for POST /v1/jobs, until Expires. Sent twice, it is one job.
	Token   string    `json:"plan"`
	Expires time.Time `json:"expires_at"`
}

// proposedRate is for a receiver that has just come back. A guess.
const proposedRate = 200

// token is what a job needs of a plan. It is no secret: whoever may send it may as well send any filter.
type token struct {
	Action string
	outbox.Plan
}

func (c *Console) plan(ctx context.Context, r *request) (any, error) {
	change, err1 := action(r.text("action"))
	f, err2 := r.messageFilter()
	if err := firstOf(err1, err2); err != nil {
		return nil, err
	}
	p := plan{Action: change.Name}
	err := c.read(ctx, func(tx pgx.Tx) (err error) {
		p.Plan, err = change.Plan(ctx, tx, f)
		return err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, problem{http.StatusServiceUnavailable, "too_many", "these can't be counted in " + length(patience),
			"narrow the filter down, or use pipeline outbox " + change.Name}
	}
	if err != nil {
		return nil, err
	}
	p.Rate, p.Seconds = proposedRate, float64(p.Messages)/proposedRate
	p.Expires = p.At.Add(outbox.PlanFor)
	t := token{p.Action, p.Plan}
	t.Sample, t.Groups = nil, nil
	text, err := json.Marshal(t)
	p.Token = string(text)
	return p, err
}

// fastest bounds the rate of a job, in messages a second.
const fastest = 10_000

func (c *Console) startJob(ctx context.Context, r *request) (any, error) {
	var t token
	if err := json.Unmarshal([]byte(r.form.Get("plan")), &t); err != nil {
		return nil, badForm("plan", "it is that of the answer to POST plans: %v", err)
	}
	change, err1 := action(t.Action)
	by, err2 := r.by()
	rate, err3 := r.whole("rate", fastest)
	confirmed, err4 := r.whole("confirm", math.MaxInt64)
	if err := firstOf(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	switch {
	case rate < 1:
		return nil, badForm("rate", "write messages a second, from 1 to %d", fastest)
	case confirmed != t.Messages || r.text("confirm") == "":
		return nil, badForm("confirm", "write the number of messages, %d", t.Messages)
	case t.Messages == 0:
		return nil, badForm("plan", "there is nothing to do")
	case c.src.Changes == nil:
		return nil, errNoDatabase
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	id, err := change.Start(ctx, c.src.Changes, t.Plan, float64(rate), by)
	if errors.Is(err, outbox.ErrPlanOld) {
		return nil, problem{http.StatusConflict, "plan_old", err.Error(), "make another: there may be other messages now"}
	}
	if err != nil {
		return nil, err
	}
	return moved{fmt.Sprintf("jobs/%d", id), map[string]string{"job_id": fmt.Sprint(id)}}, nil
}

// jobList is a page of jobs, the newest first.
type jobList struct {
	Jobs outbox.JobList `json:"jobs"`
	// Older is the next page, relative to the root of pages or of the API; empty at the end.
	Older string `json:"older,omitempty"`
}

func (c *Console) jobs(ctx context.Context, r *request) (any, error) {
	before, err := r.whole("before", math.MaxInt64)
	if err != nil {
		return nil, err
	}
	var list jobList
	err = c.read(ctx, func(tx pgx.Tx) (err error) {
		list.Jobs, err = outbox.Jobs(ctx, tx, before, rowsOfAPage)
		return err
	})
	if len(list.Jobs) == rowsOfAPage {
		list.Older = fmt.Sprintf("jobs?before=%d", list.Jobs[rowsOfAPage-1].ID)
	}
	return list, err
}

func (c *Console) job(ctx context.Context, r *request) (any, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, badForm("id", "%q; the id of a job is a number", r.PathValue("id"))
	}
	var j outbox.Job
	err = c.read(ctx, func(tx pgx.Tx) (err error) {
		j, err = outbox.OneJob(ctx, tx, id)
		return err
	})
	if errors.Is(err, outbox.ErrNoJob) {
		return nil, problem{http.StatusNotFound, "no_job", err.Error(), "jobs that ended are forgotten after 90 days"}
	}
	return j, err
}

func (c *Console) steerJob(ctx context.Context, r *request) (any, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, badForm("id", "%q; the id of a job is a number", r.PathValue("id"))
	}
	steer, ok := map[string]outbox.Steer{"pause": outbox.Pause, "resume": outbox.Resume,
		"cancel": outbox.Cancel}[r.PathValue("action")]
	if !ok {
		return nil, problem{http.StatusNotFound, "no_action", "there is no action " + r.PathValue("action"),
			"pause, resume and cancel are"}
	}
	by := audit.Actor{Name: r.who.Name, Via: audit.Console, Why: r.text("why")}
	if len(by.Why) > longestReason {
		return nil, badForm("why", "at most %d bytes", longestReason)
	}
	if c.src.Changes == nil {
		return nil, errNoDatabase
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch err := steer.Do(ctx, c.src.Changes, id, by); {
	case errors.Is(err, outbox.ErrNoJob):
		return nil, problem{http.StatusNotFound, "no_job", err.Error(), ""}
	case errors.Is(err, outbox.ErrJobEnded):
		return nil, problem{http.StatusConflict, "job_ended", err.Error(), ""}
	case err != nil:
		return nil, err
	}
	return moved{fmt.Sprintf("jobs/%d", id), map[string]string{"job_id": fmt.Sprint(id), "done": steer.Done}}, nil
}

// auditList is a page of the audit, the newest first.
type auditList struct {
	Entries audit.Entries `json:"entries"`
	Filter  audit.Filter  `json:"-"`
	// Older is the next page, relative to the root of pages or of the API; empty at the end.
	Older string `json:"older,omitempty"`
}

func (c *Console) audit(ctx context.Context, r *request) (any, error) {
	before, err := r.whole("before", math.MaxInt64)
	if err != nil {
		return nil, err
	}
	list := auditList{Filter: audit.Filter{Actor: r.text("actor"), Action: r.text("action"), Target: r.text("target")}}
	err = c.read(ctx, func(tx pgx.Tx) (err error) {
		list.Entries, err = audit.List(ctx, tx, list.Filter, before, rowsOfAPage)
		return err
	})
	if len(list.Entries) == rowsOfAPage {
		query := url.Values{"before": {strconv.FormatInt(list.Entries[rowsOfAPage-1].ID, 10)}}
		for field, value := range map[string]string{"actor": list.Filter.Actor, "action": list.Filter.Action,
			"target": list.Filter.Target} {
			if value != "" {
				query.Set(field, value)
			}
		}
		list.Older = "audit?" + query.Encode()
	}
	return list, err
}
