-- oldest program: 15
-- Since when a rate rule counts: from then on a window in which nothing was counted is one of 0, and can be compared
-- with. Of a rule that counts already it is known to have counted since its last fill.
alter table rate_fills add column counts_from timestamptz not null default now();
update rate_fills set counts_from = began_at;
