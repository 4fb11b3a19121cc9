// Package explain tells the story of an event or a message.
package explain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// Explainer prints one story.
type Explainer struct {
	Conn   *pgx.Conn
	Set    *rules.Set // nil without rules
	Out    io.Writer
	Tenant int32
}

func (x *Explainer) say(format string, args ...any) { fmt.Fprintf(x.Out, format+"\n", args...) }

// Explain prints what is known of an id.
func (x *Explainer) Explain(ctx context.Context, id string) error {
	uuid, isUUID := pipeline.ParseUUID(id)
	if number, err := strconv.ParseInt(id, 10, 64); err == nil {
		if found, err := x.messages(ctx, `message_id = $1`, number); found > 0 || err != nil {
			return err
		}
	}
	if isUUID {
		if found, err := x.messages(ctx, `idempotency_key = $1`, uuid); found > 0 || err != nil {
			return err
		}
	} else {
		uuid = pipeline.HashUUID(id)
	}
	found, err := x.event(ctx, uuid)
	if err == nil && !found {
		found, err = x.quarantined(ctx, uuid)
	}
	if err == nil && !found {
		err = fmt.Errorf("%s is neither a message nor a stored event of tenant %d: it never arrived, it was rejected (then its sender was told), or it was removed by age", id, x.Tenant)
	}
	return err
}

func (x *Explainer) event(ctx context.Context, id pipeline.UUID) (bool, error) {
	all, err := find(ctx, x.Conn, x.Tenant, id)
	if err != nil || len(all) == 0 {
		return false, err
	}
	var events []pipeline.Event
	for _, f := range all {
		e := f.Event
		events = append(events, e)
		x.say("Event %s %s of tenant %d, in %s", e.Name, eventName(e), e.Tenant, f.partition)
		x.say("  happened %s, arrived %s (%s later)",
			stamp(e.OccurredAt), stamp(e.ReceivedAt), e.ReceivedAt.Sub(e.OccurredAt).Round(time.Millisecond))
		for _, field := range [][2]string{
			{"user_id", e.UserID}, {"anonymous_id", e.AnonymousID}, {"session_id", e.SessionID},
			{"properties", string(e.Properties)},
		} {
			if field[1] != "" {
				x.say("  %s: %s", field[0], short(field[1]))
			}
		}
	}
	if len(events) > 1 {
		x.say("\nThe id is stored %d times, each with another occurred_at: those are different events.", len(events))
	}
	for _, e := range events {
		if err := x.rules(ctx, e); err != nil {
			return true, err
		}
	}
	x.say("\nMessages because of it:")
	earliest := events[0].ReceivedAt
	first, err := x.messageAt(ctx, earliest.Add(-clockSlack))
	if err != nil {
		return true, err
	}
	n, err := x.messages(ctx, `message_id >= $1 and tenant_id = $2 and event_id = $3`, first, x.Tenant, id)
	if n == 0 && err == nil {
		x.say("  none")
	}
	return true, err
}

func eventName(e pipeline.Event) string {
	if e.ClientID != "" {
		return fmt.Sprintf("%s (%s)", e.ClientID, e.ID)
	}
	return e.ID.String()
}

func (x *Explainer) quarantined(ctx context.Context, id pipeline.UUID) (bool, error) {
	var at time.Time
	var state, reason string
	err := x.Conn.QueryRow(ctx, `select quarantined_at, sqlstate, reason from quarantine where tenant_id = $1 and event_id = $2`, x.Tenant, id).Scan(&at, &state, &reason)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err == nil {
		x.say("Event %s is in quarantine since %s: PostgreSQL would not store it (%s: %s). No rule saw it.\nNext: pipeline quarantine export, and pipeline import once the cause is gone.", id, stamp(at), state, reason)
	}
	return true, err
}

