-- How rules fare: written by every process that evaluates, every few seconds, for "pipeline rules list".

create table rule_status (
    rule_id  text primary key,
    hash     text not null,
    kind     text not null,
    state    text not null check (state in ('active', 'shadow', 'off')),
    owner    text not null,
    response text not null,
    -- When a process last had the rule in force.
    seen_at  timestamptz not null,
    -- The last time that it failed on most of the events that it looked at, and how it failed last.
    failing_at    timestamptz,
    last_error    text,
    last_error_at timestamptz
);

create table rule_hours (
    rule_id    text        not null,
    hour       timestamptz not null,
    -- evaluated: events looked at. messages: outbox rows. The others: matches that made none.
    evaluated  bigint not null,
    messages   bigint not null,
    duplicate  bigint not null,
    cooldown   bigint not null,
    cap        bigint not null,
    errors     bigint not null,
    primary key (rule_id, hour)
);

comment on table rule_hours is 'What rules did, by hour. A crash may lose the last seconds of it; the metrics have the same numbers.';
