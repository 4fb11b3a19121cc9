-- oldest program: 15
-- Who writes to this database: the books of one process compare what it counted with what the tables hold only where
-- nobody else has written since it started.
create table sluice_processes (
    process_id uuid primary key,
    -- Whether it stores events or decides; a process that only delivers or cleans up does not.
    writes     boolean not null,
    started_at timestamptz not null default now(),
    -- When it last said that it runs; it does so every few seconds.
    seen_at    timestamptz not null default now(),
    -- When it ended in order. A process that is killed leaves it empty.
    ended_at   timestamptz
);
