package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
)

//go:embed static
var staticFiles embed.FS

// assets are the files of pages: scripts, styles, the chart library. Their path has a hash over all of them, so that
// browsers keep them, and modules can import each other by relative names.
type assets struct {
	// prefix is the path under the root, with a slash at the end.
	prefix string
	files  map[string]asset
}

type asset struct {
	mime           string
	plain, gzipped []byte
}

func loadAssets() *assets {
	a := &assets{files: map[string]asset{}}
	hash := sha256.New()
	err := fs.WalkDir(staticFiles, "static", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(staticFiles, name)
		if err != nil {
			return err
		}
		hash.Write([]byte(name))
		hash.Write(text)
		kind := mime.TypeByExtension(path.Ext(name))
		if path.Ext(name) == ".js" {
			kind = "text/javascript; charset=utf-8" // whatever the machine's table of types says
		}
		var small bytes.Buffer
		w, _ := gzip.NewWriterLevel(&small, gzip.BestCompression)
		_, _ = w.Write(text) // into memory
		_ = w.Close()
		a.files[strings.TrimPrefix(name, "static/")] = asset{kind, text, small.Bytes()}
		return nil
	})
	if err != nil {
		panic(err) // the files are part of the program
	}
	a.prefix = "static/" + hex.EncodeToString(hash.Sum(nil)[:6]) + "/"
	return a
}

// ServeHTTP serves one file. Anybody may have them: they hold no data.
func (a *assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutPrefix(r.URL.Path, "/"+a.prefix)
	file, known := a.files[name]
	if !ok || !known {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", file.mime)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	text := file.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		text = file.gzipped
	}
	_, _ = w.Write(text) // nobody is there to be told
}
