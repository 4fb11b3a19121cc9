package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestCommandLine: what people expect of any program.
func TestCommandLine(t *testing.T) {
	p := Program{Name: "p", Commands: []Command{
		{Name: "version", Help: "print it", Run: func(_ context.Context, _ []string, env Env) error {
			_, err := fmt.Fprintln(env.Stdout, "p 1")
			return err
		}},
		{Name: "do", Help: "do it", Run: func(_ context.Context, args []string, env Env) error {
			fs := NewFlags(env, "do", "Does it.", "p do list")
			fs.Int("n", 0, "a `number`")
			_, _, err := ParseAction(fs, args, map[string]int{"list": 0})
			if err == nil {
				fmt.Fprintln(env.Stdout, "done") // the error is the program's to notice
			}
			return err
		}},
	}}
	for _, c := range []struct {
		args   string
		status int
		want   []string
	}{
		{"--version", 0, []string{"p 1"}},
		{"help", 0, []string{"do it"}},
		{"help do", 0, []string{"Does it.", "--n number"}},
		{"help dp", 2, []string{`unknown command "dp"; did you mean "do"?`}},
		{"do list", 0, []string{"done"}},
		{"do lst --m 1 --n x", 2, []string{"unknown flag --m", `flag --n: "x"`, `unknown action "lst"; did you mean "list"?`}},
	} {
		var out, errOut bytes.Buffer
		status := p.Dispatch(t.Context(), strings.Fields(c.args), Env{Stdout: &out, Stderr: &errOut})
		for _, want := range c.want {
			if status != c.status || !strings.Contains(out.String()+errOut.String(), want) {
				t.Errorf("p %s: status %d, want %d and %q in\n%s%s", c.args, status, c.status, want, &out, &errOut)
			}
		}
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no /dev/full")
	}
	defer full.Close()
	for _, args := range []string{"do list", "version", "help do"} {
		var errOut bytes.Buffer
		status := p.Dispatch(t.Context(), strings.Fields(args), Env{Stdout: full, Stderr: &errOut})
		if status != 1 || !strings.Contains(errOut.String(), "no space left") {
			t.Errorf("p %s > /dev/full: status %d, %s", args, status, &errOut)
		}
	}
}
