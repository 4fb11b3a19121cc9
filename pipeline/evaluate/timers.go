package evaluate

import (
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// timersSQL merges what a batch means for keys into their timers. Everything is a maximum (or, for first_at, a bound
// from below), so repeating or reordering changes nothing. Of two triggers at one moment the larger id counts. A cancel
// of a rule with anchor first may uncover an older streak, so its timer wakes again.
//
// What happens in the future happens now, and what is so old that nothing can come of it is left out, both by the clock
// of the database, which also decides when timers run out. The clock of the node that took the event has no say.
const timersSQL = `
insert into absence_timers as t (tenant_id, timer, key, trigger_at, trigger_event_id, trigger_occurred_at, cancel_at,
	activity_at, first_at)
select tenant_id, timer, key, case when trigger_at is not null then least(trigger_at, now()) end, event_id, occurred_at,
	case when cancel_at is not null then least(cancel_at, now()) end,
	case when activity_at is not null then least(activity_at, now()) end,
	case when first_at is not null then least(first_at, now()) end
from unnest($1::int[], $2::text[], $3::text[], $4::timestamptz[], $5::uuid[], $6::timestamptz[], $7::timestamptz[],
	$8::timestamptz[], $9::timestamptz[], $10::float8[])
	as u(tenant_id, timer, key, trigger_at, event_id, occurred_at, cancel_at, activity_at, first_at, stale)
where stale is null or greatest(trigger_at, cancel_at, activity_at) > now() - stale * interval '1 second'
order by 1, 2, 3
on conflict (tenant_id, timer, key) do update set
	trigger_at = greatest(t.trigger_at, excluded.trigger_at),
	trigger_event_id = case when t.trigger_at is null
			or (excluded.trigger_at, excluded.trigger_event_id) > (t.trigger_at, t.trigger_event_id)
		then excluded.trigger_event_id else t.trigger_event_id end,
	trigger_occurred_at = case when t.trigger_at is null
			or (excluded.trigger_at, excluded.trigger_event_id) > (t.trigger_at, t.trigger_event_id)
		then excluded.trigger_occurred_at else t.trigger_occurred_at end,
	cancel_at = greatest(t.cancel_at, excluded.cancel_at),
	activity_at = greatest(t.activity_at, excluded.activity_at),
	first_at = case when t.armed_at is null then excluded.first_at else least(t.first_at, excluded.first_at) end,
	done_at = case when excluded.first_at is not null and excluded.cancel_at > coalesce(t.cancel_at, '-infinity')
		then null else t.done_at end
where excluded.trigger_at > coalesce(t.trigger_at, '-infinity') or excluded.cancel_at > coalesce(t.cancel_at,
	'-infinity')
	or excluded.activity_at > coalesce(t.activity_at, '-infinity')
	or (excluded.trigger_at = t.trigger_at and excluded.trigger_event_id > t.trigger_event_id)
	or excluded.first_at is not null`

// timerColumns are the parameters of timersSQL.
type timerColumns struct {
	tenants      []int32
	timers, keys []string
	// triggerAt is when the trigger counts as having happened, occurredAt when its event says that it did.
	triggerAt  []*time.Time
	triggers   []*pipeline.UUID
	occurredAt []*time.Time
	cancelAt   []*time.Time
	activityAt []*time.Time
	firstAt    []*time.Time
	stale      []*float64
}

func queueTimers(b *pgx.Batch, marks []rules.Mark) {
	var c timerColumns
	for _, t := range rules.Merge(marks) {
		c.tenants = append(c.tenants, t.Tenant)
		c.timers = append(c.timers, t.Timer)
		c.keys = append(c.keys, t.Key)
		var id *pipeline.UUID
		var at *time.Time
		if t.Trigger != nil {
			id, at = &t.Trigger.ID, &t.Trigger.OccurredAt
		}
		c.triggerAt = append(c.triggerAt, t.TriggerAt)
		c.triggers = append(c.triggers, id)
		c.occurredAt = append(c.occurredAt, at)
		c.cancelAt = append(c.cancelAt, t.CancelAt)
		c.activityAt = append(c.activityAt, t.ActivityAt)
		c.firstAt = append(c.firstAt, t.FirstAt)
		c.stale = append(c.stale, secondsOrNull(t.Stale))
	}
	b.Queue(timersSQL, c.tenants, c.timers, c.keys, c.triggerAt, c.triggers, c.occurredAt, c.cancelAt, c.activityAt,
		c.firstAt, c.stale)
	queueHistory(b, marks)
}

// historySQL keeps every trigger and cancel of rules whose anchor is not a maximum.
const historySQL = `
insert into absence_history (tenant_id, timer, key, at, event_id, occurred_at, cancels)
select tenant_id, timer, key, least(at, now()), event_id, occurred_at, cancels
from unnest($1::int[], $2::text[], $3::text[], $4::timestamptz[], $5::uuid[], $6::timestamptz[], $7::bool[])
	as u(tenant_id, timer, key, at, event_id, occurred_at, cancels)
order by 1, 2, 3, 4, 5 on conflict do nothing`

// historyColumns are the parameters of historySQL.
type historyColumns struct {
	tenants      []int32
	timers, keys []string
	at           []time.Time
	events       []pipeline.UUID
	occurredAt   []time.Time
	cancels      []bool
}

func queueHistory(b *pgx.Batch, marks []rules.Mark) {
	var c historyColumns
	for _, m := range marks {
		if !m.Rule.Absence.First {
			continue
		}
		c.tenants = append(c.tenants, m.Event.Tenant)
		c.timers = append(c.timers, m.Rule.Absence.Timer)
		c.keys = append(c.keys, m.Key)
		c.at = append(c.at, m.At())
		c.events = append(c.events, m.Event.ID)
		c.occurredAt = append(c.occurredAt, m.Event.OccurredAt)
		c.cancels = append(c.cancels, m.Role == rules.Cancels)
	}
	if len(c.tenants) > 0 {
		b.Queue(historySQL, c.tenants, c.timers, c.keys, c.at, c.events, c.occurredAt, c.cancels)
	}
}