// rules says what each rule that listens makes of the event, and why no message came of a match.
func (x *Explainer) rules(ctx context.Context, e pipeline.Event) error {
	if x.Set == nil {
		x.say("\nWhich rules looked at it is not known without a rules file: add --rules FILE.")
		return nil
	}
	looks := x.Set.Explain(e)
	x.say("\nRules that listen to %s, as they are now (worked out again, not read from a record):", e.Name)
	if len(looks) == 0 {
		x.say("  none")
	}
	for _, l := range looks {
		head := fmt.Sprintf("  %s (%s, version %s, as %s)", l.Rule, l.State, l.Hash, l.As)
		switch {
		case l.Failure != "" && l.Matched:
			x.say("%s: matched, but could not decide: %s", head, l.Failure)
		case l.Failure != "":
			x.say("%s: could not decide, which counts as no match: %s", head, l.Failure)
		case !l.Matched:
			x.say("%s: did not match", head)
		case l.Kind == "rate":
			x.say("%s: counted", head)
		case l.Kind == "absence":
			x.say("%s: matched, for key %q", head, l.Key)
			if err := x.timer(ctx, l); err != nil {
				return err
			}
		default:
			x.say("%s: matched, with key %q and subject %q", head, l.Key, l.Subject)
			if err := x.suppressed(ctx, e, l); err != nil {
				return err
			}
		}
	}
	return nil
}

const timerSQL = `
select trigger_at, cancel_at, activity_at, done_at, armed_at, armed_at + $4::interval, now() from absence_timers
where tenant_id = $1 and timer = $2 and key = $3`

func (x *Explainer) timer(ctx context.Context, l rules.Look) error {
	var trigger, cancel, activity, done, armed, due *time.Time
	var now time.Time
	err := x.Conn.QueryRow(ctx, timerSQL, x.Tenant, l.Timer, l.Key, l.Within).Scan(&trigger, &cancel, &activity, &done, &armed, &due, &now)
	if errors.Is(err, pgx.ErrNoRows) {
		x.say("    its timer is gone: everything about the key is older than the rule's lookback, or the rule came into force later")
		return nil
	}
	if err != nil {
		return err
	}
	x.say("    latest trigger %s, latest cancel %s, latest activity %s", stampOr(trigger), stampOr(cancel), stampOr(activity))
	switch {
	case armed != nil && due.After(now):
		x.say("    it waits since %s; next: it fires at %s, unless it is cancelled", stamp(*armed), stamp(*due))
	case armed != nil:
		x.say("    it waits since %s and is due since %s; next: the sweep takes it", stamp(*armed), stamp(*due))
	case trigger == nil:
		x.say("    nothing has triggered it")
	case cancel != nil && !cancel.Before(*trigger):
		x.say("    it does not wait: it was cancelled at %s", stamp(*cancel))
	case done != nil:
		x.say("    it has run out and was decided about; the messages of this rule for the key are:")
		first, err := x.messageAt(ctx, trigger.Add(-clockSlack))
		if err != nil {
			return err
		}
		n, err := x.messages(ctx, `message_id >= $1 and tenant_id = $2 and rule_id = $3 and (dedupe_key = $4 or starts_with(dedupe_key, $4 || '@'))`,
			first, x.Tenant, l.Rule, l.Key)
		if n == 0 && err == nil {
			x.say("    none, or they were pruned")
		}
		return err
	}
	return nil
}

const explainMessagesSQL = `
select message_id, tenant_id, type, coalesce(rule_id, ''), coalesce(rule_hash, ''), destination, subject_key, dedupe_key, status, attempts,
	created_at, run_after, locked_until, finished_at, coalesce(last_error, ''), payload::text, idempotency_key::text, event_id, recheck is not null, now()
from outbox where `

// recheckReasons are what evaluate.Rechecker finds, in words.
var recheckReasons = map[string]string{
	"cancelled":  "a cancel had come in the meantime",
	"superseded": "a later trigger had started the wait anew",
}

