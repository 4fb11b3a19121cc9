package main

import (
	"syscall"
	"time"
)

// processCPU is the time that this process has been on a processor.
func processCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // does not happen for RUSAGE_SELF; the buffer then never names this process's CPU as the limit
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
