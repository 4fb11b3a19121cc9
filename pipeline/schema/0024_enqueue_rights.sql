-- oldest program: 15
-- What an application's role may do is what sluice_enqueue does, and nothing else. The function needed the caller's
-- rights in the tables, with which a role could read all payloads, free keys and forge messages; and it looked into the
-- caller's temporary tables, and into a schema of the caller's name, before our own. It now has the rights of its owner
-- and a fixed path, and is for the roles that may call it and for the tenants that they may write for.
--
-- Tenants have names. The number stays what rows hold.

-- What the configuration of the running programs says; written by them at start, like outbox_destinations.
create table outbox_tenants (
    tenant_id integer primary key,
    tenant    text    not null unique
);

create table outbox_writers (
    role      name    not null,
    tenant_id integer not null,
    primary key (role, tenant_id)
);

comment on table outbox_tenants is 'The names of tenants: a copy of the configuration.';
comment on table outbox_writers is 'Which tenants a role, or a member of it, may call sluice_enqueue for. Where there is one tenant and no row, all who may call it.';

alter table outbox add column tenant_ref text;

comment on column outbox.tenant_ref is 'What the application calls the customer, where it has one tenant for many. Passed on.';

-- As in 0021_long_numbers.sql, with the names of tenants, tenant_ref and the check of the caller. tenant is that of all
-- messages which name none.
create function sluice_enqueue(messages jsonb, tenant text)
returns table (message_index integer, duplicate boolean, destination text, message_id bigint, idempotency_key uuid)
language plpgsql
security definer
as $$
#variable_conflict use_column
declare
    faults text;
    of_call constant text := tenant;
    tenants jsonb; -- the number of each tenant that is named
    caller constant name := coalesce(nullif(current_setting('role', true), 'none'), session_user);
    time_with_offset constant text := '^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d(:?\d\d)?)$';
