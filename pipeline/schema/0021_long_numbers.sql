-- oldest program: 15
-- A number of nine bytes, 1e131071, has 131,072 digits whenever it is read: 8,200 of them in one message made every
-- claim of it fail. Numbers in payloads have at most 400 digits now, as in events; all of a double precision fits.

-- Whether the value holds a number that takes more than 400 digits once it is written out. It prints none of them.
create function sluice_has_long_number(value jsonb) returns boolean
language sql immutable parallel safe
as $$
    select exists (
        select from jsonb_path_query(value, 'strict $.** ? (@.type() == "number")') q (n),
            lateral (select n::numeric as n, scale(n::numeric) as digits) d
        -- Before the point there is one digit at least.
        where d.digits >= 400 or abs(d.n) >= ('1e' || (400 - d.digits))::numeric)
$$;

-- As in 0004_enqueue.sql, with the check of numbers.
create or replace function sluice_enqueue(messages jsonb)
returns table (message_index integer, duplicate boolean, destination text, message_id bigint, idempotency_key uuid)
language plpgsql
set search_path from current -- callers and triggers have theirs
as $$
#variable_conflict use_column
declare
    faults text;
    time_with_offset constant text := '^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d(:?\d\d)?)$';
begin
    messages := case jsonb_typeof(messages) when 'object' then jsonb_build_array(messages) else messages end;
    if messages is null or jsonb_typeof(messages) <> 'array' then
        raise exception 'sluice_enqueue: messages is neither a JSON object nor an array of objects' using errcode = '22023';
    end if;

    select string_agg(format('message %s: %s', n - 1, fault), '; ' order by n) into faults
    from (
        select n, fault
        from jsonb_array_elements(messages) with ordinality as a (m, n),
        lateral (select case
            when jsonb_typeof(m) <> 'object' then 'is no JSON object'
            when exists (select from jsonb_object_keys(m) k where k not in ('event_type', 'payload', 'destination', 'topic',
                    'aggregate_type', 'aggregate_id', 'headers', 'idempotency_key', 'dedupe_until', 'run_after', 'tenant'))
                then (select format('%s is not known', string_agg(to_json(k)::text, ', '))
                      from jsonb_object_keys(m) k where k not in ('event_type', 'payload', 'destination', 'topic',
                        'aggregate_type', 'aggregate_id', 'headers', 'idempotency_key', 'dedupe_until', 'run_after', 'tenant'))
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
            when m ->> 'tenant' !~ '^[1-9]\d{0,8}$' then 'tenant is no number from 1 to 999999999'
            end) as f (fault)
        where fault is not null
        order by n
        limit 10
    ) first_faults;
    if faults is not null then
        raise exception 'sluice_enqueue: %', faults using errcode = '22023';
    end if;

    return query
    with message as materialized (
        select (n - 1)::integer as i, m, coalesce((m ->> 'tenant')::integer, 1) as tenant, m ->> 'idempotency_key' as key,
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
        insert into outbox (tenant_id, type, subject_key, dedupe_key, idempotency_key, destination, payload, headers, run_after)
        select tenant, m ->> 'event_type',
               case when m ->> 'aggregate_type' <> '' then (m ->> 'aggregate_type') || ':' || (m ->> 'aggregate_id') else '' end,
               coalesce(key, target.idempotency_key::text), -- nobody can repeat a message without a key
               target.idempotency_key, target.destination, m -> 'payload', nullif(m -> 'headers', 'null'),
               coalesce((m ->> 'run_after')::timestamptz, now())
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
