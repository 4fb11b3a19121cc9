package replay

import (
	"slices"
	"time"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// timer is a row of absence_timers with its history.
type timer struct {
	rules.TimerKey
	rule                     *rules.Rule
	latest, cancel, activity time.Time
	done, fired              time.Time
	trigger                  *pipeline.Event
	history                  []rules.Mark
}

// mark moves a timer by an event, as timersSQL does.
func (r *Run) mark(m rules.Mark) {
	m = m.Clamped(r.now)
	if stale := m.Rule.Absence.Stale(); stale > 0 && !m.At().After(r.now.Add(-stale)) {
		return
	}
	k := rules.TimerKey{Tenant: m.Event.Tenant, Timer: m.Rule.Absence.Timer, Key: m.Key}
	t := r.timers[k]
	if t == nil {
		t = &timer{TimerKey: k, rule: m.Rule}
		r.timers[k] = t
	}
	at := m.At()
	switch m.Role {
	case rules.Triggers:
		if t.trigger == nil || at.After(t.latest) || at.Equal(t.latest) &&
			slices.Compare(m.Event.ID[:], t.trigger.ID[:]) > 0 {
			t.trigger, t.latest = m.Event, at
		}
		if m.Rule.Absence.First {
			t.history = append(t.history, m)
		}
	case rules.Cancels:
		if at.After(t.cancel) {
			t.cancel = at
		}
	case rules.GoesOn:
		if at.After(t.activity) {
			t.activity = at
		}
	}
	if anchor, _, armed := t.armed(); armed {
		due := anchor.Add(m.Rule.Absence.Within)
		if due.Before(r.now) {
			due = r.now
		}
		r.later(due, func() { r.fire(t) })
	}
}

// armed reports whether the timer waits, from when, and for which event.
func (t *timer) armed() (anchor time.Time, trigger *pipeline.Event, ok bool) {
	if !t.rule.Absence.First {
		anchor = t.latest
		if t.activity.After(anchor) {
			anchor = t.activity
		}
		return anchor, t.trigger, t.trigger != nil && t.latest.After(t.cancel) && t.latest.After(t.done)
	}
	for _, m := range t.history {
		at := m.At()
		if at.After(t.cancel) && (trigger == nil || at.Before(anchor) ||
			at.Equal(anchor) && slices.Compare(m.Event.ID[:], trigger.ID[:]) < 0) {
			anchor, trigger = at, m.Event
		}
	}
	return anchor, trigger, trigger != nil && (t.fired.IsZero() || t.cancel.After(t.fired))
}

func (r *Run) fire(t *timer) {
	a := t.rule.Absence
	anchor, trigger, ok := t.armed()
	if !ok || anchor.Add(a.Within).After(r.now) {
		return // moved meanwhile; the move has its own wake
	}
	if !anchor.After(r.now.Add(-a.Lookback)) {
		t.done = t.latest
		return
	}
	t.done, t.fired = t.latest, anchor
	due := rules.Due{Tenant: t.Tenant, Key: t.Key, Anchor: anchor, Latest: t.latest, Trigger: *trigger}
	r.record(r.set.Fire(t.rule, []rules.Due{due}))
}

// recheck returns the reason for which a message is not sent any more, as recheckSQL does.
func (r *Run) recheck(tenant int32, c *rules.Recheck) string {
	t := r.timers[rules.TimerKey{Tenant: tenant, Timer: c.Timer, Key: c.Key}]
	switch {
	case t == nil:
	case slices.Contains(c.Skip, rules.Cancelled) && !t.cancel.Before(c.Since()):
		return rules.Cancelled
	case slices.Contains(c.Skip, rules.Superseded) && t.latest.After(c.Until()):
		return rules.Superseded
	}
	return ""
}
