-- oldest program: 15
-- An attempt counts once it has begun, not once its message was claimed: a worker that dies takes the attempts of what it
-- held, and had not begun, with it otherwise. What remains of such a worker is a lease that ran out; the next claim counts
-- it. A program that counts at the claim can run beside those that do not.
alter table outbox add column lost_leases integer not null default 0;

comment on column outbox.lost_leases is
    'Leases that ran out without a result. Of a message that has any, attempts are counted before they begin.';
comment on column outbox.attempts is
    'Attempts that were recorded, or begun. An operator''s retry begins anew.';
