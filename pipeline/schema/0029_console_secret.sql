-- oldest program: 15
-- What signs the cookies of the console, so that every node takes a login and a restart ends none. Whoever may read the
-- row can log in as anybody.
create table console_secret (
    one     boolean     primary key default true check (one),
    key     bytea       not null,
    made_at timestamptz not null default now()
);

-- Two random UUIDs have 244 bits from the server's strong generator.
insert into console_secret (key)
values (sha256((gen_random_uuid()::text || gen_random_uuid()::text)::bytea));

-- Links for one login. Their secrets are not here.
create table console_links (
    secret_hash bytea       primary key,
    name        text        not null,
    role        text        not null check (role in ('viewer', 'operator')),
    expires_at  timestamptz not null
);

comment on column console_links.secret_hash is 'SHA-256 of the secret; the row goes when it is used.';
