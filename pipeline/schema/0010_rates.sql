-- Rate rules: how many events a minute, and what each rule knows about how that compares.

-- One row for each minute and shard in which something happened. Shards keep batches that run at the same time from
-- waiting for each other's current minute.
create table rate_minutes (
    metric    text        not null,
    tenant_id integer     not null,
    minute    timestamptz not null,
    shard     smallint    not null,
    -- Denominator and numerator. What arrived later than the rule's settle time is counted apart: a window is judged
    -- before such events arrive, so they must not count in what it is compared with either.
    n         bigint not null,
    x         bigint not null,
    late_n    bigint not null,
    late_x    bigint not null,
    primary key (metric, tenant_id, minute, shard)
) with (fillfactor = 70);

-- What a rule knows about one tenant, up to a slot: the end of the last window that was judged.
create table rate_states (
    metric    text        not null,
    tenant_id integer     not null,
    slot      timestamptz not null,
    firing    boolean     not null,
    state     jsonb       not null,
    primary key (metric, tenant_id)
);

-- When a rule fired. Such times are no measure for what is normal.
create table rate_firings (
    metric     text        not null,
    tenant_id  integer     not null,
    started_at timestamptz not null,
    ended_at   timestamptz,
    primary key (metric, tenant_id, started_at)
);
