-- What rules remember about whom they are about: the exact sliding window of cooldowns and caps, and what was held back.

create table rule_subjects (
    tenant_id   integer     not null,
    rule_id     text        not null,
    subject     text        not null,
    -- When something was granted, newest first, as many as the cap allows at once.
    recent      timestamptz[] not null,
    decided_at  timestamptz not null,
    -- The last statement's question, answer and limits: ON CONFLICT hands values to the row only through its columns.
    asked       integer     not null,
    granted     integer     not null,
    cap_max     integer,
    cap_seconds double precision not null,
    cooldown_seconds double precision not null,
    digest_seconds   double precision,
    -- What was held back since the last digest. All three are empty for rules without one.
    suppressed  bigint      not null default 0,
    suppressed_since timestamptz,
    digest_due_at    timestamptz,
    primary key (tenant_id, rule_id, subject)
) with (fillfactor = 70);

create index rule_subjects_digest_due on rule_subjects (digest_due_at) where digest_due_at is not null;

comment on table rule_subjects is 'Cooldown, cap and digest, one row for each subject of a rule that has any of them.';

-- How many of the asked decisions may be made at t. A cooldown grants one at most; recent[1] is the newest grant.
create function rule_grants(recent timestamptz[], t timestamptz, asked integer, cap_max integer, cap_seconds double precision,
    cooldown_seconds double precision) returns integer
language sql stable as $$
    select least(asked,
        case when cap_max is not null then greatest(0, cap_max -
            (select count(*)::integer from unnest(recent) r where r > t - cap_seconds * interval '1 second')) end,
        case when cooldown_seconds > 0 then
            case when recent[1] > t - cooldown_seconds * interval '1 second' then 0 else 1 end end)
$$;
