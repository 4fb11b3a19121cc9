alter table outbox add column redrives integer not null default 0;

comment on column outbox.redrives is 'How often an operator made the message due again. A broker that drops repeats is given another id each time.';
