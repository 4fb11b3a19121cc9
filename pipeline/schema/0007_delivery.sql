-- Delivery: what became of each attempt, and the indexes for dead messages and for order per subject.

create table outbox_attempts (
    message_id      bigint      not null,
    -- Which attempt it was; null where the result came late: another worker, or an operator, had the message by then.
    attempt         integer,
    started_at      timestamptz not null,
    latency_seconds real        not null,
    status          text        not null,
    http_status     integer,
    error           text
) with (autovacuum_vacuum_insert_scale_factor = 0.05);

comment on table outbox_attempts is 'Every attempt to deliver a message: append-only, and pruned by age.';
comment on column outbox_attempts.status is 'sent, failed, dead, or late: the result was refused, since the lease had passed to another.';

create index outbox_attempts_message on outbox_attempts (message_id);
-- Rows come in the order of time, so this stays tiny; pruning reads by it.
create index outbox_attempts_started on outbox_attempts using brin (started_at);

-- Dead messages, for those who look after them.
create index outbox_dead on outbox (destination, message_id) where status = 'dead';

-- The unfinished messages before another one of the same subject, for destinations that keep their order.
create index outbox_order on outbox (destination, subject_key, message_id) where status in ('pending', 'failed', 'dead');
