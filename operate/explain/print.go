package explain

import (
	"fmt"
	"io"
	"strings"
	"time"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/duration"
)

// Print writes the story for people.
func (s *Story) Print(w io.Writer) error {
	p := &printer{}
	for _, e := range s.Events {
		p.event(e)
	}
	if len(s.Events) > 1 {
		p.say("\nThe id is stored %d times, each with another occurred_at: those are different events.", len(s.Events))
	}
	for _, e := range s.Events {
		p.rules(s, e)
	}
	if q := s.Quarantined; q != nil {
		p.say("Event %s is in quarantine since %s: PostgreSQL would not store it (%s: %s). No rule saw it.",
			q.ID, stamp(q.Since), q.SQLState, q.Reason)
		p.say("Next: pipeline quarantine export, and pipeline import once the cause is gone.")
	}
	if len(s.Events) > 0 {
		p.say("\nMessages because of it:")
		if len(s.Messages) == 0 {
			p.say("  none")
		}
	}
	for _, m := range s.Messages {
		p.message(m)
	}
	_, err := io.WriteString(w, p.String())
	return err
}

// Text is what the rule made of the event, as Print says it.
func (r Rule) Text() string {
	p := &printer{}
	p.rule(r)
	return p.lines()
}

// Next is how the message ended, or what happens next, as Print says it.
func (m Message) Next() string {
	p := &printer{}
	p.next(m)
	return p.lines()
}

type printer struct{ strings.Builder }

// lines is what was written, without the space before each line.
func (p *printer) lines() string {
	lines := strings.Split(strings.TrimSpace(p.String()), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "\n")
}

func (p *printer) say(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *printer) event(e Event) {
	name := e.ID.String()
	if e.ClientID != "" {
		name = fmt.Sprintf("%s (%s)", e.ClientID, e.ID)
	}
	p.say("Event %s %s of tenant %d, in %s", e.Name, name, e.Tenant, e.Partition)
	p.say("  happened %s, arrived %s (%s later)", stamp(e.OccurredAt), stamp(e.ReceivedAt),
		e.ReceivedAt.Sub(e.OccurredAt).Round(time.Millisecond))
	field := func(name, value string) {
		if value != "" {
			p.say("  %s: %s", name, short(value))
		}
	}
	field("user_id", e.UserID)
	field("anonymous_id", e.AnonymousID)
	field("session_id", e.SessionID)
	field("properties", string(e.Properties))
}

func (p *printer) rules(s *Story, e Event) {
	if !s.RulesKnown {
		p.say("\nWhich rules looked at it is not known without a rules file: add --rules FILE.")
		return
	}
	p.say("\nRules that listen to %s, as they are now (worked out again, not read from a record):", e.Name)
	if len(e.Rules) == 0 {
		p.say("  none")
	}
	for _, r := range e.Rules {
		p.rule(r)
	}
}

func (p *printer) rule(r Rule) {
	head := fmt.Sprintf("  %s (%s, version %s, as %s)", r.Rule, r.State, r.Version, r.As)
	switch {
	case r.Refused != "":
		p.say("%s: PostgreSQL would not store what the rule made of it, so that was left out: %s", head, short(r.Refused))
	case r.Failure != "" && r.Matched:
		p.say("%s: matched, but could not decide: %s", head, r.Failure)
	case r.Failure != "":
		p.say("%s: could not decide, which counts as no match: %s", head, r.Failure)
	case !r.Matched:
		p.say("%s: did not match", head)
	case r.Kind == "rate":
		p.say("%s: counted", head)
	case r.Timer != nil:
		p.say("%s: matched, for key %q", head, r.Key)
		p.timer(r.Timer)
	default:
		p.say("%s: matched, with key %q and subject %q", head, r.Key, r.Subject)
		p.held(r.Held)
	}
}

func (p *printer) timer(t *Timer) {
	if !t.Found {
		p.say("    its timer is gone: everything about the key is older than the rule's lookback, or the rule came into " +
			"force later")
		return
	}
	switch {
	case t.Ended != nil:
		p.say("    what this event began to wait for was cancelled at %s; a later trigger began again at %s, and about that:",
			stamp(*t.Ended), stamp(*t.Later))
	case t.Later != nil:
		p.say("    a later trigger of the key came at %s; about both:", stamp(*t.Later))
	}
	p.say("    latest trigger %s, latest cancel %s, latest activity %s", stampOr(t.Trigger), stampOr(t.Cancel),
		stampOr(t.Activity))
	switch {
	case t.Armed != nil && t.Due.After(t.Now):
		p.say("    it waits since %s; next: it fires at %s, unless it is cancelled", stamp(*t.Armed), stamp(*t.Due))
	case t.Armed != nil:
		p.say("    it waits since %s and is due since %s; next: the sweep takes it", stamp(*t.Armed), stamp(*t.Due))
	case t.Trigger == nil:
		p.say("    nothing has triggered it")
	case t.cancelled():
		p.say("    it does not wait: it was cancelled at %s", stamp(*t.Cancel))
	case t.ranOut():
		p.say("    it has run out and was decided about; the messages of this rule for the key are:")
		if len(t.Messages) == 0 && t.Held == nil {
			p.say("    none, or they were pruned")
		} else if len(t.Messages) == 0 {
			p.say("    none:")
			p.held(t.Held)
		}
		for _, m := range t.Messages {
			p.message(m)
		}
	}
}

