// Package bench measures whole paths on a real PostgreSQL, each beside its floor in the same run.
//
// The figures are ratios and CPU per event, since wall-clock rates move with the machine. Every run checks what it did
// (counts, no losses, no doubles) before it reports a rate. Run with `make bench`.
package bench