// messages tells the story of every message that the condition finds.
func (x *Explainer) messages(ctx context.Context, where string, args ...any) (n int, err error) {
	type message struct {
		id                                                                            int64
		tenant                                                                        int32
		kind, rule, hash, destination, subject, key, status, lastError, payload, idem string
		attempts                                                                      int
		created, runAfter, now                                                        time.Time
		locked, finished                                                              *time.Time
		event                                                                         *pipeline.UUID
		rechecked                                                                     bool
	}
	rows, err := x.Conn.Query(ctx, explainMessagesSQL+where+" order by message_id", args...)
	if err != nil {
		return 0, err
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m message, err error) {
		err = row.Scan(&m.id, &m.tenant, &m.kind, &m.rule, &m.hash, &m.destination, &m.subject, &m.key, &m.status, &m.attempts, &m.created,
			&m.runAfter, &m.locked, &m.finished, &m.lastError, &m.payload, &m.idem, &m.event, &m.rechecked, &m.now)
		return m, err
	})
	for _, m := range found {
		x.say("Message %d to %s, subject %q, key %q, Idempotency-Key %s", m.id, m.destination, m.subject, m.key, m.idem)
		if m.rule != "" {
			by := "decided by " + m.rule + ", version " + m.hash
			if m.event != nil {
				by += ", because of event " + m.event.String()
			}
			x.say("  %s%s", by, x.changed(m.rule, m.hash))
		} else {
			x.say("  of type %s, put into the outbox by an application", m.kind)
		}
		x.say("  made %s, payload %s", stamp(m.created), short(m.payload))
		if err := x.attempts(ctx, m.id); err != nil {
			return len(found), err
		}
		switch {
		case m.finished != nil && m.status == "sent":
			x.say("  sent at %s, after %s", stamp(*m.finished), cli.Count(m.attempts, "attempt"))
		case m.finished != nil && m.status == "skipped":
			x.say("  skipped at %s: %s", stamp(*m.finished), m.lastError)
			if why := recheckReasons[m.lastError]; m.rechecked && why != "" {
				x.say("  That was the look just before sending, at whether the decision still held: %s. It was not sent, and will not be.", why)
			}
		case m.status == "dead":
			x.say("  given up after %s: %s\n  Next: nothing, unless someone runs pipeline outbox retry.", cli.Count(m.attempts, "attempt"), short(m.lastError))
		case m.locked != nil && m.locked.After(m.now):
			x.say("  a worker has it until %s", stamp(*m.locked))
		case m.runAfter.After(m.now):
			unless := ""
			if m.rechecked {
				unless = ", unless the look just before finds that it does not hold any more"
			}
			x.say("  next: attempt %d at %s%s", m.attempts+1, stamp(m.runAfter), unless)
		default:
			x.say("  next: attempt %d, due since %s; if that is long ago, look whether a process with the role deliver runs and knows %s", m.attempts+1, stamp(m.runAfter), m.destination)
		}
	}
	return len(found), err
}

// changed says that the rule has another version now than when it decided.
func (x *Explainer) changed(rule, hash string) string {
	if x.Set == nil {
		return ""
	}
	for _, r := range x.Set.Rules() {
		if r.Name == rule && r.Hash != hash {
			return "; the rule is version " + r.Hash + " now"
		} else if r.Name == rule {
			return ""
		}
	}
	return "; the rule does not exist any more"
}

func (x *Explainer) attempts(ctx context.Context, message int64) error {
	rows, err := x.Conn.Query(ctx, `select attempt, started_at, latency_seconds, status, http_status, coalesce(error, '') from outbox_all_attempts
		where message_id = $1 order by started_at`, message)
	if err != nil {
		return err
	}
	var attempt, code *int
	var started time.Time
	var latency float32
	var status, text string
	_, err = pgx.ForEachRow(rows, []any{&attempt, &started, &latency, &status, &code, &text}, func() error {
		answer := ""
		if code != nil && *code != 0 {
			answer = fmt.Sprintf(", answer %d", *code)
		}
		if text != "" {
			answer += ", " + short(text)
		}
		n := "attempt"
		if attempt != nil {
			n = fmt.Sprintf("attempt %d", *attempt)
		}
		x.say("  %s at %s: %s after %s%s", n, stamp(started), status, time.Duration(float64(latency)*float64(time.Second)).Round(time.Millisecond), answer)
		return nil
	})
	return err
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000Z") }

func stampOr(t *time.Time) string {
	if t == nil {
		return "none"
	}
	return stamp(*t)
}

func short(s string) string {
	if r := []rune(s); len(r) > 300 {
		return string(r[:300]) + "..."
	}
	return s
}
