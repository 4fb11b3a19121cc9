package evaluate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"cel.dev/cel-go/common/types"
	"github.com/jackc/pgx/v5"
	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/duration"
	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline"
)

// absence is what only absence rules have.
type absence struct {
	pipeline.Absence
	grace time.Duration
	// idle: the wait counts from the latest event of any kind.
	idle bool
	// episodes: each trigger that is left alone fires; otherwise each key fires once.
	episodes bool
	// skip are the reasons for which a message is not sent any more.
	skip []string
	key  *program
}

// The reasons to skip a message that had been decided.
const (
	skipCancelled  = "cancelled"
	skipSuperseded = "superseded"
)

// mark is an event that moves a timer.
type mark struct {
	rule  *rule
	batch int
	event *pipeline.Event
	role  role
	key   string
}

// at is when the event counts as having happened: a clock that runs ahead must not delay anything.
func (m mark) at() time.Time { return effective(m.event) }

func effective(ev *pipeline.Event) time.Time {
	if ev.ReceivedAt.Before(ev.OccurredAt) {
		return ev.ReceivedAt
	}
	return ev.OccurredAt
}

// staleAfter is how far beyond the lookback an event has to be to be left out of the timers; it leaves room for clocks
// that differ between this machine and the database. Where the anchor is no maximum, nothing is left out.
const staleAfter = time.Hour

func (p *Plan) mark(i int, l listener) {
	ev := &p.events[i]
	if !l.rule.absence.First && effective(ev).Before(ev.ReceivedAt.Add(-l.rule.absence.Lookback-staleAfter)) {
		return
	}
	text, kind, err := l.rule.absence.key.key(&p.vars)
	if err != nil {
		if l.role != goesOn { // all events are looked at, also those that have no such key
			p.fail(l.rule, i, kind, fmt.Errorf("key: %w", err))
		}
		return
	}
	p.marks = append(p.marks, mark{l.rule, i, ev, l.role, text})
}

func (l *loader) absenceRule(r *rule, c *yamlfile.Section) {
	a := &absence{}
	r.absence = a
	a.Rule = r.name
	a.Within = c.Duration("within", 0, time.Second, maxDuration)
	c.Require("within", "how long to wait")
	a.grace = c.Duration("grace", 2*time.Minute, 0, maxDuration)
	a.Lookback = c.Duration("lookback", max(6*time.Hour, 3*(a.Within+a.grace)), time.Second, maxDuration)
	if least := a.Within + a.grace + 2*time.Minute; a.Lookback <= least {
		c.Fault("lookback", "%s is too short; it has to be longer than within + grace + two sweeps (%s), or nothing would fire",
			duration.Format(a.Lookback), duration.Format(least))
	}
	anchor := c.OneOf("anchor", "last", "first", "idle")
	a.First, a.idle = anchor == "first", anchor == "idle"
	a.episodes = c.OneOf("once_per", "key", "episode") == "episode"
	a.skip = []string{skipCancelled}
	if a.episodes {
		a.skip = append(a.skip, skipSuperseded)
	}
	if n := c.Get("recheck"); n != nil {
		s := l.src.Section(n, c.At("recheck"), "skip_if")
		a.skip = []string{}
		if v := s.Get("skip_if"); v != nil && (v.Kind != yaml.SequenceNode || len(v.Content) > 0) {
			a.skip = s.Strings("skip_if")
		}
		for _, reason := range a.skip {
			known := []string{skipCancelled, skipSuperseded}
			switch {
			case !slices.Contains(known, reason):
				s.Fault("skip_if", "%q is not one of cancelled, superseded%s", reason, spell.DidYouMean(reason, known))
			case reason == skipSuperseded && !a.episodes:
				s.Fault("skip_if", "superseded goes with once_per: episode; with once_per: key the key would be used up without a message")
			}
		}
	}

	trigger := l.side(r, c, "trigger", triggers)
	cancel := l.side(r, c, "cancel", cancels)
	r.takes = []take{trigger, cancel}
	names := append(slices.Clone(trigger.on), cancel.on...)
	if a.idle {
		activity := take{on: []string{"*"}, listener: listener{rule: r, role: goesOn}}
		if c.Get("activity") != nil {
			activity = l.side(r, c, "activity", goesOn)
		}
		r.takes = append(r.takes, activity)
		names = append(names, activity.on...)
	} else if c.Get("activity") != nil {
		c.Fault("activity", "activity goes with anchor: idle")
	}
	slices.Sort(names)
	if a.Names = slices.Compact(names); slices.Contains(names, "*") {
		a.Names = nil
	}
	if c.Require("key", "whose absence it is, for example event.session_id") {
		a.key = l.scope(names, map[string]*types.Type{"event": eventType}).compile(l.src, c.Get("key"), c.At("key"), key)
	}
	sc := l.scope(trigger.on, map[string]*types.Type{"trigger": eventType, "key": types.StringType, "since": types.TimestampType})
	if n := c.Get("subject"); n != nil {
		r.subject = sc.compile(l.src, n, c.At("subject"), key)
	}
	if n := c.Get("payload"); n != nil {
		r.payload = sc.template(l.src, n, c.At("payload"), 0)
	}
	var state bytes.Buffer
	for _, k := range []string{"trigger", "cancel", "activity", "key", "anchor"} {
		if n := c.Get(k); n != nil {
			fmt.Fprint(&state, k)
			writeNode(&state, n)
		}
	}
	h := pipeline.HashUUID(state.String())
	a.Timer = fmt.Sprintf("%s#%x", r.stateKey, h[:4])
}

