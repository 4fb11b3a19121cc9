package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pages are the documents of the repository, as paths from its root.
func pages(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "loadtest/*.md", "rules/runbooks/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			page, err := filepath.Rel(root, file)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, page)
		}
	}
	if len(all) < 15 {
		t.Fatalf("only %d pages found: %v", len(all), all)
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code    = regexp.MustCompile("(?ms)^```.*?^```$|`[^`\n]*`")
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// links are the relative links of a page: file and anchor.
func links(t *testing.T, page string) (all [][2]string) {
	t.Helper()
	for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(read(t, page), ""), -1) {
		if strings.Contains(m[1], "://") {
			continue
		}
		path, anchor, _ := strings.Cut(m[1], "#")
		if path == "" {
			path = filepath.Base(page)
		}
		all = append(all, [2]string{filepath.Join(filepath.Dir(page), path), anchor})
	}
	return all
}

// anchors are the names that GitHub gives to the headings of a page.
func anchors(t *testing.T, page string) (all []string) {
	t.Helper()
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(read(t, page), ""), -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, strings.ReplaceAll(name, " ", "-"))
	}
	return all
}

// TestLinks: relative links lead to files that exist, and to headings of theirs.
func TestLinks(t *testing.T) {
	count := 0
	for _, page := range pages(t) {
		for _, l := range links(t, page) {
			count++
			if _, err := os.Stat(filepath.Join(root, l[0])); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, l[0])
			} else if l[1] != "" && !slices.Contains(anchors(t, l[0]), l[1]) {
				t.Errorf("%s links to %s#%s; that page has %v", page, l[0], l[1], anchors(t, l[0]))
			}
		}
	}
	if count < 20 {
		t.Fatalf("only %d links found", count)
	}
}

// TestReadmeLinksEveryPage: nothing in docs/ has to be guessed.
func TestReadmeLinksEveryPage(t *testing.T) {
	var linked []string
	for _, l := range links(t, "README.md") {
		linked = append(linked, l[0])
	}
	for _, page := range pages(t) {
		if page != "README.md" && !strings.HasPrefix(page, "rules") && !slices.Contains(linked, page) {
			t.Errorf("README.md does not link %s", page)
		}
	}
}
