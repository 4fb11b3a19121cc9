package books

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Fetch asks a running pipeline, by its admin address, a URL. The database side counts from the mark since on, or from
// the start of the process where that is empty.
func Fetch(ctx context.Context, admin, since string) (*Answer, error) {
	address := strings.TrimRight(admin, "/") + "/v1/books?since=" + url.QueryEscape(since)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w; is the pipeline running, and is this its admin.listen?", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %s", address, res.Status, strings.TrimSpace(string(body)))
	}
	a := &Answer{}
	if err := json.Unmarshal(body, a); err != nil {
		return nil, fmt.Errorf("the answer of %s is not a book: %w", admin, err)
	}
	return a, nil
}
