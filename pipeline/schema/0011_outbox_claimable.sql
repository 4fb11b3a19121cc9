-- With the id behind it, a claim can go on exactly where the last one ended, however many messages became due at once.
drop index outbox_claimable;
create index outbox_claimable on outbox (destination, run_after, message_id) where status in ('pending', 'failed');
