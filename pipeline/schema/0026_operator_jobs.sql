-- oldest program: 15
-- What operators have done to many rows at once, so that who is interrupted goes on where they ended. One process has a
-- job at a time, by a lease as messages have it.
create table operator_jobs (
    id           bigint generated always as identity primary key,
    kind         text        not null,
    filter       jsonb       not null,
    max_id       bigint      not null,
    after_id     bigint      not null,
    state        text        not null default 'running' check (state in ('running', 'done')),
    done         bigint      not null default 0,
    actor        text        not null default session_user,
    made_at      timestamptz not null default now(),
    error        text,
    locked_until timestamptz,
    lease_token  uuid
);

comment on column operator_jobs.kind is 'retried or discarded: messages of the outbox.';
comment on column operator_jobs.max_id is 'The last row there was when the job was made; later ones are none of its.';
comment on column operator_jobs.after_id is 'All rows up to this one were looked at.';
comment on column operator_jobs.done is 'How many rows the job has changed.';

create index operator_jobs_running on operator_jobs (kind) where state = 'running';
