-- oldest program: 15
-- A table without a primary key that is part of a publication (CREATE PUBLICATION ... FOR ALL TABLES, as Debezium and
-- providers' replication make) takes no DELETE, and retention would stop. This table has no key of its own: results that
-- come late may share all they have. Nothing is logged in addition until wal_level is logical.
alter table outbox_attempts replica identity full;
