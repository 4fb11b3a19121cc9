-- oldest program: 15
-- A claim that keeps the order of subjects marks those that wait for one before them, so that no later claim looks at
-- them: their run_after is put off to the year 9999, out of the way of every claim. The end of the one before, or a look
-- at all marked subjects now and then, makes the next one due. Programs that do not know the mark leave such messages
-- alone, and work by the indexes as they are.
alter table outbox add column behind_since timestamptz;

comment on column outbox.behind_since is
    'Since when the message waits for one before it of its subject, with run_after in 9999; null: it does not, or no claim has looked yet.';

-- The unfinished messages before and after another one of the same subject. Without a subject there is no order.
drop index outbox_order;
create index outbox_order on outbox (destination, tenant_id, subject_key, message_id)
    where status in ('pending', 'failed') and subject_key <> '';

-- Dead messages that may hold up those after them.
create index outbox_dead_order on outbox (destination, tenant_id, subject_key, message_id)
    where status = 'dead' and subject_key <> '';

-- What is marked.
create index outbox_behind on outbox (destination, tenant_id, subject_key, message_id)
    where behind_since is not null and status in ('pending', 'failed');