// side reads trigger, cancel or activity.
func (l *loader) side(r *rule, c *yamlfile.Section, name string, as role) take {
	t := take{listener: listener{rule: r, role: as}}
	if !c.Require(name, "which events it is, as on and match") {
		return t
	}
	s := l.src.Section(c.Get(name), c.At(name), "on", "match")
	t.on = l.on(s)
	if n := s.Get("match"); n != nil {
		t.match = l.scope(t.on, map[string]*types.Type{"event": eventType}).compile(l.src, n, s.At("match"), condition)
		l.lintMatch(n, s.At("match"), t.on)
	}
	return t
}

// timersSQL merges what a batch tells about keys into their timers. Everything is a maximum (or, for first_at, a bound
// from below), so repeating or reordering changes nothing. Of two triggers at one moment the larger id counts. A cancel
// of a rule with anchor first may uncover an older streak, so it is looked at again.
const timersSQL = `
insert into absence_timers as t (tenant_id, timer, key, trigger_at, trigger_event_id, trigger_occurred_at, cancel_at, activity_at, first_at)
select * from unnest($1::int[], $2::text[], $3::text[], $4::timestamptz[], $5::uuid[], $6::timestamptz[], $7::timestamptz[],
	$8::timestamptz[], $9::timestamptz[]) u order by 1, 2, 3
on conflict (tenant_id, timer, key) do update set
	trigger_at = greatest(t.trigger_at, excluded.trigger_at),
	trigger_event_id = case when t.trigger_at is null or (excluded.trigger_at, excluded.trigger_event_id) > (t.trigger_at, t.trigger_event_id)
		then excluded.trigger_event_id else t.trigger_event_id end,
	trigger_occurred_at = case when t.trigger_at is null or (excluded.trigger_at, excluded.trigger_event_id) > (t.trigger_at, t.trigger_event_id)
		then excluded.trigger_occurred_at else t.trigger_occurred_at end,
	cancel_at = greatest(t.cancel_at, excluded.cancel_at),
	activity_at = greatest(t.activity_at, excluded.activity_at),
	first_at = case when t.armed_at is null then excluded.first_at else least(t.first_at, excluded.first_at) end,
	done_at = case when excluded.first_at is not null and excluded.cancel_at > coalesce(t.cancel_at, '-infinity') then null else t.done_at end
where excluded.trigger_at > coalesce(t.trigger_at, '-infinity') or excluded.cancel_at > coalesce(t.cancel_at, '-infinity')
	or excluded.activity_at > coalesce(t.activity_at, '-infinity')
	or (excluded.trigger_at = t.trigger_at and excluded.trigger_event_id > t.trigger_event_id)
	or excluded.first_at is not null`

