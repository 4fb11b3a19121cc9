package ingest

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"testing"
)

func hashed(key string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key))) }

func TestCredentials(t *testing.T) {
	basic := func(user string) string { return "basic " + base64.StdEncoding.EncodeToString([]byte(user)) }
	for _, tt := range []struct{ authorization, writeKey, want string }{
		{"Bearer old", "", "old"}, {"bearer  new ", "", "new"}, {"Bearer Old", "", "Old"},
		{basic("new:"), "", "new"}, {basic("third:x"), "", "third"}, {basic("third"), "", "third"}, {basic(":old"), "", ""},
		{"", "third", "third"}, {"", "", ""}, {"Bearer ", "", ""}, {"Bearer", "", ""}, {"Bearer x", "old", "x"},
		{"Basic old", "", ""}, {"Digest old", "", ""}, {"Digest x", "old", ""},
	} {
		if got := string(credentials([]byte(tt.authorization), []byte(tt.writeKey))); got != tt.want {
			t.Errorf("Authorization %q, X-Write-Key %q: %q; want %q", tt.authorization, tt.writeKey, got, tt.want)
		}
	}
}
