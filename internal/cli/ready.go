package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// Ready is what a program that serves writes into the file that --ready-file names, as one JSON object: whoever started
// it waits for the file, and finds the addresses there. Addresses are URLs without a path.
type Ready struct {
	// URL takes events, or webhooks of a receiver; empty where neither is taken.
	URL string `json:"url,omitempty"`
	// Admin is the address of /readyz, /metrics and /v1/books.
	Admin string `json:"admin,omitempty"`
	// Console is a link for one login into the operators' console; empty where the process has none.
	Console string `json:"console,omitempty"`
	// Database is the URL of the database in use, without its password.
	Database string `json:"database_url,omitempty"`
	Pid      int    `json:"pid"`
}

// Write writes the file, whole: it is never seen half written. An empty path writes nothing.
func (r Ready) Write(path string) error {
	if path == "" {
		return nil
	}
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	err := out.Encode(r)
	if err == nil {
		err = os.WriteFile(path+".new", text.Bytes(), 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("ready-file: %w", err)
	}
	return nil
}

// RemoveReady removes the file, of this process or of one that was killed. An empty path is nothing to remove.
func RemoveReady(path string) error {
	if path == "" {
		return nil
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("ready-file: %w", err)
	}
	return nil
}

// ReadReady reads the file. Where there is none yet the error is an fs.ErrNotExist.
func ReadReady(path string) (r Ready, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}