// historySQL keeps every trigger and cancel of rules whose anchor is no maximum.
const historySQL = `
insert into absence_history (tenant_id, timer, key, at, event_id, occurred_at, cancels)
select * from unnest($1::int[], $2::text[], $3::text[], $4::timestamptz[], $5::uuid[], $6::timestamptz[], $7::bool[]) u
order by 1, 2, 3, 4, 5 on conflict do nothing`

type timerKey struct {
	tenant     int32
	timer, key string
}

// timer is what a batch tells about one key.
type timer struct {
	timerKey
	triggerAt, cancelAt, activityAt, firstAt *time.Time
	trigger                                  *pipeline.Event
}

// merge gathers the marks of a batch by key, in the order of keys.
func merge(marks []mark) []*timer {
	byKey := map[timerKey]*timer{}
	for _, m := range marks {
		k := timerKey{m.event.Tenant, m.rule.absence.Timer, m.key}
		t := byKey[k]
		if t == nil {
			t = &timer{timerKey: k}
			byKey[k] = t
		}
		at := m.at()
		switch m.role {
		case triggers:
			if t.trigger == nil || at.After(*t.triggerAt) || at.Equal(*t.triggerAt) && bytes.Compare(m.event.ID[:], t.trigger.ID[:]) > 0 {
				t.trigger, t.triggerAt = m.event, &at
			}
		case cancels:
			t.cancelAt = later(t.cancelAt, at)
		case goesOn:
			t.activityAt = later(t.activityAt, at)
		}
		if m.rule.absence.First && (t.firstAt == nil || at.Before(*t.firstAt)) {
			t.firstAt = &at
		}
	}
	return slices.SortedFunc(maps.Values(byKey), func(a, b *timer) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.timer, b.timer), cmp.Compare(a.key, b.key))
	})
}

func later(a *time.Time, b time.Time) *time.Time {
	if a == nil || b.After(*a) {
		return &b
	}
	return a
}

func queueTimers(b *pgx.Batch, marks []mark) {
	var c struct {
		tenant                                []int32
		timer, key                            []string
		id                                    []*pipeline.UUID
		trigger, at, cancel, activity, firsts []*time.Time
	}
	for _, t := range merge(marks) {
		c.tenant, c.timer, c.key = append(c.tenant, t.tenant), append(c.timer, t.timer), append(c.key, t.key)
		var id *pipeline.UUID
		var at *time.Time
		if t.trigger != nil {
			id, at = &t.trigger.ID, &t.trigger.OccurredAt
		}
		c.id, c.at, c.trigger = append(c.id, id), append(c.at, at), append(c.trigger, t.triggerAt)
		c.cancel, c.activity, c.firsts = append(c.cancel, t.cancelAt), append(c.activity, t.activityAt), append(c.firsts, t.firstAt)
	}
	b.Queue(timersSQL, c.tenant, c.timer, c.key, c.trigger, c.id, c.at, c.cancel, c.activity, c.firsts)

	var h struct {
		tenant     []int32
		timer, key []string
		at, occ    []time.Time
		id         []pipeline.UUID
		cancels    []bool
	}
	for _, m := range marks {
		if !m.rule.absence.First {
			continue
		}
		h.tenant, h.timer, h.key = append(h.tenant, m.event.Tenant), append(h.timer, m.rule.absence.Timer), append(h.key, m.key)
		h.at, h.occ, h.id = append(h.at, m.at()), append(h.occ, m.event.OccurredAt), append(h.id, m.event.ID)
		h.cancels = append(h.cancels, m.role == cancels)
	}
	if len(h.tenant) > 0 {
		b.Queue(historySQL, h.tenant, h.timer, h.key, h.at, h.id, h.occ, h.cancels)
	}
}

