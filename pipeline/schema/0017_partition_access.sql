-- oldest program: 15
-- A new partition can be used by whoever can use events, and by nobody else. PostgreSQL takes the rights of a new table
-- from default privileges, which may give more than the parent does, and leaves row security off: whoever names the
-- partition would read past the parent's policies.

-- Gives one partition the owner, the grants, and the row security of events, in place of its own.
create function copy_events_access(partition regclass, events regclass) returns void
language plpgsql as $$
declare
    statement text;
begin
    for statement in
        with parent as (select * from pg_class where oid = events),
             child as (select * from pg_class where oid = partition)
        select s from (
            select distinct 1, format('revoke all on %s from %s cascade', partition,
                case when a.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end)
            from child, aclexplode(child.relacl) a where a.grantee <> child.relowner
            union all
            select 2, format('alter table %s owner to %I', partition, pg_get_userbyid(parent.relowner))
            from parent, child where parent.relowner <> child.relowner
            union all
            select 3, format('grant %s on %s to %s%s', a.privilege_type, partition,
                case when a.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end,
                case when a.is_grantable then ' with grant option' else '' end)
            from parent, aclexplode(parent.relacl) a where a.grantee <> parent.relowner
            union all
            select 3, format('grant %s (%I) on %s to %s%s', a.privilege_type, c.attname, partition,
                case when a.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end,
                case when a.is_grantable then ' with grant option' else '' end)
            from pg_attribute c, aclexplode(c.attacl) a where c.attrelid = events and not c.attisdropped
            union all
            select 4, format('alter table %s %s row level security', partition,
                case when parent.relrowsecurity then 'enable' else 'disable' end)
            from parent, child where parent.relrowsecurity <> child.relrowsecurity
            union all
            select 4, format('alter table %s %s row level security', partition,
                case when parent.relforcerowsecurity then 'force' else 'no force' end)
            from parent, child where parent.relforcerowsecurity <> child.relforcerowsecurity
            union all
            select 5, format('drop policy %I on %s', p.polname, partition)
            from pg_policy p where p.polrelid = partition
            union all
            select 6, format('create policy %I on %s as %s for %s to %s%s%s', p.polname, partition,
                case when p.polpermissive then 'permissive' else 'restrictive' end,
                case p.polcmd when 'r' then 'select' when 'a' then 'insert' when 'w' then 'update' when 'd' then 'delete'
                    else 'all' end,
                (select string_agg(case when r = 0 then 'public' else quote_ident(pg_get_userbyid(r)) end, ', ')
                    from unnest(p.polroles) r),
                ' using (' || pg_get_expr(p.polqual, p.polrelid) || ')',
                ' with check (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')')
            from pg_policy p where p.polrelid = events
        ) as steps (step, s)
        order by step, s
    loop
        begin
            execute statement;
        exception when undefined_table or undefined_column then
            -- A policy that names its table in a query of its own. Without the policy row security shows less, not more.
            raise warning 'copy_events_access: % (%)', statement, sqlerrm;
        end;
    end loop;
end
$$;

-- As before, and with the access of events.
create or replace function create_events_partition(day date) returns boolean
language plpgsql as $$
declare
    partition text := 'events_' || to_char(day, 'YYYYMMDD');
begin
    if to_regclass(quote_ident(partition)) is not null then
        return false;
    end if;
    perform pg_advisory_xact_lock(hashtextextended('sluice:create_events_partition', 0));
    -- Another session may have made it while this one waited. Not to_regclass again: its "no" from above is cached, and
    -- taking an advisory lock does not refresh that. A query sees what is committed.
    if exists (select from pg_class where relname = partition and pg_table_is_visible(oid)) then
        return false;
    end if;
    execute format('create table %I (like events including defaults including constraints including comments)', partition);
    perform copy_events_access(quote_ident(partition)::regclass, 'events'::regclass);
    execute format('alter table events attach partition %I for values from (%L) to (%L)', partition,
        to_char(day, 'YYYY-MM-DD') || ' 00:00:00+00', to_char(day + 1, 'YYYY-MM-DD') || ' 00:00:00+00');
    return true;
end
$$;
