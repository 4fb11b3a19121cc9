-- oldest program: 15
-- Decisions that PostgreSQL would not store, each of one rule about one event, so that it can be told why nothing came
-- of the event.
create table rule_refusals (
    tenant_id  integer     not null,
    event_id   uuid        not null,
    rule_id    text        not null,
    refused_at timestamptz not null,
    reason     text        not null,
    primary key (tenant_id, event_id, rule_id)
);
create index rule_refusals_refused_at on rule_refusals using brin (refused_at);
