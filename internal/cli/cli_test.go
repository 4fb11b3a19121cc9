package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
		{"do lst --m 1 --n x", 2, []string{"unknown flag --m", `flag --n: "x"`,
			`unknown action "lst"; did you mean "list"?`}},
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

// TestHostileTextIsVisible: what strangers named and wrote can't steer the terminal, and JSON keeps its values.
func TestHostileTextIsVisible(t *testing.T) {
	const hostile = "a\x1b[2Jb\u202ec\u009bd\u2066e\x00f\rg\tü\n"
	const want = `a\u001b[2Jb\u202ec\u009bd\u2066e\u0000f\u000dg` + "\tü\n"
	if got := Visible(hostile); got != want {
		t.Errorf("Visible = %q, want %q", got, want)
	}
	var out bytes.Buffer
	w := &answerWriter{w: &out}
	for i := range len(hostile) { // one byte at a time
		if n, err := w.Write([]byte{hostile[i]}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := w.close(); err != nil || out.String() != want {
		t.Errorf("written %q, %v; want %q", out.String(), err, want)
	}
	p := Program{Name: "p", Commands: []Command{{Name: "x", Run: func(_ context.Context, args []string, env Env) error {
		if err := json.NewEncoder(env.Stdout).Encode(hostile); err != nil {
			return err
		}
		return errors.New(hostile)
	}}}}
	var errOut bytes.Buffer
	out.Reset()
	p.Dispatch(t.Context(), []string{"x"}, Env{Stdout: &out, Stderr: &errOut})
	var got string
	err := json.Unmarshal(out.Bytes(), &got)
	if err != nil || got != hostile || strings.ContainsAny(out.String(), "\u202e\u009b") {
		t.Errorf("JSON %q is %q, %v", out.String(), got, err)
	}
	if !strings.Contains(errOut.String(), want) {
		t.Errorf("error %q, want %q", errOut.String(), want)
	}
}
