-- The inbox, for consumers that keep their books in this database. Receivers elsewhere make the same table by
-- themselves (inbox.Schema).

create table processed_messages (
    consumer     text        not null,
    message_id   text        not null,
    processed_at timestamptz not null default now(),
    primary key (consumer, message_id)
);

-- For pruning.
create index processed_messages_processed_at on processed_messages (processed_at);

comment on table processed_messages is 'Messages whose effect is committed. A row goes when no sender can repeat the message any more.';
