-- Events, one partition a day (UTC), and what could not be stored.

create table events (
    event_id     uuid        not null,
    tenant_id    integer     not null,
    event_name   text        not null,
    occurred_at  timestamptz not null,
    anonymous_id text,
    user_id      text,
    session_id   text,
    page_url     text,
    referrer     text,
    user_agent   text,
    properties   jsonb,
    received_at  timestamptz not null,
    client_id    text,
    -- The partition key has to be part of every unique key. A retry repeats its own occurred_at, so this key
    -- recognises it, and only the index of the day that is written to is hot.
    primary key (tenant_id, event_id, occurred_at)
) partition by range (occurred_at);

comment on table events is 'Facts that clients reported. Append-only; a day is dropped whole.';
comment on column events.occurred_at is 'When the client says that it happened; never corrected.';
comment on column events.client_id is 'The id that the client sent where it is no UUID; event_id is then derived from it.';

-- Makes the partition of one UTC day, and says whether it was missing. Safe to call at any time from any number of
-- sessions. The table is built aside and then attached: ATTACH takes a lock that lets reads and writes of the other
-- partitions go on, where CREATE TABLE ... PARTITION OF would stop them all until COMMIT.
create function create_events_partition(day date) returns boolean
language plpgsql as $$
declare
    partition text := 'events_' || to_char(day, 'YYYYMMDD');
begin
    if to_regclass(quote_ident(partition)) is not null then
        return false;
    end if;
    perform pg_advisory_xact_lock(hashtextextended('sluice:create_events_partition', 0));
    -- Another session may have made it while this one waited. Not to_regclass again: its "no" from above is cached, and
    -- taking an advisory lock does not refresh that. A query sees what is committed.
    if exists (select from pg_class where relname = partition and pg_table_is_visible(oid)) then
        return false;
    end if;
    execute format('create table %I (like events including defaults including constraints including comments)', partition);
    execute format('alter table events attach partition %I for values from (%L) to (%L)', partition,
        to_char(day, 'YYYY-MM-DD') || ' 00:00:00+00', to_char(day + 1, 'YYYY-MM-DD') || ' 00:00:00+00');
    return true;
end
$$;

create table quarantine (
    tenant_id      integer     not null,
    event_id       uuid        not null,
    occurred_at    timestamptz not null,
    quarantined_at timestamptz not null default now(),
    -- The event as it would have to be posted again: a JSON object in UTF-8. Not jsonb, which may be what refused it.
    event          bytea       not null,
    sqlstate       text        not null,
    reason         text        not null,
    -- A client that repeats a poisonous event updates its row.
    primary key (tenant_id, event_id, occurred_at)
);

comment on table quarantine is 'Events that passed the door but that PostgreSQL would not store, with its reason.';
