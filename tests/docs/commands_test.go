// Package docs tests that the documents are true: their commands run and print what is shown, their links lead
// somewhere, and what they name exists.
package docs

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice.example/sluice/internal/child"
)

const root = "../.."

// limit bounds the start of a server, and what a block marked "eventually" waits for.
const limit = 2 * time.Minute

// TestReadmeTour and TestTutorial: every line that a reader is told to type works, and prints what is shown.
func TestReadmeTour(t *testing.T) { followPage(t, filepath.Join(root, "README.md")) }

func TestTutorial(t *testing.T) { followPage(t, filepath.Join(root, "docs", "tutorial.md")) }

// block is a fenced block of a page. The word after "sh" says how it runs:
//
//	sh             in one shell for the whole page; every command succeeds
//	sh fails       the last command fails
//	sh eventually  is repeated until it prints what is shown
//	sh server      goes on running, in a terminal of its own
//
// A block "text" shows what the block before it prints; "..." there stands for anything, on a line of its own for any
// lines.
type block struct {
	line      int
	mode      string
	text      string
	wants     string
	hasOutput bool
}

var fence = regexp.MustCompile("(?ms)^```(\\w+) ?(\\w*)\n(.*?)^```$")

func blocksOf(t *testing.T, page string) (blocks []block) {
	t.Helper()
	source, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range fence.FindAllStringSubmatchIndex(string(source), -1) {
		language, mode, text := string(source[m[2]:m[3]]), string(source[m[4]:m[5]]), string(source[m[6]:m[7]])
		switch line := 1 + strings.Count(string(source[:m[0]]), "\n"); language {
		case "sh":
			blocks = append(blocks, block{line: line, mode: mode, text: text})
		case "text":
			if len(blocks) == 0 {
				t.Fatalf("%s:%d: output before any command", page, line)
			}
			last := &blocks[len(blocks)-1]
			last.wants, last.hasOutput = last.wants+text, true
		}
	}
	return blocks
}

func followPage(t *testing.T, page string) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("the page's reader has curl: ", err)
	}
	blocks := blocksOf(t, page)
	if len(blocks) < 5 {
		t.Fatalf("%d blocks of commands found in %s", len(blocks), page)
	}
	r := newReader(t)
	for _, b := range blocks {
		where := fmt.Sprintf("%s:%d", filepath.Base(page), b.line)
		if b.mode == "server" {
			r.serve(t, where, b.text)
			continue
		}
		deadline := time.Now().Add(limit)
		for {
			got, ok := r.run(t, b.text)
			matches := !b.hasOutput || shown(b.wants).MatchString(got)
			if ok == (b.mode != "fails") && matches {
				break
			}
			if b.mode != "eventually" || time.Now().After(deadline) {
				t.Fatalf("%s: succeeded: %v\n%s\nprinted\n%s\nthe page shows\n%s", where, ok, b.text, got, b.wants)
			}
		}
	}
}

// shown is the pattern that the output on a page stands for.
func shown(text string) *regexp.Regexp {
	var b strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if line == "..." {
			b.WriteString(`(?:.*\n)*?`)
			continue
		}
		b.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), `\.\.\.`, `.*`) + `\n`)
	}
	return regexp.MustCompile(`^` + b.String() + `$`)
}

// reader is somebody who follows a page: a folder with the program, a shell, and addresses that nobody else uses.
type reader struct {
	dir       string
	env       []string
	addresses *strings.Replacer
	admin     string
	receiver  string
	in        io.Writer
	out       *bufio.Reader
}

func newReader(t *testing.T) *reader {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice-docs-") // not t.TempDir, which PostgreSQL's own user can't enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, err := range []error{
		os.Chmod(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "Makefile"), []byte("build:\n"), 0o644), // the test has built it
		os.CopyFS(filepath.Join(dir, "rules"), os.DirFS(filepath.Join(root, "rules"))),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "bin")+"/", "./cmd/...")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	events, admin, receiver := freeAddress(t), freeAddress(t), freeAddress(t)
	r := &reader{
		dir: dir,
		env: append(child.Environ(), "PIPELINE_LISTEN="+events, "PIPELINE_ADMIN_LISTEN="+admin,
			"PIPELINE_CONSOLE_LISTEN=127.0.0.1:0"),
		admin: "http://" + admin, receiver: "http://" + receiver,
		addresses: strings.NewReplacer("127.0.0.1:8080", events, "127.0.0.1:9090", admin, "127.0.0.1:9000", receiver,
			"bin/pipeline books", "bin/pipeline books --admin http://"+admin),
	}
	shell := r.command("bash")
	in, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	shell.Stdout, shell.Stderr = w, w
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() {
		in.Close()
		stop(t, shell)
		out.Close()
	})
	r.in, r.out = in, bufio.NewReader(out)
	return r
}

// command runs in a process group of its own, so that stop reaches all that it starts.
func (r *reader) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = r.dir, r.env, &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

const endOfBlock = "end of block, failed commands:"

// run returns what the commands print, and whether each of them succeeded.
func (r *reader) run(t *testing.T, text string) (printed string, ok bool) {
	t.Helper()
	_, err := fmt.Fprintf(r.in, "failed=0; trap failed=1 ERR\n%s\nprintf '\\n%s %%d\\n' $failed\n",
		r.addresses.Replace(text), endOfBlock)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for {
		line, err := r.out.ReadString('\n')
		if err != nil {
			t.Fatalf("the shell ended after %q: %v", b.String(), err)
		}
		if failed, ended := strings.CutPrefix(line, endOfBlock); ended {
			return withoutBlankLines(b.String()), failed == " 0\n"
		}
		b.WriteString(line)
	}
}

// withoutBlankLines is what pages show: blank lines tell a reader nothing.
func withoutBlankLines(s string) string {
	return regexp.MustCompile(`\n{2,}`).ReplaceAllString(strings.TrimSpace(s)+"\n", "\n")
}

// serve starts a program that goes on running, and returns when it is ready. It ends with the test.
func (r *reader) serve(t *testing.T, where, text string) {
	t.Helper()
	ready := r.receiver + "/healthz"
	if strings.Contains(text, "pipeline run ") {
		ready = r.admin + "/readyz"
	}
	log, err := os.Create(filepath.Join(r.dir, strings.ReplaceAll(where, ":", "-")+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := r.command("bash", "-c", r.addresses.Replace(text))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop(t, cmd)
		if t.Failed() {
			said, _ := os.ReadFile(log.Name()) // the failure is reported already
			t.Logf("%s said:\n%s", where, said)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for !answers(ctx, ready) {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %s does not answer after %v", where, ready, limit)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func answers(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// stop ends a process group as a Ctrl-C would, and by force where that takes too long.
func stop(t *testing.T, cmd *exec.Cmd) {
	ended := make(chan struct{})
	go func() {
		cmd.Wait() // how it ends is no matter here
		close(ended)
	}()
	syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
	select {
	case <-ended:
	case <-time.After(limit):
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		t.Errorf("%v did not end by SIGINT", cmd.Args)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
