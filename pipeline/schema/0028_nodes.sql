-- oldest program: 15
-- What each process shows of itself to operators and to the others. The row is written every five seconds, and no index
-- holds what changes, so the update stays in its page.
alter table sluice_processes
    add column name             text   not null default '',
    add column address          text   not null default '',
    add column version          text   not null default '',
    add column roles            text[] not null default '{}',
    add column applied_revision bigint not null default 0,
    add column rules_hash       text   not null default '',
    add column state            jsonb  not null default '{}';

alter table sluice_processes set (fillfactor = 20, autovacuum_vacuum_threshold = 500);

comment on column sluice_processes.name is 'What operators call the node; it outlasts a restart.';
comment on column sluice_processes.address is 'Of its admin.listen.';
comment on column sluice_processes.applied_revision is 'It has seen setting_overrides up to this revision.';
comment on column sluice_processes.state is 'Load, closed gates of destinations, what became of overrides.';

-- Settings that operators have changed while the processes run.
create table setting_overrides (
    -- '' is every node, else the name of one.
    scope    text not null,
    key      text not null,
    value    text not null,
    -- Where two values take turns: the second one.
    other    text,
    set_by   text not null default session_user,
    set_at   timestamptz not null default now(),
    why      text not null,
    -- When it ends by itself; empty is one that is kept. A row whose time is over changes nothing.
    until    timestamptz,
    revision bigint not null,
    primary key (scope, key)
);

-- What would a node say? Every node answers in its state whether it would take the value.
create table setting_questions (
    revision bigint primary key,
    scope    text not null,
    key      text not null,
    value    text not null,
    asked_at timestamptz not null default now()
);

create sequence setting_revision;
