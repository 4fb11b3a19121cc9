-- Which programs can run on this database: until now only those that knew its last migration.
alter table schema_version add column if not exists oldest_program integer;
update schema_version set oldest_program = version where oldest_program is null;
alter table schema_version alter column oldest_program set not null;

comment on column schema_version.oldest_program is
    'Programs that know this version of the schema can run on the database as it is after this migration.';
