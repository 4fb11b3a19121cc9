-- A successful attempt stands in the message's own row, which is written anyway; outbox_attempts holds all others. Rows
-- that were noted there before stay.
alter table outbox
    add column attempt_seconds     real,
    add column attempt_http_status integer,
    add column attempt_started_at  timestamptz;

comment on column outbox.attempt_started_at is 'When the attempt began by which the message was sent, with attempt_seconds and attempt_http_status. Null where outbox_attempts has it.';
comment on table outbox_attempts is 'Attempts to deliver a message that were not the one by which it was sent: append-only, and pruned by age. outbox_all_attempts has all.';

create view outbox_all_attempts as
select message_id, attempt, started_at, latency_seconds, status, http_status, error
from outbox_attempts
union all
select message_id, attempts, attempt_started_at, attempt_seconds, 'sent', attempt_http_status, null
from outbox
where attempt_started_at is not null;

comment on view outbox_all_attempts is 'Every attempt to deliver a message that is on record.';
