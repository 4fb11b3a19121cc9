-- oldest program: 15
-- What limits over several rules granted, by subject.
create table limit_subjects (
    tenant_id integer not null,
    limit_id  text    not null,
    subject   text    not null,
    -- When its messages are due or were, latest first. A deferred one lies ahead.
    moments   timestamptz[] not null,
    -- From when on the row changes nothing any more.
    until     timestamptz   not null,
    primary key (tenant_id, limit_id, subject)
);
create index limit_subjects_until on limit_subjects (until);