func (p *printer) held(h *Held) {
	if h == nil {
		return
	}
	switch {
	case h.Reason == NoDecision && h.Keyed:
		p.say("    no decision was recorded: the rule was not in force, or was another version, when the event arrived; " +
			"or its key is forgotten (dedupe_for)")
	case h.Reason == NoDecision:
		p.say("    no decision is on record: the rule was not in force, or was another version, when the event arrived; " +
			"or its message was pruned")
	case h.Reason == Duplicate:
		p.say("    suppressed as a duplicate: the key was used at %s by message %d", stamp(*h.At), h.By)
	case h.Reason == Old:
		p.say("    passed by: it happened longer before it arrived than the rule's max_age, %s", duration.Format(h.Limit))
	case h.Reason == Pruned:
		p.say("    the key is remembered, but its message was pruned")
	case h.Reason == Cooldown:
		lasts := "it lasts until "
		if h.Over {
			lasts = "it has been over since "
		}
		p.say("    held back by a cooldown of %s: the subject was granted a message at %s; %s%s", h.Limit, stamp(*h.At),
			lasts, stamp(*h.Until))
	case h.Reason == OverLimit:
		p.overLimit(h)
	case h.Reason == Cap:
		p.say("    held back by a cap of %d in %s: the subject was granted %d in that time before, the last at %s",
			h.Max, h.Limit, h.Granted, stamp(*h.At))
	default:
		p.say("    made no message that is still stored. Held back by cooldown or cap, or pruned: what was granted then " +
			"is not known any more")
	}
	if h.Digest != nil {
		p.say("      %d held back so far; next: a digest tells so at %s", h.Suppressed, stamp(*h.Digest))
	}
}

func (p *printer) overLimit(h *Held) {
	what := "held back"
	if h.Partly {
		what = "what goes to " + h.Destination + " was held back"
	}
	if h.At == nil {
		p.say("    %s by the limit %s: it arrived in its quiet hours", what, h.Name)
		return
	}
	p.say("    %s by the limit %s of %d in %s over several rules: the subject was granted %d since then, the last for %s",
		what, h.Name, h.Max, h.Limit, h.Granted, stamp(*h.At))
}

func (p *printer) message(m Message) {
	p.say("Message %d to %s, subject %q, key %q, Idempotency-Key %s", m.ID, m.Destination, m.Subject, m.Key,
		m.IdempotencyKey)
	switch {
	case m.Rule == "":
		p.say("  of type %s, put into the outbox by an application", m.Type)
	default:
		by := "decided by " + m.Rule + ", version " + m.Version
		if m.Event != nil {
			by += ", because of event " + m.Event.String()
		}
		if m.Changed != "" {
			by += "; the rule is version " + m.Changed + " now"
		}
		if m.Gone {
			by += "; the rule does not exist any more"
		}
		p.say("  %s", by)
	}
	if m.Payload == "" { // whoever asks may not see it
		p.say("  made %s", stamp(m.CreatedAt))
	} else {
		p.say("  made %s, payload %s", stamp(m.CreatedAt), short(m.Payload))
	}
	if m.Trace != "" {
		p.say("  trace %s", m.Trace)
	}
	for _, a := range m.Attempts {
		p.attempt(a)
	}
	p.next(m)
}

func (p *printer) attempt(a Attempt) {
	answer := ""
	if a.HTTPStatus != nil && *a.HTTPStatus != 0 {
		answer = fmt.Sprintf(", answer %d", *a.HTTPStatus)
	}
	if a.Error != "" {
		answer += ", " + short(a.Error)
	}
	number := "attempt"
	if a.Number != nil {
		number = fmt.Sprintf("attempt %d", *a.Number)
	}
	took := time.Duration(a.Seconds * float64(time.Second)).Round(time.Millisecond)
	p.say("  %s at %s: %s after %s%s", number, stamp(a.StartedAt), a.Status, took, answer)
}

// recheckReasons are what the look just before sending records, in words.
var recheckReasons = map[string]string{
	"cancelled":  "a cancel had come in the meantime",
	"superseded": "a later trigger had started the wait anew",
}

// next is how the message ended, or what happens next.
func (p *printer) next(m Message) {
	switch {
	case m.FinishedAt != nil && m.Status == "sent":
		p.say("  sent at %s, after %s", stamp(*m.FinishedAt), cli.Count(m.Tries, "attempt"))
	case m.FinishedAt != nil && m.Status == "skipped":
		p.say("  skipped at %s: %s", stamp(*m.FinishedAt), m.LastError)
		if why := recheckReasons[m.LastError]; m.Rechecked && why != "" {
			p.say("  That was the look just before sending, at whether the decision still held: %s. It was not sent, and "+
				"will not be.", why)
		}
	case m.Status == "dead":
		p.say("  given up after %s: %s", cli.Count(m.Tries, "attempt"), short(m.LastError))
		p.say("  Next: nothing, unless someone runs pipeline outbox retry.")
	case m.LockedUntil != nil && m.LockedUntil.After(m.Now):
		p.say("  a worker has it until %s", stamp(*m.LockedUntil))
	case m.RunAfter.After(m.Now):
		unless := ""
		if m.Rechecked {
			unless = ", unless the look just before finds that it does not hold any more"
		}
		p.say("  next: attempt %d at %s%s", m.Tries+1, stamp(m.RunAfter), unless)
	default:
		p.say("  next: attempt %d, due since %s; if that is long ago, look whether a process with the role deliver runs "+
			"and knows %s", m.Tries+1, stamp(m.RunAfter), m.Destination)
	}
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
