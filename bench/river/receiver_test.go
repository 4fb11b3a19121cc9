package river

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// TestMain is also the receiver: this test binary, started again, answers 200 to every POST and reports on GET how many
// there were. As a process of its own, its CPU can be told from the sender's.
func TestMain(m *testing.M) {
	if os.Getenv("SLUICE_BENCH_RECEIVER") == "" {
		os.Exit(m.Run())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println("http://" + l.Addr().String())
	var received atomic.Int64
	go func() { // the end of the parent ends this process
		bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}()
	panic((&fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) {
		if ctx.IsGet() {
			fmt.Fprint(ctx, received.Load())
			return
		}
		received.Add(1)
	}}).Serve(l))
}

type receiver struct {
	url string
	pid int
}

func startReceiver(b *testing.B) *receiver {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SLUICE_BENCH_RECEIVER=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { stdin.Close(); cmd.Wait() })
	url, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return &receiver{strings.TrimSpace(url), cmd.Process.Pid}
}

// count is how many POSTs there were so far.
func (r *receiver) count(b *testing.B) int {
	_, body, err := fasthttp.Get(nil, r.url)
	if err != nil {
		b.Fatal(err)
	}
	n, err := strconv.Atoi(string(body))
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// cpuOf is the user and system time of a process, or of this one (0), its threads, and, with children, of those that
// ended
// and those that live.
func cpuOf(b *testing.B, pid int, children bool) time.Duration {
	if pid == 0 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	stat := func(pid string) (parent string, own, reaped time.Duration) {
		raw, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			return "", 0, 0
		}
		_, rest, _ := strings.Cut(string(raw), ") ")
		f := strings.Fields(rest)
		tick := func(i int) time.Duration {
			n, _ := strconv.Atoi(f[i])
			return time.Duration(n) * 10 * time.Millisecond // USER_HZ
		}
		return f[1], tick(11) + tick(12), tick(13) + tick(14)
	}
	_, sum, reaped := stat(strconv.Itoa(pid))
	if !children {
		return sum
	}
	sum += reaped
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if parent, own, _ := stat(e.Name()); parent == strconv.Itoa(pid) {
			sum += own
		}
	}
	return sum
}
