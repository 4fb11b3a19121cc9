-- oldest program: 15
-- Under what a rule keeps its timers, subjects and counts: its name, or the one that it had before. Empty where a program
-- wrote that does not know of such names: then it is the rule's.
alter table rule_status add column state_key text;
