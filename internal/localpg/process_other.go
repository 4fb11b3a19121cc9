//go:build unix && !linux

package localpg

import "syscall"

// killWithParent does nothing where the kernel has no such service. A server that outlives a killed program is stopped
// by the next Start.
func killWithParent(*syscall.SysProcAttr, syscall.Signal) {}
