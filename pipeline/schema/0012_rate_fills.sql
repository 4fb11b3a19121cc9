-- Whose minutes in rate_minutes are in step with the stored events: a rule that comes into force gets what was stored
-- without it counted, day by day.

create table rate_fills (
    metric   text primary key,
    -- When a node last had the rule in force. Older than a while: events were stored without it, so fill again.
    seen_at  timestamptz not null,
    -- How often all of it was filled since began_at. 0: not yet, and the rule is not judged. Twice is enough: batches
    -- that were under way during the first pass may not have known the rule.
    passes   integer not null,
    began_at timestamptz not null,
    -- The day (UTC) to be filled next, and the last one, which is the earliest. No day: nothing is to do.
    day      date,
    since    date not null
);

-- Rules that have been counting all along go on.
insert into rate_fills (metric, seen_at, passes, began_at, since)
select distinct metric, now(), 2, now(), (now() at time zone 'UTC')::date from rate_states;