// ErrNoRule: no rule in force has these timers; it may be that of another node, or gone.
var ErrNoRule = errors.New("no such rule in force")

// Absences are the absence rules in force.
func (e *Engine) Absences() []pipeline.Absence {
	if set := e.set.Load(); set != nil {
		return set.absences
	}
	return nil
}

// Seed moves the timers of one rule by stored events, as if they came now. Repeating it is harmless.
func (e *Engine) Seed(ctx context.Context, tx pgx.Tx, timer string, events []pipeline.Event) error {
	r, err := e.byTimer(timer)
	if err != nil {
		return err
	}
	p := e.stored(r, events)
	return p.write(ctx, tx, work{marks: p.marks})
}

// stored lets one rule look at stored events again.
func (e *Engine) stored(r *rule, events []pipeline.Event) *Plan {
	p := &Plan{recorder: recorder{engine: e}, events: events}
	p.reset()
	for i := range events {
		if r.tenants != nil && !slices.Contains(r.tenants, events[i].Tenant) {
			continue
		}
		for _, t := range r.takes {
			if slices.Contains(t.on, events[i].Name) || slices.Contains(t.on, "*") {
				p.look(i, [2][]listener{{t.listener}})
			}
		}
	}
	return p
}

func (e *Engine) byTimer(timer string) (*rule, error) {
	if set := e.set.Load(); set != nil && set.byTimer[timer] != nil {
		return set.byTimer[timer], nil
	}
	return nil, ErrNoRule
}

// recheck is what the outbox keeps of the timer, see the column's comment.
type recheck struct {
	Timer  string    `json:"timer"`
	Key    string    `json:"key"`
	Anchor time.Time `json:"anchor"`
	Latest time.Time `json:"trigger"`
	Skip   []string  `json:"skip"`
}

// Fire records what the timers of one rule that have run out lead to. Call committed after COMMIT.
func (e *Engine) Fire(ctx context.Context, tx pgx.Tx, timer string, due []pipeline.Due) (committed func(), err error) {
	r, err := e.byTimer(timer)
	if err != nil {
		return nil, err
	}
	p := &Plan{recorder: recorder{engine: e}}
	p.reset()
	for _, d := range due {
		p.fire(r, d)
	}
	p.outcome.failures = p.failures
	return p.Committed, p.write(ctx, tx, work{cands: p.candidates})
}

// fire makes the candidate of one timer.
func (p *Plan) fire(r *rule, d pipeline.Due) {
	p.events = []pipeline.Event{d.Trigger}
	p.record.set(&p.events[0])
	p.vars = vars{event: &p.record, key: d.Key, since: d.Anchor}
	defer func() {
		if rec := recover(); rec != nil {
			p.fail(r, 0, failedPanic, fmt.Errorf("%v", rec))
		}
	}()
	if d.Trigger.Name == "" {
		p.fail(r, 0, failedExpression, errors.New("the event that started the timer is no longer stored"))
		return
	}
	a := r.absence
	c := candidate{rule: r, tenant: d.Tenant, event: d.Trigger.ID, at: d.Trigger.OccurredAt, subject: d.Key, key: d.Key, delay: a.grace,
		timerKey: d.Key, anchor: d.Anchor, latest: d.Latest}
	if a.episodes {
		c.key = fmt.Sprintf("%s@%d", d.Key, d.Anchor.UnixMicro())
	}
	if len(a.skip) > 0 {
		c.recheck, _ = json.Marshal(recheck{a.Timer, d.Key, d.Anchor, d.Latest, a.skip}) // texts and times can't fail
	}
	if p.complete(&c) {
		p.candidates = append(p.candidates, c)
	}
}
