-- Decisions of cooldowns and caps are made by the statement that records them.
drop function rule_grants(timestamptz[], timestamptz, integer, integer, double precision, double precision);