begin
    messages := case jsonb_typeof(messages) when 'object' then jsonb_build_array(messages) else messages end;
    if messages is null or jsonb_typeof(messages) <> 'array' then
        raise exception 'sluice_enqueue: messages is neither a JSON object nor an array of objects' using errcode = '22023';
    end if;

    -- By name, or by the number itself. Before the configuration is known each number is taken.
    select jsonb_object_agg(name, coalesce(named.tenant_id, numbered.id)) into tenants
    from (select distinct coalesce(m ->> 'tenant', of_call, '1') as name from jsonb_array_elements(messages) m) names
    left join outbox_tenants named on named.tenant = name
    left join lateral (select case when name ~ '^[1-9]\d{0,8}$' then name::integer end as id) number on true
    left join lateral (select number.id
        where exists (select from outbox_tenants k where k.tenant_id = number.id) or not exists (select from outbox_tenants)
        ) numbered on true;

    select string_agg(format('message %s: %s', n - 1, fault), '; ' order by n) into faults
    from (
        select n, fault
        from jsonb_array_elements(messages) with ordinality as a (m, n),
        lateral (select case
            when jsonb_typeof(m) <> 'object' then 'is no JSON object'
            when exists (select from jsonb_object_keys(m) k where k not in ('event_type', 'payload', 'destination', 'topic',
                    'aggregate_type', 'aggregate_id', 'headers', 'idempotency_key', 'dedupe_until', 'run_after', 'tenant', 'tenant_ref'))
                then (select format('%s is not known', string_agg(to_json(k)::text, ', '))
                      from jsonb_object_keys(m) k where k not in ('event_type', 'payload', 'destination', 'topic',
                        'aggregate_type', 'aggregate_id', 'headers', 'idempotency_key', 'dedupe_until', 'run_after', 'tenant', 'tenant_ref'))
            when jsonb_typeof(m -> 'event_type') is distinct from 'string' or m ->> 'event_type' = '' then 'event_type is missing'
            when length(m ->> 'event_type') > 200 then 'event_type is longer than 200 characters'
            when not m ? 'payload' then 'payload is missing'
            when sluice_has_long_number(m -> 'payload')
                then 'payload holds a number of more than 400 digits once it is written out'
            when octet_length((m -> 'payload')::text) > 1048576 then 'payload is longer than 1 MiB'
            when (m ->> 'destination' is null) = (m ->> 'topic' is null) then 'exactly one of destination and topic is needed'
            when not exists (select from outbox_destinations d where d.destination = m ->> 'destination')
                 and m ->> 'destination' is not null
                then format('destination %s is not configured', m -> 'destination')
            when not exists (select from outbox_topics t where t.topic = m ->> 'topic') and m ->> 'topic' is not null
                then format('topic %s is not configured', m -> 'topic')
            when (coalesce(m ->> 'aggregate_type', '') = '') <> (coalesce(m ->> 'aggregate_id', '') = '')
                then 'aggregate_type and aggregate_id go together'
            when strpos(m ->> 'aggregate_type', ':') > 0 then 'aggregate_type holds a colon'
            when length(m ->> 'aggregate_type') + length(m ->> 'aggregate_id') > 1000
                then 'aggregate_type and aggregate_id are longer than 1000 characters'
            when jsonb_typeof(m -> 'headers') not in ('object', 'null') then 'headers is no JSON object'
            when jsonb_typeof(m -> 'headers') = 'object' and exists (
                    select from jsonb_each(m -> 'headers') h
                    where h.key !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$' or jsonb_typeof(h.value) <> 'string'
                       or h.value #>> '{}' ~ '[\x01-\x08\x0a-\x1f\x7f]')
                then 'headers has a name or a value that HTTP does not allow'
            when m ->> 'idempotency_key' = '' then 'idempotency_key is empty'
            when length(m ->> 'idempotency_key') > 1000 then 'idempotency_key is longer than 1000 characters'
            when m ->> 'dedupe_until' !~ time_with_offset then 'dedupe_until is no ISO 8601 time with an offset'
            when m ->> 'run_after' !~ time_with_offset then 'run_after is no ISO 8601 time with an offset'
            when jsonb_typeof(m -> 'tenant') not in ('string', 'number', 'null') then 'tenant is no name'
            when of_call <> m ->> 'tenant' then format('tenant %s is not %s, which the call is for', m -> 'tenant',
                to_json(of_call))
            when tenants ->> coalesce(m ->> 'tenant', of_call, '1') is null
                then format('tenant %s is not configured', to_json(coalesce(m ->> 'tenant', of_call, '1')))
            when m ->> 'tenant_ref' = '' then 'tenant_ref is empty'
            when length(m ->> 'tenant_ref') > 200 then 'tenant_ref is longer than 200 characters'
            when jsonb_typeof(m -> 'tenant_ref') not in ('string', 'null') then 'tenant_ref is no text'
            end) as f (fault)
        where fault is not null
        order by n
        limit 10
    ) first_faults;
    if faults is not null then
        raise exception 'sluice_enqueue: %', faults using errcode = '22023';
    end if;

    -- For the owner of the outbox, for whom outbox_writers names, and for everybody where there is one tenant and
    -- outbox_writers is empty.
    select string_agg(key, ', ' order by key) into faults
    from jsonb_each_text(tenants), pg_class c
    where c.oid = 'outbox'::regclass and not pg_has_role(caller, c.relowner, 'member')
        and (exists (select from outbox_writers) or (select count(*) from outbox_tenants) > 1)
        and not exists (
            select from outbox_writers w join pg_roles r on r.rolname = w.role
            where w.tenant_id = value::integer and pg_has_role(caller, r.oid, 'member'));
    if faults is not null then
        raise exception 'sluice_enqueue: role % may not enqueue for tenant %', caller, faults
            using errcode = '42501', hint = 'Have the owner of the outbox insert the role and the tenant_id into outbox_writers.';
    end if;

    return query
    with message as materialized (
        select (n - 1)::integer as i, m, (tenants ->> coalesce(m ->> 'tenant', of_call, '1'))::integer as tenant, m ->> 'idempotency_key' as key,
               -- The scope keeps a key of an application apart from what a rule remembers.
               substr(encode(sha256(convert_to('app:' || (m ->> 'idempotency_key'), 'UTF8')), 'hex'), 1, 32)::uuid as hash
        from jsonb_array_elements(messages) with ordinality as a (m, n)
    ), first as ( -- of several messages with one key the first counts
        select distinct on (tenant, hash) tenant, hash, i, (m ->> 'dedupe_until')::timestamptz as expires_at
        from message where hash is not null
        order by tenant, hash, i
    ), taken as (
        -- In the order of the key, so that two calls with the same keys do not deadlock. Waits for a transaction that
        -- has taken the key and not ended yet.
        insert into dedupe_keys (tenant_id, key_hash, expires_at)
        select tenant, hash, expires_at from first order by tenant, hash
        on conflict (tenant_id, key_hash) do update set expires_at = excluded.expires_at
            where dedupe_keys.expires_at <= now()
        returning tenant_id, key_hash
    ), fresh as (
        select message.* from message
        where hash is null
           or i in (select first.i from first join taken on (taken.tenant_id, taken.key_hash) = (first.tenant, first.hash))
    ), target as materialized (
        select i, destination, gen_random_uuid() as idempotency_key
        from (select i, m ->> 'destination' as destination from fresh where m ->> 'destination' is not null
              union all
              select i, t.destination from fresh join outbox_topics t on t.topic = m ->> 'topic') d
    ), stored as (
        insert into outbox (tenant_id, type, subject_key, dedupe_key, idempotency_key, destination, payload, headers, run_after, tenant_ref)
        select tenant, m ->> 'event_type',
               case when m ->> 'aggregate_type' <> '' then (m ->> 'aggregate_type') || ':' || (m ->> 'aggregate_id') else '' end,
               coalesce(key, target.idempotency_key::text), -- nobody can repeat a message without a key
               target.idempotency_key, target.destination, m -> 'payload', nullif(m -> 'headers', 'null'),
               coalesce((m ->> 'run_after')::timestamptz, now()), m ->> 'tenant_ref'
        from target join message using (i)
        order by i, target.destination
        returning message_id, idempotency_key
    )
    select i, false, target.destination, stored.message_id, target.idempotency_key
    from target join stored using (idempotency_key)
    union all
    select i, true, null, null, null from message where i not in (select fresh.i from fresh)
    order by 1, 3;
end
$$;

create or replace function sluice_enqueue(messages jsonb)
returns table (message_index integer, duplicate boolean, destination text, message_id bigint, idempotency_key uuid)
language sql
security definer
as $$ select * from sluice_enqueue(messages, null) $$;

-- The path of each function is our schema; pg_temp, which is first unless it is named, is last.
do $$
declare
    f regprocedure;
    writer text;
begin
    for f in select oid from pg_proc where pronamespace = (select oid from pg_namespace where nspname = current_schema())
        and proname in ('sluice_enqueue', 'sluice_has_long_number', 'create_events_partition', 'copy_events_access')
    loop
        execute format('alter function %s set search_path = %I, pg_temp', f, current_schema());
    end loop;
    revoke execute on function sluice_enqueue(jsonb), sluice_enqueue(jsonb, text) from public;
    -- Who could enqueue can go on.
    for writer in select distinct case when grantee = 0 then 'public' else quote_ident(pg_get_userbyid(grantee)) end
        from pg_class, aclexplode(relacl) a
        where oid = 'outbox'::regclass and privilege_type = 'INSERT' and grantee <> relowner
    loop
        execute format('grant execute on function sluice_enqueue(jsonb), sluice_enqueue(jsonb, text) to %s', writer);
    end loop;
end
$$;
