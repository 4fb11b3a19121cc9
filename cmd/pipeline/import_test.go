package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
)

// The command finds the pipeline, the key and the file; what was rejected shows in the exit status.
func TestImportCommand(t *testing.T) {
	var key, path string
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		key, path = r.Header.Get("Authorization"), r.URL.Path
		_, _ = io.WriteString(w,
			`{"stored":1,"duplicate":0,"rejected":1,"events":`+
				`[{"index":1,"result":"rejected","field":"event_name","reason":"is bad"}]}`)
	}))
	defer door.Close()
	file := writeFile(t, "in.ndjson", "{\"event_name\":\"a\"}\n{\"event_name\":\"bad\"}\n")
	status, out, errOut := runCommand(t, []string{"SLUICE_WRITE_KEY=k1"}, "import", file, "--to", door.URL)
	if status != 3 || !strings.Contains(out, "1 stored, 0 duplicate, 1 rejected") ||
		!strings.Contains(errOut, file+".rejected.ndjson") {
		t.Errorf("status %d, want 3\n%s%s", status, out, errOut)
	}
	if key != "Bearer k1" || path != "/v1/events" {
		t.Errorf("posted to %q with %q", path, key)
	}
	status, out, _ = runCommand(t, nil, "import", file, "--to", door.URL)
	if status != 3 || !strings.Contains(out, "completely before") {
		t.Errorf("a second run: status %d\n%s", status, out)
	}
	for _, args := range [][]string{{}, {"-", "--to", "ftp://x"}, {"-", "--batch", "0"}, {"-", "--requests=300"},
		{"-", "--progress-every", "0"}} {
		if status, _, errOut := runCommand(t, nil, append([]string{"import"}, args...)...); status != 2 {
			t.Errorf("import %q: status %d (%s), want 2", args, status, errOut)
		}
	}
}

// An import of history makes no messages of what is too old for event rules, unless somebody means it.
func TestImportPassesRulesBy(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	node := startNode(t, url, append(writeRules(t, "http://127.0.0.1:1", "[1h]"), "--ingest.max-age", "400d")...)
	conn := connect(t, url)
	history := func(name string) string {
		var lines strings.Builder
		for i := range 23 {
			ago := time.Duration(4+i) * 24 * time.Hour
			if i < 3 {
				ago = 30 * time.Minute
			}
			lines.WriteString(testEvent(fmt.Sprintf("%s-%d", name, i), time.Now().Add(-ago)) + "\n")
		}
		return writeFile(t, name+".ndjson", lines.String())
	}
	for _, c := range []struct {
		name string
		args []string
		want int64
		said string
	}{
		{"plain", nil, 3, "20 events are older than 3d: event rules passed them by"},
		{"meant", []string{"--with-rules"}, 3 + 23, "20 events are older than 3d, and event rules looked at them"},
	} {
		args := append([]string{"import", history(c.name), "--to", node.URL}, c.args...)
		status, out, errOut := runCommand(t, nil, args...)
		if status != 0 || !strings.Contains(out, "23 stored") || !strings.Contains(out, c.said) {
			t.Errorf("%s: status %d\n%s%s", c.name, status, out, errOut)
		}
		if got := query1(t, conn, `select count(*) from outbox where rule_id = 'shop/welcome'`); got != c.want {
			t.Errorf("%s: %d welcomes, want %d", c.name, got, c.want)
		}
	}
}
