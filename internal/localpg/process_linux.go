package localpg

import "syscall"

// killWithParent has the kernel send the child a signal when the thread that started it ends, which is when our
// program ends: see runPinned and start, which hold on to that thread.
func killWithParent(attr *syscall.SysProcAttr, signal syscall.Signal) { attr.Pdeathsig = signal }
