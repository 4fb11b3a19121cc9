// Package bench measures whole paths of a running pipeline on a real PostgreSQL, each beside its floor in the same run.
//
// It starts the program as a process of its own, makes deterministic input with ids that are unique in a run, and
// loads it in a closed loop (for the highest rate) or in an open one (for latency, measured from the time at which a
// request was due, so that a slow answer can't hide the wait of those behind it). No rate is given out before what was
// acknowledged has been compared with what is stored: Books.Lost and Books.Doubled have to be zero.
//
// Everything happens in a database that the run creates and drops; a crash leaves one named sluice_bench_*.
// Figures are ratios and CPU per event wherever possible, since wall-clock rates move with the machine.
package bench
