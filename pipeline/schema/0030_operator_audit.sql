-- oldest program: 15
-- What operators have changed, by command or in the console. Rows are only added, in the transaction of the change.
create table operator_audit (
    audit_id bigint generated always as identity primary key,
    at       timestamptz not null default now(),
    actor    text        not null,
    via      text        not null check (via in ('command', 'console')),
    action   text        not null,
    target   text        not null,
    why      text        not null default '',
    before   jsonb,
    after    jsonb
);

comment on table operator_audit is 'What operators have changed. Rows are only added.';
comment on column operator_audit.actor is 'A login of the console, or user@host of a command.';
comment on column operator_audit.action is 'What was done, such as retry, discard or job paused.';
comment on column operator_audit.target is 'To what: message 17, job 3, or a filter.';

create function sluice_only_added() returns trigger language plpgsql as $$
begin
    raise exception 'rows of % are only added', tg_table_name using errcode = 'insufficient_privilege';
end
$$;

do $$
begin
    execute format('alter function sluice_only_added() set search_path = %I, pg_temp', current_schema());
end
$$;

create trigger only_added before update or delete or truncate on operator_audit
for each statement execute function sluice_only_added();

-- Jobs that the console made are done by its processes, at a rate, and can be paused and cancelled.
alter table operator_jobs
    add column planned bigint,
    add column rate    double precision,
    add column paused  boolean not null default false,
    add column why     text not null default '',
    drop constraint operator_jobs_state_check,
    add constraint operator_jobs_state_check check (state in ('running', 'done', 'cancelled'));

comment on column operator_jobs.rate is 'Rows a second. Null: the command that made it does it.';
comment on column operator_jobs.planned is 'How many rows there were to change when it was planned.';
