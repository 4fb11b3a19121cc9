package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"sluice.example/sluice/internal/receiver"
)

// testSecret signs what the nodes under test send.
const testSecret = "whsec_ZGVtby1vbmx5LWRlbW8tb25seS1kZW1vLW9ubHk="

// startReceiver serves a webhook sink, with the options as change leaves them.
func startReceiver(t *testing.T, change func(*receiver.Options)) *httptest.Server {
	t.Helper()
	o := receiver.DefaultOptions()
	if change != nil {
		change(&o)
	}
	r, err := receiver.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(r.Handler())
	t.Cleanup(s.Close)
	return s
}

func getJSON(t *testing.T, url string, into any) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil || res.StatusCode != 200 {
		t.Fatalf("GET %s: status %d, %v", url, res.StatusCode, err)
	}
}
