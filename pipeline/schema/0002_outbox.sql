-- Promises: the outbox, and the memory that keeps a promise from being made twice.

create table outbox (
    message_id      bigint generated always as identity primary key,
    tenant_id       integer     not null,
    type            text        not null,
    subject_key     text        not null default '',
    dedupe_key      text        not null,
    -- Sent with every attempt. Random, so that neither a restored backup nor an expired dedupe key can make the key of
    -- one message that of another.
    idempotency_key uuid        not null default gen_random_uuid(),
    destination     text        not null,
    payload         jsonb       not null,
    headers         jsonb,
    status          text        not null default 'pending'
                                check (status in ('pending', 'failed', 'sent', 'skipped', 'dead')),
    attempts        integer     not null default 0,
    run_after       timestamptz not null default now(),
    locked_until    timestamptz,
    lease_token     uuid,
    created_at      timestamptz not null default now(),
    finished_at     timestamptz,
    last_error      text,
    -- Only for what a rule decided.
    rule_id         text,
    rule_hash       text,
    event_id        uuid,
    event_occurred_at timestamptz
) with (
    -- A claim writes locked_until, lease_token and attempts, which no index holds: with room on the page that is a
    -- HOT update, and costs no index entry.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 1
);

-- What can be claimed, by destination, oldest first. Finished rows are not in it, so it stays as small as the backlog,
-- and a paused destination's rows are never walked over to find those of another.
create index outbox_claimable on outbox (destination, run_after) where status in ('pending', 'failed');

comment on table outbox is 'Promises to deliver. A row is due, leased, or final (sent, skipped, dead).';
comment on column outbox.status is 'pending: not tried yet. failed: tried, and to be tried again after run_after. sent, skipped, dead: final.';
comment on column outbox.locked_until is 'End of the current lease; the row may be claimed again after it.';

-- One row for every promise ever made, for as long as it must not be made again. The outbox row may be pruned long
-- before. Of the key it keeps 128 bits of SHA-256, so that a row costs the same however long the key is.
create table dedupe_keys (
    tenant_id  integer not null,
    key_hash   uuid    not null,
    expires_at timestamptz,
    primary key (tenant_id, key_hash)
);

-- For pruning. Keys that last for ever are not in it.
create index dedupe_keys_expires_at on dedupe_keys (expires_at) where expires_at is not null;

comment on column dedupe_keys.expires_at is 'From when on the promise may be made again; null: never.';
