package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
)

func TestBillingReceiver(t *testing.T) {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), tables); err != nil {
		t.Fatal(err)
	}
	handler, err := billing(pool, secret, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	defer server.Close()

	post := func(id, body, secret string) (int, string) {
		t.Helper()
		key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		timestamp := fmt.Sprint(time.Now().Unix())
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
		req, err := http.NewRequest("POST", server.URL, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		req.Header.Set("webhook-id", id)
		req.Header.Set("webhook-timestamp", timestamp)
		req.Header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, strings.TrimSpace(string(text))
	}
	check := func(id, body, secret string, status int, begins string) {
		t.Helper()
		if got, text := post(id, body, secret); got != status || !strings.HasPrefix(text, begins) {
			t.Fatalf("message %s with %s was answered %d %q; want %d %q", id, body, got, text, status, begins)
		}
	}
	check("m17", `{"order_id":"17","cents":4900}`, secret, 200, "processed")
	check("m17", `{"order_id":"17","cents":4900}`, secret, 200, "duplicate")
	check("m18", `{"order_id":"18","cents":1}`, "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", 401, "not verified")
	check("m19", `{"order_id":"19","cents":0}`, secret, 500, "not processed") // the table does not take it
	check("m19", `{"order_id":"19","cents":5}`, secret, 200, "processed")     // nothing was left of the first try

	// A sender that lost its patience sends the same message from many places at once.
	var crowd sync.WaitGroup
	for range 20 {
		crowd.Go(func() {
			if status, text := post("m20", `{"order_id":"20","cents":7}`, secret); status != 200 {
				t.Errorf("message m20 was answered %d %q; want 200", status, text)
			}
		})
	}
	crowd.Wait()

	var invoices string
	const invoicesSQL = `select string_agg(order_id || ':' || cents, ' ' order by order_id) from invoices`
	if err := pool.QueryRow(t.Context(), invoicesSQL).Scan(&invoices); err != nil {
		t.Fatal(err)
	}
	if want := "17:4900 19:5 20:7"; invoices != want {
		t.Errorf("invoices = %q; want %q", invoices, want)
	}
}
