-- oldest program: 15
-- What a limit with over: digest held back from a subject since its last digest, and when the next one is due. A program
-- that does not know the columns leaves them as they are.
alter table limit_subjects
    add column held          bigint not null default 0,
    add column held_since    timestamptz,
    add column digest_due_at timestamptz;
create index limit_subjects_digest_due on limit_subjects (digest_due_at) where digest_due_at is not null;
