package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
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
