-- oldest program: 15
-- A plan becomes one job at most, however often its form is sent.
alter table operator_jobs add column plan uuid constraint operator_jobs_plan unique;

comment on column operator_jobs.plan is 'The plan of which it was made; null: a command made it.';
