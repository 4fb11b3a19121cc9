-- What no event triggers: timers of absence rules, rollups and states of rate rules.

-- Before a message of an absence rule is sent, it is looked up once more whether it still holds:
-- {"timer": whose, "key": of which key, "anchor": since when, "trigger": the latest trigger then, "skip": [reasons]}.
alter table outbox add column recheck jsonb;

-- One row for each key of an absence rule. All of it is the maximum of what was seen, so the order in which events
-- arrive, and how often, makes no difference.
create table absence_timers (
    tenant_id    integer     not null,
    -- The rule and what its timers depend on; editing trigger, cancel or key starts afresh.
    timer        text        not null,
    key          text        not null,
    -- Times are the earlier of occurred_at and received_at, so that a clock that runs ahead can't delay anything.
    trigger_at   timestamptz,
    trigger_event_id    uuid,
    trigger_occurred_at timestamptz,
    cancel_at    timestamptz,
    -- Only for anchor idle: the latest event of any kind.
    activity_at  timestamptz,
    -- Only for anchor first: no trigger of the current streak is earlier.
    first_at     timestamptz,
    -- The trigger_at up to which this key has been dealt with.
    done_at      timestamptz,
    -- Only for anchor first: the anchor that fired last.
    fired_at     timestamptz,
    -- From when the waiting counts; null while there is nothing to wait for. A tie cancels.
    armed_at     timestamptz generated always as (
        case when trigger_at > coalesce(cancel_at, '-infinity'::timestamptz) and trigger_at > coalesce(done_at, '-infinity'::timestamptz)
            then coalesce(first_at, greatest(trigger_at, activity_at)) end) stored,
    primary key (tenant_id, timer, key)
) with (fillfactor = 80);

-- A tick reads what is due from here and nothing else.
create index absence_timers_armed on absence_timers (timer, armed_at) where armed_at is not null;

-- Only for anchor first, whose anchor is no maximum: every trigger and cancel within the lookback.
create table absence_history (
    tenant_id   integer     not null,
    timer       text        not null,
    key         text        not null,
    at          timestamptz not null,
    event_id    uuid        not null,
    occurred_at timestamptz not null,
    cancels     boolean     not null,
    primary key (tenant_id, timer, key, at, event_id)
);

-- Which absence rules have their timers in step with the stored events.
create table absence_seeds (
    timer     text primary key,
    -- When a node last had the rule in force. Older than a while: events were stored without it, so seed again.
    seen_at   timestamptz not null,
    -- The seed is made twice: batches that were under way during the first did not know the rule.
    seeds     integer not null,
    seeded_at timestamptz
);
